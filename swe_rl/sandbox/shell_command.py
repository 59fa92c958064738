"""One command that a container's shell runs: its streams up to the trailer, its deadline, its limits, its end."""

import asyncio
import contextlib
import time
from typing import Protocol
from uuid import uuid4

from swe_rl.errors import SandboxError, SandboxTimeoutError
from swe_rl.sandbox.base import Command, CommandResult, OutputChunk, StreamName
from swe_rl.sandbox.capture import Capture, Tail
from swe_rl.sandbox.cgroup import Counts
from swe_rl.sandbox.environment import exit_and_signal
from swe_rl.sandbox.running import KILL_GRACE_S, LOOK_EVERY_S
from swe_rl.sandbox.shell_script import TrailedStream, Trailer

LOOK_AT_MEMORY_EVERY_S = 2.0


class ShellKeeper(Protocol):
    """The sandbox of a shell command."""

    sandbox_id: str
    generation: int

    async def is_disk_full(self) -> bool: ...

    async def kill_command(self, mark: str, shell_pid: int, started_at: float) -> None:
        """Kills the command's tree, or else all that runs (a new generation)."""
        ...

    async def learn_end(self, generation: int, since_s: float) -> bool:
        """After a command since then whose shell died: whether memory was the reason.

        Raises SandboxError if the sandbox died of something else.
        """
        ...

    async def has_run_out_of_memory(self, since_s: float) -> bool:
        """Whether the whole sandbox was struck for want of memory, and can't go on."""
        ...

    async def reset(self) -> None: ...

    def is_pids_limit(self, num_processes: int) -> bool: ...

    def counts_before(self, trailer: Trailer) -> Counts:
        """The counts at the last command's end; keeps those of this one."""
        ...


class ShellCommand:
    """A `Process` of swe_rl.sandbox.base."""

    def __init__(self, command: Command, keeper: ShellKeeper, shell_pid: int, word: str, mark: str) -> None:
        self.process_id = f"p-{uuid4().hex}"
        self.mark, self.shell_pid = mark, shell_pid
        self.trailer: Trailer | None = None
        self.started_at = time.monotonic()
        self._command, self._keeper = command, keeper
        self._captures = {name: Capture(command.output_limit_bytes) for name in ("stdout", "stderr")}
        self._tails = {name: Tail(command.output_limit_bytes) for name in ("stdout", "stderr")}
        self._parts = {name: TrailedStream(word) for name in ("stdout", "stderr")}
        self._ended = asyncio.Event()
        self._generation = keeper.generation
        self._supervision = asyncio.create_task(self._supervise())
        self._supervision.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    def feed(self, stream: StreamName, chunk: bytes) -> None:
        if not self._ended.is_set():
            self._take(stream, self._parts[stream].feed(chunk))
            trailers = [part.trailer for part in self._parts.values()]
            if None not in trailers:
                self.trailer = trailers[0]
                self._ended.set()

    def end(self) -> None:
        """The shell has gone."""
        if not self._ended.is_set():
            for name in ("stdout", "stderr"):
                self._take(name, self._parts[name].rest())
            self._ended.set()

    async def read(self, stream: StreamName, offset: int, limit: int) -> OutputChunk:
        data, begin = self._tails[stream].read(offset, limit)
        is_end = self._ended.is_set() and begin + len(data) >= self._tails[stream].total_bytes
        return OutputChunk(data, begin, max(0, begin - offset), is_end)

    async def wait(self, timeout_s: float | None) -> CommandResult | None:
        """None as `timeout_s`: as long as it takes."""
        await asyncio.wait({self._supervision}, timeout=timeout_s)
        return self._supervision.result() if self._supervision.done() else None

    async def kill(self) -> None:
        if not self._ended.is_set():
            await self._kill()
        with contextlib.suppress(SandboxError):
            await self.wait(KILL_GRACE_S)

    async def ended(self) -> None:
        """Returns when the command has ended, before its result is there."""
        await self._ended.wait()

    def _take(self, stream: StreamName, data: bytes) -> None:
        self._captures[stream].feed(data)
        self._tails[stream].feed(data)

    async def _kill(self) -> None:
        await self._keeper.kill_command(self.mark, self.shell_pid, self.started_at)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), KILL_GRACE_S)

    async def _supervise(self) -> CommandResult:
        deadline = self.started_at + self._command.timeout_s
        timed_out = disk_full = out_of_memory = False
        looked_at = self.started_at
        while not self._ended.is_set() and not timed_out and not disk_full and not out_of_memory:
            left = deadline - time.monotonic()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), min(max(left, 0.0), LOOK_EVERY_S))
            if not self._ended.is_set():
                disk_full = await self._keeper.is_disk_full()
                if time.monotonic() - looked_at > LOOK_AT_MEMORY_EVERY_S:
                    out_of_memory = await self._keeper.has_run_out_of_memory(self.started_at)
                    looked_at = time.monotonic()
                timed_out = time.monotonic() >= deadline and not self._ended.is_set()
        duration_s = time.monotonic() - self.started_at
        if out_of_memory:
            await self._keeper.reset()
        if not self._ended.is_set():
            await self._kill()
            if not self._ended.is_set():
                await self._keeper.reset()
            if not self._ended.is_set():
                raise SandboxTimeoutError(f"sandbox {self._keeper.sandbox_id}: a command is alive after SIGKILL")
        disk_full = await self._keeper.is_disk_full() or disk_full
        return await self._result(timed_out and not out_of_memory, disk_full, duration_s)

    async def _result(self, timed_out: bool, disk_full: bool, duration_s: float) -> CommandResult:
        trailer, oom, pids_exceeded = self.trailer, False, False
        exit_code: int | None = None
        number: int | None = 9
        if trailer is None:
            if self._generation != self._keeper.generation:
                oom = await self._keeper.has_run_out_of_memory(self.started_at)
            elif not timed_out:
                oom = await self._keeper.learn_end(self._generation, self.started_at)
        else:
            before = self._keeper.counts_before(trailer)
            oom = trailer.oom_kills > before.oom_kills
            pids_exceeded = trailer.refused_forks > before.refused_forks
            pids_exceeded = pids_exceeded or self._keeper.is_pids_limit(trailer.num_after)
            exit_code, number = exit_and_signal(trailer.status)
        stdout, stderr = self._captures["stdout"], self._captures["stderr"]
        return CommandResult(
            exit_code=None if timed_out else exit_code,
            signal=None if timed_out else number,
            stdout=stdout.data(),
            stderr=stderr.data(),
            truncated_bytes=stdout.truncated_bytes + stderr.truncated_bytes,
            timed_out=timed_out,
            oom=oom,
            duration_s=duration_s,
            pids_exceeded=pids_exceeded,
            disk_full=disk_full,
        )
