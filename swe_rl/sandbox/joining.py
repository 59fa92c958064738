"""The service's end of the joiner: where a command is to run, as whom, and the request that starts it there.

    Place (a live sandbox: namespaces, control groups, rights to give up) + argv -> Joiner.start -> joiner process

The joiner is one child for all sandboxes of a backend; it is started at the first use, and again where it has died.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swe_rl.errors import SandboxError, SandboxTimeoutError
from swe_rl.sandbox.cgroup import Entrance

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000
ALL_NAMESPACES = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
ANSWER_S = 20.0
_PROGRAM = Path(__file__).with_name("joiner.py")
_MAX_ANSWER = 1 << 20
# Where the command is whom the service is, its first file mustn't be of its choice: `#!/proc/self/exe` would name the
# joiner's own interpreter on the host, for which this user may have the right to write.
_THROUGH_SHELL = ("/bin/sh", "-c", 'exec "$@"', "sandbox")


@dataclass(frozen=True, slots=True)
class Place:
    """`pidfd`: any process of the sandbox, whose `namespaces` are entered. `user`: None where a user namespace has one
    identity only. `groups`: supplementary. `filters`: seccomp programs. `rlimits`: (resource, soft, hard) each.
    `entrance`: into a control group. `oom_score_adj`, `nice`: None where the service's own are right."""

    pidfd: int
    namespaces: int
    user: int | None
    filters: tuple[bytes, ...]
    rlimits: tuple[tuple[int, int, int], ...] = ()
    entrance: Entrance = Entrance((), None)
    groups: tuple[int, ...] = ()
    oom_score_adj: int | None = None
    nice: int | None = None

    @property
    def cgroups(self) -> tuple[int, ...]:
        directory = self.entrance.directory
        return (*self.entrance.files, *(() if directory is None else (directory,)))

    def request(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> bytes:
        """Raises ValueError for what can't be a command line."""
        if not argv:
            raise ValueError("no words")
        if any("\0" in word for word in (*argv, *env.keys(), *env.values())):
            raise ValueError("embedded null byte")
        return json.dumps(
            {
                "argv": [*(_THROUGH_SHELL if self.user is None else ()), *argv],
                "env": dict(env),
                "cwd": cwd,
                "namespaces": self.namespaces,
                "user": self.user,
                "groups": self.groups,
                "filters": [program.hex() for program in self.filters],
                "rlimits": self.rlimits,
                "is_born_in_cgroup": self.entrance.directory is not None,
                "oom_score_adj": self.oom_score_adj,
                "nice": self.nice,
            }
        ).encode()


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The command's three streams, and where the joiner tells how it goes."""

    stdin: int
    stdout: int
    stderr: int
    status: int


class Joiner:
    """Safe to use from several threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._is_closed = False

    def start(self, place: Place, request: bytes, descriptors: Descriptors) -> None:
        """Hands a command over; its fate comes through the status pipe. Raises SandboxError."""
        passed = [place.pidfd, descriptors.status, descriptors.stdin, descriptors.stdout, descriptors.stderr]
        body = os.memfd_create("request", os.MFD_CLOEXEC)
        try:
            with open(body, "wb", closefd=False) as file:
                file.write(request)
            os.lseek(body, 0, os.SEEK_SET)
            with self._guard:
                try:
                    socket.send_fds(self._open(), [b"start"], [body, *passed, *place.cgroups])
                except ConnectionError:  # it has been killed: what it had started goes on without it
                    self._reopen()
                    socket.send_fds(self._open(), [b"start"], [body, *passed, *place.cgroups])
        except OSError as error:
            raise SandboxError(f"joiner: a command can't be handed over: {error}") from error
        finally:
            os.close(body)

    def filters(self, pid: int) -> tuple[bytes, ...]:
        """The seccomp programs of a process; blocking. Raises SandboxError where the kernel doesn't tell."""
        with self._guard:
            channel = self._open()
            try:
                channel.send(b"%d" % pid)
                answer = json.loads(channel.recv(_MAX_ANSWER))
            except TimeoutError as error:
                self._reopen()
                raise SandboxTimeoutError(f"joiner: no answer within {ANSWER_S:g} s") from error
            except (OSError, ValueError) as error:
                self._reopen()
                raise SandboxError(f"joiner: ended while it was asked: {error}") from error
        if "error" in answer:
            raise SandboxError(f"joiner: {answer['error']}")
        return tuple(bytes.fromhex(program) for program in answer["filters"])

    def close(self) -> None:
        """Ends it; safe to call twice."""
        with self._guard:
            self._is_closed = True
            self._end()

    def _open(self) -> socket.socket:
        if self._is_closed:
            raise SandboxError("joiner: the backend is closed")
        if self._channel is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                ours.settimeout(ANSWER_S)
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _MAX_ANSWER)
                argv = [sys.executable, "-I", "-S", "-E", "-B", str(_PROGRAM), str(theirs.fileno())]
                self._child = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, env={}, cwd="/", pass_fds=(theirs.fileno(),), close_fds=True
                )
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
            self._channel = ours
        return self._channel

    def _reopen(self) -> None:
        self._end()
        self._open()

    def _end(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(1.0)
            self._child.kill()
            self._child.wait()
            self._child = None
