"""The warm pool: sandboxes made before they are asked for, by environment, each handed out once.

A hand-out makes the pool refill that environment (a number that was asked for ahead of time is used up by hand-outs);
when all places are taken, the environment that nobody asked for longest gives way. What is handed out has just run a
command: a sandbox that died while it waited is removed and counted. A used sandbox never comes back.
"""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from swe_rl.errors import SandboxError
from swe_rl.sandbox.base import Backend, Command, Sandbox, SandboxSpec
from swe_rl.service.blueprint import Blueprint
from swe_rl.service.metrics import ServiceMetrics

logger = logging.getLogger(__name__)

LIVENESS_S = 5.0
MAX_MAKING = 2  # prefetching mustn't slow down those who wait for a sandbox
_PROBE = Command(("true",), timeout_s=LIVENESS_S)


@dataclass(slots=True)
class _Shelf:
    """The waiting sandboxes of one environment; `wanted` is how many there should be."""

    spec: SandboxSpec
    wanted: int = 0
    num_making: int = 0
    used_at: float = field(default_factory=time.monotonic)
    warm: list[Sandbox] = field(default_factory=list)


class Pool:
    """`capacity` bounds all that waits or is being made (0: no pool); `per_environment` is what a hand-out asks for."""

    def __init__(
        self, backend: Backend, metrics: ServiceMetrics, capacity: int, per_environment: int = 2, idle_s: float = 600.0
    ) -> None:
        self.capacity = capacity
        self._backend = backend
        self._metrics = metrics
        self._per_environment = min(per_environment, capacity)
        self._idle_s = idle_s
        self._shelves: OrderedDict[str, _Shelf] = OrderedDict()  # the one used last stands last
        self._making = asyncio.Semaphore(MAX_MAKING)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def num_warm(self, key: str | None = None) -> int:
        return sum(len(shelf.warm) for name, shelf in self._shelves.items() if key in (None, name))

    async def take(self, blueprint: Blueprint) -> tuple[Sandbox, str]:
        """A sandbox that is alive, and where it came from: "warm", "cold" or "fork". Raises as Backend.create."""
        started = time.monotonic()
        source, sandbox = "fork" if blueprint.is_fork else "cold", None
        if self.capacity and not blueprint.is_fork:
            sandbox = await self._take_warm(blueprint.key)
            self._metrics.pool.labels("hit" if sandbox else "miss").inc()
            self.want(blueprint, max(self._per_environment, self._num_wanted(blueprint.key) - 1))
        if sandbox is None:
            sandbox = await self._backend.create(blueprint.spec)
        else:
            source = "warm"
        self._metrics.create_seconds.labels(source).observe(time.monotonic() - started)
        return sandbox, source

    def want(self, blueprint: Blueprint, count: int) -> int:
        """Sees to it that `count` will wait, as far as the capacity goes; returns how many that is."""
        count = min(count, self.capacity)
        shelf = self._shelves.setdefault(blueprint.key, _Shelf(blueprint.spec))
        self._shelves.move_to_end(blueprint.key)
        shelf.used_at, shelf.wanted = time.monotonic(), count
        self._shrink(shelf)
        self._make_room(blueprint.key)
        while not self._is_closed and len(shelf.warm) + shelf.num_making < shelf.wanted:
            shelf.num_making += 1
            self._spawn(self._make(shelf))
        return shelf.wanted

    def evict(self) -> None:
        """Gives up all that waits, e.g. when the disk is full."""
        for shelf in self._shelves.values():
            shelf.wanted = 0
            self._shrink(shelf)
        self._shelves.clear()

    def reap(self) -> None:
        """Gives up environments that nobody has asked for in a while."""
        for key, shelf in list(self._shelves.items()):
            if time.monotonic() - shelf.used_at > self._idle_s:
                shelf.wanted = 0
                self._shrink(shelf)
                del self._shelves[key]

    async def close(self) -> None:
        """Waits for what is being made, and removes it with the rest."""
        self._is_closed = True
        self.evict()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _num_wanted(self, key: str) -> int:
        shelf = self._shelves.get(key)
        return shelf.wanted if shelf else 0

    async def _take_warm(self, key: str) -> Sandbox | None:
        shelf = self._shelves.get(key)
        while shelf is not None and shelf.warm:
            sandbox = shelf.warm.pop(0)
            if await self._is_alive(sandbox):
                return sandbox
            self._metrics.pool.labels("dead").inc()
            logger.warning("sandbox %s: died while it waited in the pool", sandbox.sandbox_id)
            self._spawn(_close(sandbox))
        return None

    async def _is_alive(self, sandbox: Sandbox) -> bool:
        try:
            async with asyncio.timeout(LIVENESS_S + 1):
                result = await sandbox.run(_PROBE)
        except (SandboxError, TimeoutError):
            return False
        except asyncio.CancelledError:
            self._spawn(_close(sandbox))  # it belongs to nobody any more
            raise
        return result.exit_code == 0

    async def _make(self, shelf: _Shelf) -> None:
        try:
            async with self._making:
                if self._is_closed or shelf.num_making + len(shelf.warm) > shelf.wanted:
                    return
                sandbox = await self._backend.create(shelf.spec)
        except SandboxError as error:  # whoever needs one meets the fault themselves, and is told
            logger.warning("pool: can't make a sandbox of %s ahead of time: %s", shelf.spec.language, error)
            return
        finally:
            shelf.num_making -= 1
        shelf.warm.append(sandbox)
        self._shrink(shelf)

    def _make_room(self, key: str) -> None:
        """Other environments give way, the one unused for longest first; then this one makes do with what is left."""
        excess = sum(shelf.wanted for shelf in self._shelves.values()) - self.capacity
        for name, shelf in list(self._shelves.items()):
            if excess <= 0 or name == key:
                continue
            given = min(excess, shelf.wanted)
            shelf.wanted -= given
            excess -= given
            self._shrink(shelf)
            if not shelf.wanted:
                del self._shelves[name]

    def _shrink(self, shelf: _Shelf) -> None:
        while len(shelf.warm) > shelf.wanted:
            self._spawn(_close(shelf.warm.pop()))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _close(sandbox: Sandbox) -> None:
    with contextlib.suppress(SandboxError):  # a dead one; what is left of it is found when the service starts anew
        await sandbox.close()
