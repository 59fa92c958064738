"""How a command loses its rights under bwrap, and the fixed part of bwrap's arguments that follows from it.

An unprivileged service uses a user namespace, in which the command has the service's own host identity. A service that
is root must not: host root without capabilities still owns /dev/null and may write /proc/sys. It builds the mounts
as root instead; the command then becomes USER_ID for good. Only pid 1, a shell of ours, stays root: the kernel doesn't
deliver bwrap's --die-with-parent across users. The command has no capabilities, no_new_privs and a seccomp filter.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from swe_rl.errors import SandboxUnavailableError
from swe_rl.sandbox.environment import USER_ID
from swe_rl.sandbox.seccomp import build_filter

FILTER_FD = 9


@dataclass(frozen=True, slots=True)
class Confinement:
    """`owner`: the host user to whom a session's files belong, None for the service's own. `drop`: comes before the
    command. `filter_file`: is opened as FILTER_FD."""

    arguments: tuple[str, ...]
    drop: tuple[str, ...]
    owner: int | None
    filter_file: Path | None


def choose_confinement(bwrap: str, home: Path) -> Confinement:
    """Writes the filter below `home`. Raises SandboxUnavailableError where root can't become another user."""
    arguments = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    arguments += ["--die-with-parent", "--new-session", "--clearenv", "--as-pid-1", "--hostname", "sandbox"]
    program = build_filter()
    filter_file = home / "seccomp.bpf" if program is not None else None
    if program is not None and filter_file is not None:
        filter_file.write_bytes(program)
        arguments += ["--seccomp", str(FILTER_FD)]
    if os.geteuid() != 0:
        arguments += ["--unshare-user", "--uid", str(USER_ID), "--gid", str(USER_ID)]
        if _has_option(bwrap, "--disable-userns"):
            arguments.append("--disable-userns")
        return Confinement(tuple(arguments), (), None, filter_file)
    setpriv = shutil.which("setpriv", path="/usr/bin:/bin:/usr/sbin:/sbin")
    if setpriv is None:
        raise SandboxUnavailableError(
            "bubblewrap: root needs `setpriv` to give up its rights; install util-linux, or run as another user"
        )
    arguments += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    user = str(USER_ID)
    drop = (setpriv, "--reuid", user, "--regid", user, "--clear-groups", "--inh-caps=-all", "--no-new-privs", "--")
    return Confinement(tuple(arguments), drop, USER_ID, filter_file)


def _has_option(bwrap: str, option: str) -> bool:
    shown = subprocess.run([bwrap, "--help"], capture_output=True, text=True, timeout=20, check=False)
    return option in shown.stdout + shown.stderr
