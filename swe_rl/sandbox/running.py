"""One command inside a live sandbox, under asyncio: its streams, its deadline, its limits, its end.

    Joiner.start -> the loop watches both output pipes and the watcher's status pipe -> CommandResult

When the command itself has ended there is a result, though what it left in the background lives on: the pipes are read
until that has gone too, so that no server blocks on a full pipe or dies of a closed one. How a tree is killed is the
keeper's business.
"""

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from uuid import uuid4

from swe_rl.errors import SandboxError, SandboxTimeoutError
from swe_rl.sandbox.base import Command, CommandResult, OutputChunk, StreamName
from swe_rl.sandbox.capture import Capture, Tail
from swe_rl.sandbox.cgroup import Counts
from swe_rl.sandbox.environment import exit_and_signal
from swe_rl.sandbox.joining import ANSWER_S, Descriptors, Joiner, Place
from swe_rl.sandbox.process import open_stdin

KILL_TRIES = 3
KILL_GRACE_S = 5.0
LOOK_EVERY_S = 0.25
SETTLE_S = 0.05
PAUSE_S = 0.05
_CHUNK = 262_144
_DEATH_LOOKS = 100
_MAX_SETTLED_BYTES = 4 << 20


class Keeper(Protocol):
    """What holds the sandbox of a command."""

    sandbox_id: str
    is_disk_hard: bool
    generation: int  # grows by each `reset`

    def is_alive(self) -> bool:
        """Whether the sandbox's first process lives."""
        ...

    def counts(self) -> Counts: ...

    async def is_disk_full(self) -> bool: ...

    async def end_tree(self, watcher: int) -> None:
        """Kills the watcher's descendants."""
        ...

    async def reset(self) -> None:
        """The last resort: kills all that runs in the sandbox; its files stay."""
        ...


class RunningCommand:
    """A `Process` of swe_rl.sandbox.base; made by `launch`."""

    def __init__(self, command: Command, keeper: Keeper, on_gone: Callable[["RunningCommand"], object]) -> None:
        self.process_id = f"p-{uuid4().hex}"
        self.is_killed = False
        self._command, self._keeper, self._on_gone = command, keeper, on_gone
        self._captures = {name: Capture(command.output_limit_bytes) for name in ("stdout", "stderr")}
        self._tails = {name: Tail(command.output_limit_bytes) for name in ("stdout", "stderr")}
        self._streams: dict[int, str] = {}
        self._status_fd = -1
        self._status = b""
        self._watcher: int | None = None
        self._code: int | None = None
        self._failure = ""
        self._named, self._ended, self._gone, self._drained = (asyncio.Event() for _ in range(4))
        self._is_settled = False
        self._started = time.monotonic()
        self._before = keeper.counts()
        self._generation = keeper.generation
        self._supervision: asyncio.Task[CommandResult] | None = None
        self._leaving: asyncio.Task[None] | None = None

    def launch(self, joiner: Joiner, place: Place, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        """Raises ValueError for what can't be a command line, SandboxError where it can't be started."""
        request = place.request(argv, env, cwd)
        loop = asyncio.get_running_loop()
        try:
            with contextlib.ExitStack() as theirs:
                ends = {}
                for name in ("stdout", "stderr", "status"):
                    ours, other = os.pipe2(os.O_CLOEXEC)
                    theirs.callback(os.close, other)
                    ends[name] = other
                    os.set_blocking(ours, False)
                    if name == "status":
                        self._status_fd = ours
                    else:
                        self._streams[ours] = name
                stdin = open_stdin(self._command.stdin)
                theirs.callback(os.close, stdin)
                joiner.start(place, request, Descriptors(stdin, ends["stdout"], ends["stderr"], ends["status"]))
        except OSError as error:
            self.detach()
            raise SandboxError(f"sandbox {self._keeper.sandbox_id}: a command can't be started: {error}") from error
        except BaseException:
            self.detach()
            raise
        for descriptor in self._streams:
            loop.add_reader(descriptor, self._read, descriptor)
        loop.add_reader(self._status_fd, self._read_status)
        self._supervision = asyncio.create_task(self._supervise())
        self._supervision.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    async def read(self, stream: StreamName, offset: int, limit: int) -> OutputChunk:
        data, begin = self._tails[stream].read(offset, limit)
        is_end = self._is_settled and begin + len(data) >= self._tails[stream].total_bytes
        return OutputChunk(data, begin, max(0, begin - offset), is_end)

    async def wait(self, timeout_s: float | None) -> CommandResult | None:
        """None as `timeout_s`: as long as it takes."""
        assert self._supervision is not None
        await asyncio.wait({self._supervision}, timeout=timeout_s)
        return self._supervision.result() if self._supervision.done() else None

    async def kill(self) -> None:
        if not self._ended.is_set():
            self.is_killed = True
            await self._end_tree()
        with contextlib.suppress(SandboxError):
            await self.wait(KILL_GRACE_S)

    async def has_gone(self, timeout_s: float) -> bool:
        return await _wait(self._gone, timeout_s)  # with all that it has left

    async def sweep(self) -> None:
        """Kills what the command has left, whether it has ended itself or not."""
        if not self._gone.is_set():
            await self._end_tree()

    def detach(self) -> None:
        """Closes our ends of the pipes: when all is gone, or the sandbox closes. Safe to call twice."""
        for descriptor in [*self._streams, *([self._status_fd] if self._status_fd >= 0 else [])]:
            with contextlib.suppress(RuntimeError, ValueError):
                asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
        self._streams.clear()
        self._status_fd = -1
        for event in (self._named, self._ended, self._gone, self._drained):
            event.set()

    async def _supervise(self) -> CommandResult:
        deadline = self._started + self._command.timeout_s
        timed_out = disk_full = False
        while not self._ended.is_set() and not timed_out and not (disk_full and not self._keeper.is_disk_hard):
            left = deadline - time.monotonic()
            await _wait(self._ended, min(max(left, 0.0), LOOK_EVERY_S))
            if not self._ended.is_set():
                disk_full = await self._keeper.is_disk_full() or disk_full
                timed_out = time.monotonic() >= deadline and not self._ended.is_set()
        if not self._ended.is_set():
            await self._end_tree()
        duration_s = time.monotonic() - self._started
        await self._settle()
        disk_full = await self._keeper.is_disk_full() or disk_full
        return await self._result(timed_out, disk_full, duration_s)

    async def _end_tree(self) -> None:
        await _wait(self._named, ANSWER_S)
        for _ in range(KILL_TRIES):
            if self._watcher is not None and not self._gone.is_set():
                await self._keeper.end_tree(self._watcher)
            if await _wait(self._gone, KILL_GRACE_S / KILL_TRIES):
                return
        if self._generation == self._keeper.generation:
            await self._keeper.reset()
        if not await _wait(self._gone, KILL_GRACE_S):
            raise SandboxTimeoutError(
                f"sandbox {self._keeper.sandbox_id}: a command is alive {2 * KILL_GRACE_S:g} s after SIGKILL"
            )

    async def _settle(self) -> None:
        """Takes what is in the pipes now; a little later too where somebody still holds them open."""
        for descriptor in list(self._streams):
            for _ in range(_MAX_SETTLED_BYTES // _CHUNK):
                if not self._read(descriptor):
                    break
        if not await _wait(self._drained, SETTLE_S if self._streams else 0):
            for descriptor in list(self._streams):
                self._read(descriptor)
        self._is_settled = True

    async def _result(self, timed_out: bool, disk_full: bool, duration_s: float) -> CommandResult:
        if self._failure and self._code is None:
            raise SandboxError(f"sandbox {self._keeper.sandbox_id}: a command can't be started: {self._failure}")
        if self._code is None and self._watcher is None and self._keeper.is_alive():
            raise SandboxError(f"sandbox {self._keeper.sandbox_id}: the joiner ended before a command; try it again")
        if self._code is None:
            await self._recover()
        counts = self._keeper.counts()
        number = 9 if self._code is None else os.WTERMSIG(self._code) if os.WIFSIGNALED(self._code) else None
        exit_code = None
        if number is None and self._code is not None:
            exit_code, number = exit_and_signal(os.WEXITSTATUS(self._code))
        stdout, stderr = self._captures["stdout"], self._captures["stderr"]
        return CommandResult(
            exit_code=None if timed_out else exit_code,
            signal=None if timed_out else number,
            stdout=stdout.data(),
            stderr=stderr.data(),
            truncated_bytes=stdout.truncated_bytes + stderr.truncated_bytes,
            timed_out=timed_out,
            oom=counts.oom_kills > self._before.oom_kills,
            duration_s=duration_s,
            pids_exceeded=counts.refused_forks > self._before.refused_forks,
            disk_full=disk_full,
        )

    async def _recover(self) -> None:
        """The watcher has died without a word. Raises SandboxError where the sandbox's end was the cause."""
        for _ in range(_DEATH_LOOKS):  # the first process of a namespace is the last to go
            if self._generation != self._keeper.generation:
                return
            if not self._keeper.is_alive():
                raise SandboxError(f"sandbox {self._keeper.sandbox_id}: closed or lost while a command ran")
            await asyncio.sleep(0.01)
        await self._keeper.reset()  # the watcher alone was killed: what it watched can't be told apart any more

    def _read(self, descriptor: int) -> bool:
        """Whether there may be more at once."""
        if descriptor not in self._streams:
            return False
        try:
            chunk = os.read(descriptor, _CHUNK)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return False
            chunk = b""
        if chunk and self._is_settled:
            self._pause(descriptor)
            return False
        if chunk:
            name = self._streams[descriptor]
            self._captures[name].feed(chunk)
            self._tails[name].feed(chunk)
            return True
        asyncio.get_running_loop().remove_reader(descriptor)
        del self._streams[descriptor]
        os.close(descriptor)
        if not self._streams:
            self._drained.set()
        return False

    def _pause(self, descriptor: int) -> None:
        """What a background process writes is thrown away, but not at any speed: the loop is everyone's."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(descriptor)

        def resume() -> None:
            if descriptor in self._streams:
                loop.add_reader(descriptor, self._read, descriptor)

        loop.call_later(PAUSE_S, resume)

    def _read_status(self) -> None:
        try:
            chunk = os.read(self._status_fd, 4096)
        except BlockingIOError:
            return
        self._status += chunk
        *lines, self._status = self._status.split(b"\n")
        for line in lines:
            word, _, rest = line.decode(errors="replace").partition(" ")
            if word == "pid":
                self._watcher = int(rest)
            elif word == "end":
                self._code = int(rest)
                self._ended.set()
            else:
                self._failure = rest
                self._ended.set()
            self._named.set()
        if not chunk:
            for event in (self._named, self._ended, self._gone):
                event.set()
            asyncio.get_running_loop().remove_reader(self._status_fd)
            self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        if self._supervision is not None:
            await asyncio.wait({self._supervision})
        self.detach()
        self._on_gone(self)


async def _wait(event: asyncio.Event, timeout_s: float) -> bool:
    if not event.is_set() and timeout_s > 0:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), timeout_s)
    return event.is_set()
