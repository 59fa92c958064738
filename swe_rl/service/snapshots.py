"""Copies of sessions' working directories, from which forks begin. They lie in the service's private directory.

A snapshot holds files alone: no processes, nothing of /tmp. It goes when it is deleted, with its lease, or after it
hasn't been forked for its lifetime; what still copies from it is waited for.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

from swe_rl.errors import CapacityError, ResourceNotFoundError
from swe_rl.sandbox.tree import remove_tree
from swe_rl.service.blueprint import Blueprint
from swe_rl.service.session import Session

MAX_SNAPSHOTS = 256


@dataclass(eq=False)
class Snapshot:
    """`blueprint` has the snapshot as its source, and the files of the session's own beginning as its base."""

    snapshot_id: str
    session_id: str
    owner: str
    blueprint: Blueprint
    ttl_s: float
    lease_id: str | None
    expires_at: float = 0.0
    num_users: int = 0
    unused: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def expires_in_s(self) -> float:
        return max(0.0, self.expires_at - time.monotonic())

    def renew(self) -> None:
        self.expires_at = time.monotonic() + self.ttl_s


class Snapshots:
    """All snapshots below `directory`. `disk_problem` says why the disk forbids a new one, else it is ''."""

    def __init__(self, directory: Path, disk_problem: Callable[[], str]) -> None:
        self._directory = directory
        self._disk_problem = disk_problem
        self._num_pending = 0
        self._live: dict[str, Snapshot] = {}

    def __len__(self) -> int:
        return len(self._live)

    async def take(self, session: Session, ttl_s: float, lease_id: str | None) -> Snapshot:
        """Raises CapacityError, PathError (a tree beyond the limits) or SandboxError."""
        if problem := self._disk_problem():
            raise CapacityError(problem)
        if len(self._live) + self._num_pending >= MAX_SNAPSHOTS:
            raise CapacityError(f"sandbox service: all {MAX_SNAPSHOTS} snapshots are in use; delete some")
        snapshot_id = f"n-{uuid4().hex}"
        path = self._directory / snapshot_id
        copying = asyncio.create_task(session.sandbox.snapshot(path))
        self._num_pending += 1
        try:
            await asyncio.shield(copying)
        except BaseException:
            await asyncio.shield(_discard(copying, path))
            raise
        finally:
            self._num_pending -= 1
        spec = replace(session.blueprint.spec, source=path, is_snapshot=True)
        blueprint = replace(session.blueprint, spec=spec, key=snapshot_id, is_fork=True)
        snapshot = Snapshot(snapshot_id, session.session_id, session.terms.owner, blueprint, ttl_s, lease_id)
        snapshot.renew()
        self._live[snapshot_id] = snapshot
        return snapshot

    def find(self, snapshot_id: str, owner: str) -> Snapshot:
        """Raises ResourceNotFoundError for one that is gone, or is another's."""
        snapshot = self._live.get(snapshot_id)
        if snapshot is None or snapshot.owner != owner:
            raise ResourceNotFoundError(f"snapshot {snapshot_id!r}: was deleted, has expired, or never was")
        return snapshot

    def select(self, owner: str | None = None, lease_id: str | None = None) -> list[Snapshot]:
        """All, or those of an owner, or of one of its leases."""
        return [s for s in self._live.values() if owner in (None, s.owner) and lease_id in (None, s.lease_id)]

    @asynccontextmanager
    async def use(self, snapshot: Snapshot) -> AsyncIterator[Blueprint]:
        """The source of forks; its files stay for the length of the block."""
        snapshot.num_users += 1
        snapshot.unused.clear()
        try:
            yield snapshot.blueprint
        finally:
            snapshot.num_users -= 1
            snapshot.renew()
            if snapshot.num_users == 0:
                snapshot.unused.set()

    async def delete(self, snapshot: Snapshot) -> None:
        """Safe to call twice."""
        if self._live.pop(snapshot.snapshot_id, None) is None:
            return
        if snapshot.num_users:
            await snapshot.unused.wait()
        await asyncio.to_thread(remove_tree, snapshot.blueprint.spec.source)

    def take_expired(self) -> list[Snapshot]:
        now = time.monotonic()
        return [s for s in self._live.values() if s.num_users == 0 and now >= s.expires_at]

    async def clear(self) -> None:
        """Deletes all."""
        for snapshot in list(self._live.values()):
            with contextlib.suppress(OSError):
                await self.delete(snapshot)


async def _discard(copying: asyncio.Task[None], path: Path) -> None:
    """Waits for a copy that nobody wants any more: its thread can't be stopped, and would write behind the removal."""
    await asyncio.wait({copying})
    copying.exception()
    await asyncio.to_thread(remove_tree, path)
