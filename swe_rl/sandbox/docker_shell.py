"""A container whose commands go through the engine: under gVisor, or where the engine's machine is another.

An exec by the engine takes long, so that one shell is executed ahead and runs command after command; it is confined as
every exec by the engine is, because it is one. Commands side by side, and commands with an input, have shells of their
own; a shell that a background process still writes through isn't used again.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swe_rl.errors import PathError, SandboxError, SandboxTimeoutError
from swe_rl.sandbox import docker_exec
from swe_rl.sandbox.base import WORKDIR, Command, CommandResult, FileEntry, Process, SandboxSpec, StreamName
from swe_rl.sandbox.cgroup import Counts
from swe_rl.sandbox.disk import Disk
from swe_rl.sandbox.docker_container import AGENT, LiveContainer
from swe_rl.sandbox.docker_engine import API_TIMEOUT_S, Engine, log_has_oom
from swe_rl.sandbox.docker_stream import ExecStream, open_exec
from swe_rl.sandbox.joined import is_apart, refused
from swe_rl.sandbox.shell_command import ShellCommand
from swe_rl.sandbox.shell_script import KILL_SCRIPT, Trailer, command_line, is_too_long, opening
from swe_rl.sandbox.started import StartedCommand
from swe_rl.sandbox.tree import MAX_FILE_BYTES, relative_parts

logger = logging.getLogger(__name__)

HELLO_S, DYING_S = 30.0, 0.5
CLOCK_SLACK_S = 0.5  # the container's clock was read through an exec; an unmarked orphan as young as this dies, too
TICKS_PER_S = 100


@dataclass
class _Shell:
    stream: ExecStream
    pid: int
    clock_offset_s: float  # the container's uptime less our monotonic clock
    unread: list[tuple[StreamName, bytes]]


class ShellSandbox:
    """`num_guest_pids`: the limit that the shell sets for its own children, where the kernel inside keeps it."""

    def __init__(
        self,
        live: LiveContainer,
        spec: SandboxSpec,
        environment: Mapping[str, str],
        engine: Engine,
        disk: Disk | None,
        num_guest_pids: int | None,
    ) -> None:
        self.sandbox_id = live.name
        self.generation = 0
        self._live, self._spec, self._engine, self._disk = live, spec, engine, disk
        self._environment = dict(environment) | dict(spec.env)
        self._num_guest_pids = num_guest_pids
        self._idle: list[_Shell] = []
        self._shells: list[_Shell] = []
        self._tending: set[asyncio.Task[None]] = set()
        self._counts, self._first_uptime_s = Counts(), 0.0  # what is older than the first shell isn't a command's
        self._apart_turn, self._reset_turn = asyncio.Lock(), asyncio.Lock()
        self._is_closed = self._is_removed = False  # two: a removal that failed is tried again

    async def run(self, command: Command) -> CommandResult:
        if is_apart(command):
            return await self._run_apart(command)
        started = await self._start(command)
        if isinstance(started, CommandResult):
            return started
        try:
            result = await started.wait(None)
        except asyncio.CancelledError:
            await asyncio.shield(started.kill())
            raise
        assert result is not None
        return result

    async def start(self, command: Command) -> Process:
        if is_apart(command):
            return StartedCommand(self.run, command)
        started = await self._start(command)
        return StartedCommand(self.run, command) if isinstance(started, CommandResult) else started

    async def prepare(self) -> None:
        """Has a shell ready for the first command."""
        self._idle.append(await self._open_shell())

    async def read_file(self, path: str) -> bytes:
        return (await self._run_file_script(docker_exec.READ_SCRIPT, path, b"", MAX_FILE_BYTES + 4096)).stdout

    async def write_file(self, path: str, data: bytes) -> None:
        await self._run_file_script(docker_exec.WRITE_SCRIPT, path, data, 4096)

    async def read_tree(self) -> dict[str, FileEntry]:
        self._require_open()
        return await self._engine.start(self._live.read_tree, WORKDIR)

    async def snapshot(self, into: Path) -> None:
        self._require_open()
        await self._engine.start(self._live.copy_out, WORKDIR, into, docker_exec.max_snapshot_bytes(self._spec.limits))

    async def close(self) -> None:
        self._is_closed = True
        if not self._is_removed:
            await self._engine.start(self._live.remove)
            self._is_removed = True
        self._close_shells()

    async def is_disk_full(self) -> bool:
        disk = self._disk
        return disk is not None and disk.may_be_full() and await self._engine.start(disk.is_full)

    async def kill_command(self, mark: str, shell_pid: int, started_at: float) -> None:
        shell = next((shell for shell in self._shells if shell.pid == shell_pid), None)
        offset_s = shell.clock_offset_s if shell is not None else -started_at
        since = int(max(started_at - CLOCK_SLACK_S + offset_s, self._first_uptime_s) * TICKS_PER_S)
        script = ("/bin/sh", "-c", KILL_SCRIPT, "sandbox", mark, str(shell_pid), str(since))
        try:
            code = await self._engine.start(self._live.kill_by, script)
        except SandboxError as error:
            code = 1
            logger.info("container %s: a command can't be killed by itself: %s", self.sandbox_id, error)
        if code != 0:
            await self.reset()

    async def learn_end(self, generation: int, since_s: float) -> bool:
        if self._is_closed:
            raise SandboxError(f"container {self.sandbox_id}: closed while a command ran")
        if generation != self.generation:
            return False
        if await self._engine.start(self._live.is_running):
            with contextlib.suppress(SandboxError):  # it may be about to end: then no shell answers, or not for long
                shell = await self._open_shell()
                await asyncio.sleep(DYING_S)
                if shell.stream.is_open:
                    self._idle.append(shell)
                    return False
        if await self._engine.start(self._live.was_killed_for_memory, since_s):
            await self.reset()
            return True
        raise SandboxError(f"container {self.sandbox_id}: lost while a command ran; create a new one")

    async def has_run_out_of_memory(self, since_s: float) -> bool:
        if self._num_guest_pids is None:  # not gVisor: the kernel kills one process, and that is all
            return False
        return await self._engine.start(log_has_oom, str(self._live.container.id), since_s)

    def is_pids_limit(self, num_processes: int) -> bool:
        return self._num_guest_pids is not None and num_processes >= self._num_guest_pids

    def counts_before(self, trailer: Trailer) -> Counts:
        before, self._counts = self._counts, Counts(trailer.oom_kills, trailer.refused_forks)
        return before

    async def _start(self, command: Command) -> "ShellCommand | CommandResult":
        self._require_open()
        cwd = "/".join((WORKDIR, *relative_parts(command.cwd)))
        word, mark = secrets.token_hex(16), secrets.token_hex(8)
        if is_too_long(command.argv):
            return refused("argument list too long")
        try:
            line = command_line(command.argv, cwd, command.env, word, bool(command.stdin), mark)
        except ValueError as error:
            return refused(f"not a command line: {error}")
        # A shell reads its script ahead: where a command has an input, its shell has the script from elsewhere.
        shell = await (self._open_shell(line) if command.stdin else self._idle_shell())
        started = ShellCommand(command, self, shell.pid, word, mark)
        shell.stream.on_data, shell.stream.on_end = started.feed, started.end
        while shell.unread:
            started.feed(*shell.unread.pop(0))
        if not shell.stream.is_open:
            started.end()
        self._tend(started, shell, is_single=bool(command.stdin))
        shell.stream.write_soon(command.stdin or line.encode(errors="surrogateescape"), is_last=bool(command.stdin))
        return started

    async def _idle_shell(self) -> _Shell:
        while self._idle:
            if (shell := self._idle.pop()).stream.is_open:
                return shell
        return await self._open_shell()

    def _tend(self, started: ShellCommand, shell: _Shell, is_single: bool) -> None:
        """Puts the shell back for the next command, unless somebody may still write through it."""

        async def tend() -> None:
            await started.ended()
            trailer = started.trailer
            is_lingering = trailer is not None and trailer.num_after > trailer.num_before
            if trailer is None or is_single or is_lingering:
                self._drop(shell, is_lingering)
            else:
                self._idle.append(shell)

        task = asyncio.create_task(tend())
        self._tending.add(task)
        task.add_done_callback(self._tending.discard)

    def _drop(self, shell: _Shell, is_lingering: bool) -> None:
        shell.stream.on_data = lambda *_: None
        shell.stream.on_end = lambda: None
        if not is_lingering:
            shell.stream.close()
            self._shells = [other for other in self._shells if other is not shell]

    async def _open_shell(self, line: str = "") -> _Shell:
        """`line`: all that it is to run; else it reads what to run from the stream."""
        script = opening(self._num_guest_pids)
        argv = ("/bin/sh", "-c", script + line) if line else ("/bin/sh",)
        opened = await self._engine.start(open_exec, self._live.container, argv, AGENT, self._environment)
        heard: list[tuple[StreamName, bytes]] = []
        answered = asyncio.Event()

        def hear(name: StreamName, chunk: bytes) -> None:
            heard.append((name, chunk))
            if name == "stdout" and b"\n" in chunk:  # what comes behind on the other stream may be here first
                answered.set()

        stream = ExecStream(opened, hear, answered.set)
        if not line:
            stream.write_soon(script.encode())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(answered.wait(), HELLO_S)
        hello, _, rest = b"".join(chunk for name, chunk in heard if name == "stdout").partition(b"\n")
        words = hello.split()
        if len(words) != 2 or not words[0].isdigit():
            stream.close()
            is_alive = await self._engine.start(self._live.is_running)
            what = f"no shell in it answers: {heard!r:.300}" if is_alive else "is lost; create a new one"
            raise SandboxError(f"container {self.sandbox_id}: {what}")
        unread: list[tuple[StreamName, bytes]] = [("stdout", rest)] if rest else []
        unread += [(name, chunk) for name, chunk in heard if name == "stderr"]
        self._first_uptime_s = self._first_uptime_s or float(words[1])
        shell = _Shell(stream, int(words[0]), float(words[1]) - time.monotonic(), unread)
        self._shells.append(shell)
        return shell

    async def _run_apart(self, command: Command) -> CommandResult:
        async with self._apart_turn:
            self._require_open()
            await self._engine.start(self._live.place_apart, command)
            started = await self._start(command)
            if isinstance(started, CommandResult):
                return started
            try:
                result = await started.wait(None)
                assert result is not None
                if command.report_dir is not None:
                    await self._engine.start(self._live.fetch_report, command.report_dir)
                return result
            finally:
                await asyncio.shield(self._clean_up_apart(started))

    async def _clean_up_apart(self, started: ShellCommand) -> None:
        if not self._is_closed:
            await started.kill()
            await self.kill_command(started.mark, started.shell_pid, started.started_at)
            await self._engine.start(self._live.remove_apart)

    async def _run_file_script(self, script: str, path: str, data: bytes, limit_bytes: int) -> CommandResult:
        parts = relative_parts(path)
        if not parts:
            raise PathError(f"path {path!r}: is the working directory, expected a file")
        argv = ("/bin/sh", "-c", script, "sandbox", *parts)
        result = await self.run(Command(argv, stdin=data, timeout_s=API_TIMEOUT_S, output_limit_bytes=limit_bytes))
        if result.timed_out:
            raise SandboxTimeoutError(f"container {self.sandbox_id}: {path!r} wasn't read or written in time")
        if result.exit_code != 0:
            problem = docker_exec.FILE_PROBLEMS.get(result.exit_code or 0, "can't be accessed")
            raise PathError(f"path {path!r}: {problem}")
        return result

    async def reset(self) -> None:
        """Starts the container again; its files stay."""
        generation = self.generation
        async with self._reset_turn:
            if generation != self.generation or self._is_closed:
                return
            logger.warning("container %s: all of its processes are killed", self.sandbox_id)
            self.generation += 1
            await self._engine.start(self._live.restart)
            self._counts, self._first_uptime_s = Counts(), 0.0
            self._close_shells()

    def _close_shells(self) -> None:
        for shell in self._shells:
            if shell.stream.is_open:
                shell.stream.close()
                shell.stream.on_end()
        self._shells, self._idle = [], []

    def _require_open(self) -> None:
        if self._is_closed:
            raise SandboxError(f"container {self.sandbox_id}: is closed; create a new one")
