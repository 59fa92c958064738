"""The long-lived process that keeps a bubblewrap session's namespaces, so that commands can join them.

bwrap (pid 1 inside, it reaps) -> `cat`, whose standard input is a pipe from here: it ends with the service, whatever
happens to signals. The command line of bwrap passes through a memory file, because it can be read from inside.
"""

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence

from swe_rl.errors import SandboxError, SandboxTimeoutError
from swe_rl.sandbox.confinement import Confinement

logger = logging.getLogger(__name__)

START_S = 20.0
_KEEP = ("/bin/cat",)


class Holder:
    """`pidfd` is pid 1's of the sandbox from `start` to `close`."""

    def __init__(self, bwrap: str, arguments: Sequence[str], confinement: Confinement) -> None:
        self._bwrap, self._arguments = bwrap, tuple(arguments)
        self._filter_file, self._label = confinement.filter_file, confinement.label
        self._child: subprocess.Popen[bytes] | None = None
        self._init_pid = -1
        self.pidfd = -1

    @property
    def is_alive(self) -> bool:
        return is_process_alive(self.pidfd)

    def start(self) -> None:
        """Blocking. Raises SandboxError with bwrap's own words, SandboxTimeoutError."""
        with contextlib.ExitStack() as stack:
            status, status_write = os.pipe2(os.O_CLOEXEC)
            stack.callback(os.close, status)
            words = _memory_file(stack, b"".join(os.fsencode(a) + b"\0" for a in self._all_arguments(stack)))
            argv = [self._bwrap, "--args", str(words), "--json-status-fd", str(status_write), "--", *_KEEP]
            passed = (words, status_write, *self._passed)
            try:
                self._child = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    env=self._label,
                    cwd="/",
                    pass_fds=passed,
                    start_new_session=True,
                )
            except OSError as error:
                raise SandboxError(f"bubblewrap: can't be started: {error}") from error
            finally:
                os.close(status_write)
            try:
                self._await_ready(status)
            except BaseException:
                self.kill()
                raise

    def kill(self) -> None:
        """Blocking, a moment: kills pid 1, and with it all inside; frees what was held. Safe to call twice."""
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        child = self._child
        if child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(5.0 if self.pidfd >= 0 else 0)
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream is not None:
                    stream.close()
            self._child = None
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def _all_arguments(self, stack: contextlib.ExitStack) -> list[str]:
        self._passed: tuple[int, ...] = ()
        if self._filter_file is None:
            return list(self._arguments)
        descriptor = os.open(self._filter_file, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        self._passed = (descriptor,)
        return [*self._arguments, "--seccomp", str(descriptor)]

    def _await_ready(self, status: int) -> None:
        """`cat` gives back a byte when it runs, and it runs when all mounts are made."""
        child = self._child
        assert child is not None and child.stdin is not None and child.stdout is not None and child.stderr is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(b"\n")
        if not _is_readable(child.stdout.fileno(), START_S):
            raise SandboxTimeoutError(f"bubblewrap: no sandbox within {START_S:g} s")
        if child.stdout.read(1) != b"\n":
            child.kill()
            seen = child.stderr.read().decode(errors="replace").strip()
            raise SandboxError(f"bubblewrap: the sandbox can't be set up: {seen[-500:]}")
        self._init_pid = json.loads(os.read(status, 4096).splitlines()[0])["child-pid"]
        self.pidfd = os.pidfd_open(self._init_pid)  # bwrap, our child, hasn't reaped it: it has just answered


def is_process_alive(pidfd: int) -> bool:
    """False too for -1."""
    if pidfd < 0:
        return False
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return not poll.poll(0)


def _is_readable(descriptor: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if poll.poll(max(1.0, (deadline - time.monotonic()) * 1000)):
            return True
    return False


def _memory_file(stack: contextlib.ExitStack, data: bytes) -> int:
    descriptor = os.memfd_create("arguments", os.MFD_CLOEXEC)
    stack.callback(os.close, descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
