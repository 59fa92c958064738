"""How a command loses its rights under bwrap, and the fixed part of bwrap's arguments that follows from it.

An unprivileged service uses a user namespace, in which the command has the service's own host identity. A service that
is root must not: host root without capabilities still owns /dev/null and may write /proc/sys. It builds the mounts
as root instead; the command then becomes USER_ID for good. Only pid 1, a program of ours, stays root: the kernel
doesn't deliver bwrap's --die-with-parent across users. The command has no capabilities, no_new_privs and a filter of
system calls.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swe_rl.errors import SandboxUnavailableError
from swe_rl.sandbox.environment import USER_ID
from swe_rl.sandbox.scratch import label
from swe_rl.sandbox.seccomp import build_filter

FILTER_FD = 9
_KERNEL_SETTINGS = ("/proc/sys", "/proc/sysrq-trigger", "/proc/fs")


@dataclass(frozen=True, slots=True)
class Confinement:
    """`arguments`: for every sandbox; `alone`: more of them for one that is made for a single command, which gets rid
    of its rights by `drop`. `owner`: the host user to whom a session's files belong and whom its commands become, None
    for the service's own. `proc_binds`: what goes over a fresh /proc, so that root inside can't set the host's kernel,
    either. `filter_file` holds `program` and is opened as FILTER_FD. `label`: bwrap's own environment, by which what
    outlives the service is found; no command sees it."""

    arguments: tuple[str, ...]
    alone: tuple[str, ...]
    drop: tuple[str, ...]
    owner: int | None
    proc_binds: tuple[str, ...]
    filter_file: Path | None
    program: bytes | None
    label: Mapping[str, str]


def choose_confinement(bwrap: str, home: Path) -> Confinement:
    """Writes the filter below `home`. Raises SandboxUnavailableError where root can't become another user."""
    arguments = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    arguments += ["--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"]
    alone = ["--as-pid-1"]
    program = build_filter()
    filter_file = home / "seccomp.bpf" if program is not None else None
    if program is not None and filter_file is not None:
        filter_file.write_bytes(program)
        alone += ["--seccomp", str(FILTER_FD)]
    if os.geteuid() != 0:
        arguments += ["--unshare-user", "--uid", str(USER_ID), "--gid", str(USER_ID)]
        # Only there: the user namespace in the user namespace that it makes couldn't be joined. The filter forbids more
        # of them anyway.
        if _has_option(bwrap, "--disable-userns"):
            alone.append("--disable-userns")
        return Confinement(tuple(arguments), tuple(alone), (), None, (), filter_file, program, label(home))
    setpriv = shutil.which("setpriv", path="/usr/bin:/bin:/usr/sbin:/sbin")
    if setpriv is None:
        raise SandboxUnavailableError(
            "bubblewrap: root needs `setpriv` to give up its rights; install util-linux, or run as another user"
        )
    alone += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    user = str(USER_ID)
    drop = (setpriv, "--reuid", user, "--regid", user, "--clear-groups", "--inh-caps=-all", "--no-new-privs", "--")
    binds = [word for path in _KERNEL_SETTINGS if os.path.exists(path) for word in ("--ro-bind", path, path)]
    return Confinement(tuple(arguments), tuple(alone), drop, USER_ID, tuple(binds), filter_file, program, label(home))


def _has_option(bwrap: str, option: str) -> bool:
    shown = subprocess.run([bwrap, "--help"], capture_output=True, text=True, timeout=20, check=False)
    return option in shown.stdout + shown.stderr
