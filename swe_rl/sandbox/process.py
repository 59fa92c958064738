"""One host process under asyncio: bounded output, a deadline, and no thread for it.

argv -> Popen (vfork) -> the loop watches both pipes, a status pipe and the process's pidfd -> `ProcessResult`. What the
process isolates, and how its tree is killed, is the caller's business.
"""

import asyncio
import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from swe_rl.errors import SandboxTimeoutError
from swe_rl.sandbox.capture import Capture

KILL_GRACE_S = 5.0
MIN_STATUS_FD = 10  # a shell in between may redirect those of one digit, and so close the pipe unseen
_CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """`returncode` as subprocess gives it: negative for a signal. `status` is what came through the status pipe."""

    returncode: int
    stdout: Capture
    stderr: Capture
    status: bytes
    timed_out: bool
    duration_s: float


class Process:
    """A started process; `run` waits for it, `kill` (any time) ends it. `kill_tree(pid, status)` does the killing.

    `owner`: to whom the output pipes are given, since who can't open them can't write to /dev/stderr by its name.
    `env`: all that its environment holds.
    """

    def __init__(
        self, kill_tree: Callable[[int, bytes], None], owner: int | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self._kill_tree, self._owner, self._env = kill_tree, owner, dict(env or {})
        self._child: subprocess.Popen[bytes] | None = None
        self._status = Capture(4096)
        self._status_fd = -1
        self.is_killed = False

    async def run(
        self, argv: Callable[[int], Sequence[str]], stdin: bytes, timeout_s: float, limit_bytes: int
    ) -> ProcessResult:
        """`argv(status_fd)` builds the command line. Raises OSError where it can't be started (E2BIG among others)."""
        started = time.monotonic()
        stdout, stderr = Capture(limit_bytes), Capture(limit_bytes)
        with contextlib.ExitStack() as stack:
            self._status_fd, low = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            stack.callback(os.close, self._status_fd)
            try:
                status_write = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, MIN_STATUS_FD)
            finally:
                os.close(low)
            try:
                self._child = child = _start(argv(status_write), stdin, status_write, self._env)
            finally:
                os.close(status_write)
            assert child.stdout is not None and child.stderr is not None
            stack.callback(child.stdout.close)
            stack.callback(child.stderr.close)
            if self._owner is not None:
                for pipe in (child.stdout, child.stderr):
                    os.fchown(pipe.fileno(), self._owner, self._owner)
            streams = {child.stdout.fileno(): stdout, child.stderr.fileno(): stderr, self._status_fd: self._status}
            timed_out = await self._watch(child, streams, timeout_s)
        return ProcessResult(
            child.returncode, stdout, stderr, self._status.data(), timed_out, time.monotonic() - started
        )

    def kill(self) -> None:
        """Ends the tree; `run` then returns. Nothing happens where it has ended already."""
        child = self._child
        if child is not None and child.returncode is None:
            self.is_killed = True
            self._kill(child)

    def _kill(self, child: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(BlockingIOError):  # what tells which processes to kill may lie in the pipe still
            self._status.feed(os.read(self._status_fd, _CHUNK))
        self._kill_tree(child.pid, self._status.data())

    async def _watch(self, child: subprocess.Popen[bytes], streams: dict[int, Capture], timeout_s: float) -> bool:
        """Reads until all pipes are at their end and the process has been reaped; true if the deadline came first."""
        loop = asyncio.get_running_loop()
        ended, drained = asyncio.Event(), asyncio.Event()
        try:
            pidfd = os.pidfd_open(child.pid)
        except OSError:  # no descriptor is free: what can't be watched mustn't run
            self._end_now(child)
            raise
        open_fds = set(streams)

        def read(fd: int) -> None:
            try:
                chunk = os.read(fd, _CHUNK)
            except BlockingIOError:
                return
            if chunk:
                streams[fd].feed(chunk)
                return
            loop.remove_reader(fd)
            open_fds.discard(fd)
            if not open_fds:
                drained.set()

        def reap() -> None:
            loop.remove_reader(pidfd)
            child.wait()
            ended.set()

        try:
            for fd in streams:
                os.set_blocking(fd, False)
                loop.add_reader(fd, read, fd)
            loop.add_reader(pidfd, reap)
            is_late = not await _wait(ended, timeout_s)
            if is_late:
                await self._end(child, ended)
            await _wait(drained, KILL_GRACE_S)
            return is_late
        finally:
            for fd in open_fds:
                loop.remove_reader(fd)
            if not ended.is_set():  # cancelled
                loop.remove_reader(pidfd)
                self._end_now(child)
            os.close(pidfd)

    def _end_now(self, child: subprocess.Popen[bytes]) -> None:
        """Blocks until the process has been reaped: a moment, since nothing outlives SIGKILL for long."""
        self._kill(child)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(KILL_GRACE_S)
        child.kill()
        child.wait()

    async def _end(self, child: subprocess.Popen[bytes], ended: asyncio.Event) -> None:
        self._kill(child)
        if await _wait(ended, KILL_GRACE_S):
            return
        child.kill()
        if not await _wait(ended, KILL_GRACE_S):
            raise SandboxTimeoutError(f"process {child.pid}: still alive {2 * KILL_GRACE_S:g} s after SIGKILL")


async def _wait(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return False
    return True


def open_stdin(data: bytes) -> int:
    """A descriptor from which a command reads `data`: a memory file, so that nothing is pumped or can deadlock."""
    if not data:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    source = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(source, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(source, 0, os.SEEK_SET)
        fcntl.fcntl(source, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    except BaseException:
        os.close(source)
        raise
    return source


def _start(argv: Sequence[str], stdin: bytes, status_fd: int, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    source = open_stdin(stdin)
    try:
        return subprocess.Popen(
            argv,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=env,
            cwd="/",
            pass_fds=(status_fd,),
            start_new_session=True,
        )
    finally:
        os.close(source)
