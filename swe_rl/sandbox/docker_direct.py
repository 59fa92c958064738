"""A container whose namespaces commands join directly, without the engine: milliseconds instead of tens of them.

What makes this equal to an exec by the engine is in docker_access. Files are read and written through the container's
root directory; the engine is asked for /report and /runner, for starting anew, and for the end.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from swe_rl.errors import SandboxError
from swe_rl.sandbox import docker_exec
from swe_rl.sandbox.base import REPORT_DIR, RUNNER_DIR, WORKDIR, Command, CommandResult, FileEntry, SandboxSpec
from swe_rl.sandbox.cgroup import Counts
from swe_rl.sandbox.chroot import call_in_root
from swe_rl.sandbox.copying import copy_tree
from swe_rl.sandbox.descendants import kill_descendants
from swe_rl.sandbox.disk import Disk
from swe_rl.sandbox.docker_access import REFERENCE, Access, await_access, comparable
from swe_rl.sandbox.docker_container import LiveContainer
from swe_rl.sandbox.docker_engine import Engine
from swe_rl.sandbox.holder import is_process_alive
from swe_rl.sandbox.joined import JoinedSandbox, run_to_end
from swe_rl.sandbox.joining import Joiner
from swe_rl.sandbox.running import RunningCommand
from swe_rl.sandbox.tree import read_file, read_tree, relative_parts, remove_tree, write_file

logger = logging.getLogger(__name__)
T = TypeVar("T")


class DirectSandbox(JoinedSandbox):
    """`reopen` gives the access anew after the container has been started again."""

    is_disk_hard = False

    def __init__(
        self,
        live: LiveContainer,
        spec: SandboxSpec,
        environment: Mapping[str, str],
        engine: Engine,
        joiner: Joiner,
        access: Access,
        disk: Disk | None,
        reopen: Callable[[], Access],
    ) -> None:
        super().__init__(live.name)
        self._live, self._spec, self._environment = live, spec, dict(environment)
        self._engine, self._joiner, self._access, self._disk = engine, joiner, access, disk
        self._reopen = reopen
        self._is_removed = False  # apart from `_is_closed`: a removal that failed is tried again
        self._reset_turn = asyncio.Lock()
        self._apart_turn = asyncio.Lock()

    async def equals(self, reference: str) -> bool:
        """Whether a command that joins is confined as the one whose REFERENCE output this is."""
        seen = await self.run(Command(REFERENCE, cwd=".", timeout_s=20.0))
        ours, theirs = comparable(seen.stdout.decode(errors="replace")), comparable(reference)
        if ours != theirs:
            logger.warning(
                "container %s: joined, a command would be confined otherwise: %s",
                self.sandbox_id,
                sorted(set(ours) ^ set(theirs)),
            )
        return ours == theirs

    async def fill(self, archive: bytes) -> None:
        """Unpacks an archive of docker_exec below the container's root."""
        await self._engine.start(call_in_root, self._access.root_fd, lambda: docker_exec.extract(archive))

    async def read_file(self, path: str) -> bytes:
        return await self._on_files(read_file, path)

    async def write_file(self, path: str, data: bytes) -> None:
        await self._on_files(write_file, path, data)

    async def read_tree(self) -> dict[str, FileEntry]:
        return await self._on_files(read_tree)

    async def snapshot(self, into: Path) -> None:
        await self._on_files(copy_tree, into, docker_exec.max_snapshot_bytes(self._spec.limits))

    async def close(self) -> None:
        self._is_closed = True
        if not self._is_removed:
            await self._engine.start(self._live.remove)
            self._is_removed = True
        await self.abandon()

    async def abandon(self) -> None:
        """Gives back what is held here; the container stays."""
        self._is_closed = True
        for _ in range(100):
            if not self._joined:
                break
            await asyncio.sleep(0.005)
        for running in list(self._joined):
            running.detach()
        self._joined.clear()
        self._access.close()

    def is_alive(self) -> bool:
        return not self._is_closed and is_process_alive(self._access.pidfd)

    def counts(self) -> Counts:
        return self._access.cgroup.counts()

    async def is_disk_full(self) -> bool:
        disk = self._disk
        return disk is not None and disk.may_be_full() and await self._engine.start(disk.is_full)

    async def end_tree(self, watcher: int) -> None:
        await self._engine.start(self._end_tree, watcher)

    async def reset(self) -> None:
        """Starts the container again; its files stay."""
        async with self._reset_turn:
            if self._is_closed:
                return
            logger.warning("container %s: all of its processes are killed", self.sandbox_id)
            self.generation += 1
            await self._engine.start(self._live.restart)
            access = await await_access(self._engine.start(self._reopen))
            self._access.close()
            self._access = access

    def _end_tree(self, watcher: int) -> None:
        with self._access.cgroup.frozen() as is_frozen:
            kill_descendants(watcher, self._access.cgroup.members, is_frozen)

    async def _join(self, command: Command) -> RunningCommand:
        cwd = "/".join((WORKDIR, *relative_parts(command.cwd)))
        if not self.is_alive():
            raise SandboxError(f"container {self.sandbox_id}: isn't running any more; create a new one")
        environment = self._environment | dict(self._spec.env) | dict(command.env)
        running = RunningCommand(command, self, self._joined.discard)
        running.launch(self._joiner, self._access.place, command.argv, environment, cwd)
        self._take_in(running)
        return running

    async def _run_apart(self, command: Command) -> CommandResult:
        async with self._apart_turn:
            await self._engine.start(self._live.place_apart, command)
            try:
                running = await self._join(command)
                try:
                    result = await run_to_end(running)
                finally:
                    await running.sweep()
                if command.report_dir is not None:
                    await self._engine.start(self._live.fetch_report, command.report_dir)
            finally:
                if self.is_alive():
                    await self._in_root(_remove_apart)
        return result

    async def _on_files(self, function: Callable[..., T], *arguments: Any) -> T:
        self._require_open()
        if not self.is_alive():
            raise SandboxError(f"container {self.sandbox_id}: isn't running any more; create a new one")
        return await self._in_root(lambda root: function(root / WORKDIR.lstrip("/"), *arguments))

    async def _in_root(self, function: Callable[[Path], T]) -> T:
        """Calls it with the container's root directory; nobody inside can replace what lies directly below that."""
        root = os.dup(self._access.root_fd)  # so that a close meanwhile can't turn the number into something else's

        def call() -> T:
            try:
                return function(Path(f"/proc/self/fd/{root}/."))
            finally:
                os.close(root)

        return await asyncio.shield(
            self._engine.start(call)
        )  # a caller that goes away mustn't keep `call` from closing


def _remove_apart(root: Path) -> None:
    for directory in (REPORT_DIR, RUNNER_DIR):
        remove_tree(root / directory.lstrip("/"))
