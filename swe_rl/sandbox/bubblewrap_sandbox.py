"""One bubblewrap session: a directory on the host, a holder of its namespaces, and the commands that joined them.

A command of the agent joins the holder, so that servers live on between commands. A command with /report or /runner
runs alone in namespaces of its own over the same files (see bwrap_command), because the agent's mustn't see these.
"""

import asyncio
import contextlib
import logging
import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from swe_rl.errors import SandboxError
from swe_rl.sandbox.base import WORKDIR, Command, CommandResult, FileEntry, SandboxSpec
from swe_rl.sandbox.bwrap_command import MAX_SHARED_PIDS, BwrapCommand
from swe_rl.sandbox.cgroup import Cgroup, Counts, Entrance
from swe_rl.sandbox.copying import copy_tree
from swe_rl.sandbox.descendants import all_processes, kill_descendants
from swe_rl.sandbox.disk import Disk, unmount
from swe_rl.sandbox.holder import Holder
from swe_rl.sandbox.joined import JoinedSandbox
from swe_rl.sandbox.joining import ALL_NAMESPACES, CLONE_NEWUSER, Joiner, Place
from swe_rl.sandbox.process import Process
from swe_rl.sandbox.running import RunningCommand
from swe_rl.sandbox.tree import read_file, read_tree, relative_parts, remove_tree, write_file

logger = logging.getLogger(__name__)
T = TypeVar("T")

CLOSE_S = 15.0


class BubblewrapSandbox(JoinedSandbox):
    """Commands may run side by side in it."""

    def __init__(
        self,
        root: Path,
        spec: SandboxSpec,
        builder: BwrapCommand,
        cgroup: Cgroup | None,
        disk: Disk,
        joiner: Joiner,
        executor: ThreadPoolExecutor,
        on_closed: Callable[[str], object],
    ) -> None:
        super().__init__(root.name)
        self.is_disk_hard = disk.is_hard
        self._root, self._spec, self._builder = root, spec, builder
        self._cgroup, self._disk = cgroup, disk
        self._joiner, self._executor, self._on_closed = joiner, executor, on_closed
        self._alone: set[Process] = set()
        self._holder: Holder | None = None
        self._holder_turn = asyncio.Lock()

    async def prepare(self) -> None:
        """Starts the holder, so that the first command needn't wait for it. Raises SandboxError."""
        await self._hold()

    async def snapshot(self, into: Path) -> None:
        self._require_open()
        await self._in_thread(copy_tree, self._root / "workspace", into, self._spec.limits.disk_mb << 20)

    async def read_file(self, path: str) -> bytes:
        self._require_open()
        return await self._in_thread(read_file, self._root / "workspace", path)

    async def write_file(self, path: str, data: bytes) -> None:
        self._require_open()
        await self._in_thread(write_file, self._root / "workspace", path, data)

    async def read_tree(self) -> dict[str, FileEntry]:
        self._require_open()
        return await self._in_thread(read_tree, self._root / "workspace")

    async def close(self) -> None:
        self._is_closed = True
        for process in list(self._alone):
            process.kill()
        async with self._holder_turn:
            if self._holder is not None:
                await self._in_thread(self._holder.kill)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_ended(), CLOSE_S)
        for running in list(self._joined):
            running.detach()
        self._joined.clear()
        await self._in_thread(self.remove)
        self._on_closed(self.sandbox_id)

    async def _all_ended(self) -> None:
        while self._alone or self._joined:  # noqa: ASYNC110  (two kinds of commands, neither of which knows of this)
            await asyncio.sleep(0.002)

    def remove(self) -> None:
        """The blocking half of `close`, for when no command runs."""
        if self._holder is not None:
            self._holder.kill()
        if self._cgroup is not None:
            for _ in range(100):
                if self._cgroup.remove():
                    break
                self._cgroup.kill()
                time.sleep(0.01)
            else:
                logger.warning("sandbox %s: its control group still holds a process", self.sandbox_id)
        if self.is_disk_hard:
            unmount(self._root)
        remove_tree(self._root)

    def is_alive(self) -> bool:
        if self._is_replaceable:
            return not self._is_closed
        return not self._is_closed and self._holder is not None and self._holder.is_alive

    @property
    def _is_replaceable(self) -> bool:
        """Whether a holder's end is no fault: without root its commands are whom it is, and may kill it themselves."""
        return self._builder.confinement.owner is None

    def counts(self) -> Counts:
        return self._cgroup.counts() if self._cgroup is not None else Counts()

    async def is_disk_full(self) -> bool:
        return self._disk.may_be_full() and (self._disk.is_hard or await self._in_thread(self._disk.is_full))

    async def end_tree(self, watcher: int) -> None:
        await self._in_thread(self._end_tree, watcher)

    async def reset(self) -> None:
        """Ends the holder with all that joined it; the next command gets a new one."""
        async with self._holder_turn:
            holder, self._holder = self._holder, None
            self.generation += 1
            if holder is not None:
                logger.warning("sandbox %s: all of its processes are killed", self.sandbox_id)
                await self._in_thread(holder.kill)

    def _end_tree(self, watcher: int) -> None:
        if self._cgroup is None:
            kill_descendants(watcher, all_processes, is_frozen=False)
            return
        with self._cgroup.frozen() as is_frozen:
            kill_descendants(watcher, self._cgroup.members, is_frozen)

    async def _join(self, command: Command) -> RunningCommand:
        cwd = "/".join((WORKDIR, *relative_parts(command.cwd)))
        holder = await self._hold()
        running = RunningCommand(command, self, self._joined.discard)
        running.launch(
            self._joiner, self._place(holder), command.argv, self._builder.environment(command, self._spec), cwd
        )
        self._take_in(running)
        return running

    async def _hold(self) -> Holder:
        holder = self._holder
        if holder is not None and not holder.is_alive and self._is_replaceable:
            await self.reset()
            holder = None
        if holder is None:
            holder = await asyncio.shield(self._start_holder())  # its caller may go away: `close` finds it
        if not holder.is_alive:
            raise SandboxError(f"sandbox {self.sandbox_id}: its processes were killed from outside; create a new one")
        return holder

    async def _start_holder(self) -> Holder:
        async with self._holder_turn:
            self._require_open()
            if self._holder is None:
                arguments = self._builder.holder_arguments(self._root)
                made = Holder(self._builder.bwrap, arguments, self._builder.confinement)
                await self._in_thread(made.start)
                self._holder = made
            return self._holder

    def _place(self, holder: Holder) -> Place:
        confinement, limits = self._builder.confinement, self._spec.limits
        size = limits.file_size_mb << 20
        rlimits = [(resource.RLIMIT_CORE, 0, 0), (resource.RLIMIT_FSIZE, size, size)]
        if self._cgroup is None:  # data, not address space: reservations are free
            memory = limits.memory_mb << 20
            # The kernel counts by host user: where all sandboxes are one user, only a backstop is possible.
            count = MAX_SHARED_PIDS if confinement.owner is not None else limits.num_pids
            rlimits += [(resource.RLIMIT_DATA, memory, memory), (resource.RLIMIT_NPROC, count, count)]
        return Place(
            pidfd=holder.pidfd,
            namespaces=ALL_NAMESPACES | (CLONE_NEWUSER if confinement.owner is None else 0),
            user=confinement.owner,
            filters=(confinement.program,) if confinement.program is not None else (),
            rlimits=tuple(rlimits),
            entrance=self._cgroup.entrance() if self._cgroup is not None else Entrance((), None),
        )

    async def _run_apart(self, command: Command) -> CommandResult:
        relative_parts(command.cwd)
        process = Process(self._builder.kill_tree, self._builder.confinement.owner, self._builder.confinement.label)
        before = self.counts()
        self._alone.add(process)
        try:
            ended = await process.run(
                lambda status_fd: self._builder.argv(command, self._root, self._spec, self._cgroup, status_fd),
                command.stdin,
                command.timeout_s,
                command.output_limit_bytes,
            )
        except (OSError, ValueError) as error:
            return self._builder.refused(error)
        finally:
            self._alone.discard(process)
        if process.is_killed:
            raise SandboxError(f"sandbox {self.sandbox_id}: closed while a command ran")
        after = self.counts()
        return replace(
            self._builder.result(ended, after.oom_kills > before.oom_kills),
            pids_exceeded=after.refused_forks > before.refused_forks,
            disk_full=await self.is_disk_full(),
        )

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)
        except SandboxError:  # some of these are OSErrors, too
            raise
        except OSError as error:
            raise SandboxError(f"sandbox {self.sandbox_id}: {error.strerror or error}") from error
