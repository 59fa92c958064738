"""A small program beside the service that starts commands inside of namespaces which exist already.

It is run by its path, imports only the standard library, and stays lean, because each command is a fork of it:

    service --(socket: request, descriptors)--> joiner --fork--> watcher --fork--> command

The watcher lives in the sandbox's namespaces and is a subreaper, so that no descendant of the command can leave its
tree; it says through the status pipe how the command ended, and closes that pipe when the last descendant has gone.
The joiner decides nothing: whom to become, what to give up and what to run all comes with the request. It doesn't
pump output, and kills nothing.
"""

import array
import contextlib
import ctypes
import errno
import gc
import json
import os
import resource
import signal
import socket
import stat
import sys
from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 36, 38, 47, 4
SECCOMP_MODE_FILTER, WALL = 2, 0x4000_0000
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_SECCOMP_GET_FILTER = 17, 0x4206, 0x4207, 0x420C
CLONE_INTO_CGROUP, CLONE_NEWPID = 0x2_0000_0000, 0x2000_0000
CAPABILITY_VERSION_3 = 0x2008_0522
_NUMBERS = {"x86_64": (435, 126, 250, 13), "aarch64": (435, 91, 219, 134)}
CLONE3, CAPSET, KEYCTL, SIGACTION = _NUMBERS.get(os.uname().machine, (0, 0, 0, 0))
KEYCTL_JOIN_SESSION_KEYRING, MAX_INSTRUCTIONS = 1, 4096
MAX_DESCRIPTORS = 64  # six, and one a control group: version 1 has up to fourteen of these
MAX_OPEN = 4096  # far more than the joiner ever holds
# A terminal's: the service ends first, and says so by closing. PIPE: of a command that the service has given up.
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)  # here: no command inherits it
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = _libc.syscall.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def main(channel: socket.socket) -> None:
    """Serves requests until the other end is closed."""
    channel.set_inheritable(False)  # it came through an exec: no command may ever hold it
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Watchers whose step has ended come here too: a namespace doesn't end before its dead are reaped.
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _hide_command_line()
    _drop_bounding_set()  # what may be gained by executing: no command has it
    _default_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps; watchers set it back
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()
    gc.disable()
    own_processes = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    while True:
        descriptors = array.array("i")
        room = socket.CMSG_SPACE(MAX_DESCRIPTORS * descriptors.itemsize)
        kind, ancillary, _, _ = channel.recvmsg(4096, room, socket.MSG_CMSG_CLOEXEC)
        if not kind:
            return
        for _, _, data in ancillary:
            descriptors.frombytes(data)
        if kind == b"start":
            _start(own_processes, *descriptors)
        else:
            channel.send(_answer(int(kind)))
        for descriptor in descriptors:
            os.close(descriptor)


def _start(own_processes: int, request_fd: int, pidfd: int, status: int, *rest: int) -> None:
    """Forks a watcher into the sandbox's process namespace."""
    try:
        with open(request_fd, "rb", closefd=False) as file:
            request = json.load(file)
        if request["user"] is None:
            if os.fork() == 0:  # there's no way back from a user namespace, so a step between goes there
                _step(request, pidfd, status, rest)
            return
        _enter(pidfd, CLONE_NEWPID)
        try:
            _fork_watcher(request, pidfd, status, rest)
        finally:
            _enter(own_processes, CLONE_NEWPID)
    except (OSError, ValueError) as error:
        _say(status, f"fail {type(error).__name__}: {error}")


def _step(request: dict[str, Any], pidfd: int, status: int, rest: tuple[int, ...]) -> NoReturn:
    try:
        _enter(pidfd, request["namespaces"])
        _fork_watcher(request, pidfd, status, rest)
        os._exit(0)
    except BaseException as error:
        _fail(status, error)


def _fork_watcher(request: dict[str, Any], pidfd: int, status: int, rest: tuple[int, ...]) -> None:
    watcher = os.fork()
    if watcher == 0:
        _watch(request, pidfd, status, list(rest[:3]), list(rest[3:]))
    _say(status, f"pid {watcher}")


def _enter(descriptor: int, namespaces: int) -> None:
    if _libc.setns(descriptor, namespaces) != 0:
        raise _error("setns")


def _watch(request: dict[str, Any], pidfd: int, status: int, streams: list[int], cgroups: list[int]) -> NoReturn:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if request["user"] is not None:
            _enter(pidfd, request["namespaces"])
        if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) or _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
            raise _error("prctl")
        os.setsid()
        os.chdir("/")
        command = _clone_into(cgroups.pop()) if request["is_born_in_cgroup"] else os.fork()
        if command == 0:
            _become(request, status, streams, cgroups)
        _close_all_but(status, first=0)
        while True:
            pid, code = os.waitpid(-1, 0)
            if pid == command:
                _say(status, f"end {code}")
    except ChildProcessError:
        os._exit(0)
    except BaseException as error:
        _fail(status, error)


def _become(request: dict[str, Any], status: int, streams: list[int], cgroups: list[int]) -> NoReturn:
    """Gives up everything that the request names, in an order in which each step is still allowed; then executes."""
    try:
        for descriptor in cgroups:
            os.write(descriptor, b"0")
        for number, soft, hard in request["rlimits"]:
            resource.setrlimit(number, (soft, hard))
        if request["nice"] is not None:
            os.setpriority(os.PRIO_PROCESS, 0, request["nice"])
        if request["oom_score_adj"] is not None:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write(str(request["oom_score_adj"]))
        os.setsid()
        os.umask(0o022)
        _libc.syscall(KEYCTL, KEYCTL_JOIN_SESSION_KEYRING, None)  # the service's keys aren't the command's
        for target, descriptor in enumerate(streams):
            os.dup2(descriptor, target)
            if request["user"] is not None and stat.S_ISFIFO(os.fstat(target).st_mode):
                os.fchown(target, request["user"], request["user"])  # else it couldn't open /dev/stderr
        _close_all_but(status, first=3)
        _give_up_rights(request["user"], request["groups"])
        for number in _IGNORED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise _error("no_new_privs")
        has_directory = False
        with contextlib.suppress(OSError):
            os.chdir(request["cwd"])
            has_directory = True
        for text in request["filters"]:
            program = bytes.fromhex(text)
            loaded = ctypes.byref(_Program(len(program) // 8, program))
            if _libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, loaded, 0, 0) != 0:
                raise _error("seccomp")
    except BaseException as error:
        _fail(status, error)
    if not has_directory:
        _refuse(f"no such directory: {request['cwd']}", 126)
    _execute(request["argv"], request["env"])


def _close_all_but(kept: int, first: int) -> None:
    os.closerange(first, kept)
    os.closerange(max(first, kept + 1), MAX_OPEN)


def _give_up_rights(user: int | None, groups: list[int]) -> None:
    """`user` None: stays who it is, in a user namespace where it is nobody else."""
    if user is not None:
        os.setgroups(groups)
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    else:
        _drop_bounding_set()  # entering a user namespace has filled it
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, nothing = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if _libc.syscall(CAPSET, header, nothing) != 0:
        raise _error("capset")


def _drop_bounding_set() -> None:
    number = 0
    while _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1
    if ctypes.get_errno() != errno.EINVAL and os.geteuid() == 0:
        raise _error("capability bounding set")


def _default_signals() -> None:
    """What whoever started the service ignores, no command should; the C library keeps two signals for itself."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    for hidden in range(32, signal.SIGRTMIN):
        _libc.syscall(SIGACTION, hidden, bytes(64), None, 8)


def _hide_command_line() -> None:
    """Watchers can be seen from inside of a sandbox: nobody there should read paths of the host."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    ctypes.memmove(start, b"watcher".ljust(end - start, b"\0"), end - start)


def _execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without its first line, which every shell runs by itself
            os.execve("/bin/sh", ["sh", *argv], env)
        if error.errno == errno.E2BIG:
            _refuse("argument list too long", 126)
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            _refuse(f"{argv[0]}: not found", 127)
        _refuse(f"{argv[0]}: {error.strerror}", 126)
    except ValueError as error:
        _refuse(f"not a command line: {error}", 126)


def _refuse(message: str, code: int) -> NoReturn:
    os.write(2, f"sandbox: {message}\n".encode(errors="backslashreplace"))
    os._exit(code)


def _fail(status: int, error: BaseException) -> NoReturn:
    _say(status, f"fail {type(error).__name__}: {error}")
    os._exit(1)


def _say(status: int, text: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the service has given the command up
        os.write(status, f"{text}\n".encode(errors="replace"))


def _clone_into(cgroup: int) -> int:
    """fork into a control group (version 2), without the global lock that moving a process there takes."""
    arguments = (ctypes.c_uint64 * 11)(CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, cgroup)
    pid = int(_libc.syscall(CLONE3, arguments, ctypes.sizeof(arguments)))
    if pid < 0:
        raise _error("clone3")
    return pid


def _answer(pid: int) -> bytes:
    try:
        return json.dumps({"filters": _filters(pid)}).encode()
    except OSError as error:
        return json.dumps({"error": str(error)}).encode()


def _filters(pid: int) -> list[str]:
    """The seccomp programs that hold for a process, in the order in which they were put on; needs root."""
    if _libc.ptrace(PTRACE_SEIZE, pid, None, None) != 0:
        raise _error(f"ptrace {pid}")
    try:
        if _libc.ptrace(PTRACE_INTERRUPT, pid, None, None) != 0:
            raise _error(f"ptrace {pid}")
        os.waitpid(pid, WALL)
        programs: list[str] = []
        buffer = ctypes.create_string_buffer(MAX_INSTRUCTIONS * 8)
        while True:
            length = _libc.ptrace(PTRACE_SECCOMP_GET_FILTER, pid, len(programs), buffer)
            if length < 0:
                if ctypes.get_errno() in (errno.ENOENT, errno.EINVAL):
                    return programs[::-1]
                raise _error(f"seccomp filter of {pid}")
            programs.append(buffer.raw[: length * 8].hex())
    finally:
        _libc.ptrace(PTRACE_DETACH, pid, None, None)


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
