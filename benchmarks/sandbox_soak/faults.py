"""Faults from outside: which session meets which, and how each is done to a running service.

`client_gone` is done by the session itself (see work); a killed service is started again at the same address.
"""

import asyncio
import contextlib
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from served import ServedProcess

from sandbox_soak.census import children_named, running_containers_of

# kind: share of all faults
KINDS = {
    "service_killed": 1,
    "sandbox_killed": 3,
    "client_gone": 3,
    "disk_full": 2,
    "host_disk_full": 1,
    "clock_jump": 2,
}
RESTARTS_S = 60.0  # for how long a service that ends at once is started again
HELD_S = 3.0  # how long the disk stays full, and the clock wrong
JUMPS_S = (3600.0, -3600.0, 86_400.0, -0.5)
LEFT_FREE = 64 << 20
_CLOCK_SOURCE = Path(__file__).with_name("clock_shift.c")


def plan(num_sessions: int, share: float, kinds: Sequence[str], generator: random.Random) -> dict[int, str]:
    """Session's index -> kind: exactly `share` of the sessions, every kind where there are enough."""
    count = round(num_sessions * share)
    weighted = [kind for kind in kinds for _ in range(KINDS[kind])]
    wanted = [*kinds, *generator.choices(weighted, k=max(0, count - len(kinds)))][:count] if weighted else []
    return dict(zip(generator.sample(range(num_sessions), len(wanted)), wanted, strict=True))


class Clock:
    """The wall clock that a service sees, where a C compiler can make the shim that shifts it."""

    def __init__(self, directory: Path) -> None:
        """Raises RuntimeError where it can't be made."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise RuntimeError("no C compiler: the service's clock can't be shifted")
        library, self._file = directory / "clock_shift.so", directory / "clock_shift"
        argv = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_CLOCK_SOURCE), "-ldl"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the shim that shifts the clock can't be compiled: {done.stderr.strip()[-200:]}")
        self._file.write_bytes(bytes(mmap.PAGESIZE))
        self.env = {"LD_PRELOAD": str(library), "CLOCK_SHIFT_FILE": str(self._file)}

    def shift(self, seconds: float) -> None:
        with self._file.open("r+b") as file:
            file.write(struct.pack("d", seconds))


class Injector:
    """Does faults to one service, the kills one at a time. `done` counts them; `up` is set while it serves."""

    def __init__(self, served: ServedProcess, disk: Path | None, clock: Clock | None, generator: random.Random) -> None:
        """`disk`: the small file system that the scratch directory lies on."""
        self.done: Counter[str] = Counter()
        self.problems: list[str] = []
        self.up = asyncio.Event()
        self._served, self._disk, self._clock, self._random = served, disk, clock, generator
        self._turn = asyncio.Lock()
        self._disk_turn, self._clock_turn = asyncio.Lock(), asyncio.Lock()

    async def inject(self, kind: str) -> None:
        actions = {
            "service_killed": self._kill_service,
            "sandbox_killed": self._kill_sandbox,
            "host_disk_full": self._fill_disk,
            "clock_jump": self._jump,
        }
        if kind in actions:
            await actions[kind]()
        self.done[kind] += 1

    async def _kill_service(self) -> None:
        async with self._turn:
            self.up.clear()
            try:
                await self._served.kill()
                await self._start_again()
            except RuntimeError as error:
                self.problems.append(str(error))
            finally:
                self.up.set()

    async def _start_again(self) -> None:
        """As a supervisor does: a service that finds no room on the disk says so and ends."""
        deadline = time.monotonic() + RESTARTS_S
        while True:
            try:
                await self._served.start()
                return
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(1.0)

    async def _kill_sandbox(self) -> None:
        """Any of them, also one that waits in the pool."""
        async with self._turn:
            if self._served.backend.startswith("docker"):
                found = await asyncio.to_thread(running_containers_of, [self._served.instances[-1]])
                if found:
                    argv = ["docker", "kill", self._random.choice(found)]
                    await asyncio.to_thread(subprocess.run, argv, capture_output=True, check=False)
                return
            holders = await asyncio.to_thread(children_named, self._served.pid, "bwrap")
            if not holders:
                return
            victim = self._random.choice(holders)
            inside = await asyncio.to_thread(children_named, victim, "bwrap")
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice([victim, *inside]), signal.SIGKILL)

    async def _fill_disk(self) -> None:
        assert self._disk is not None
        async with self._disk_turn:
            filler = self._disk / "filler"
            free = shutil.disk_usage(self._disk).free - LEFT_FREE
            try:
                with filler.open("wb") as file:
                    if free > 0:
                        await asyncio.to_thread(os.posix_fallocate, file.fileno(), 0, free)
                await asyncio.sleep(HELD_S)
            finally:
                filler.unlink(missing_ok=True)

    async def _jump(self) -> None:
        assert self._clock is not None
        async with self._clock_turn:
            self._clock.shift(self._random.choice(JUMPS_S))
            try:
                await asyncio.sleep(HELD_S)
            finally:
                self._clock.shift(0)
