"""How a container of this very host can be entered directly: exactly as an exec by the engine would enter it.

What an exec gets is read from the running container (namespaces, control groups, limits, the seccomp programs of its
first process) and from one exec by the engine (supplementary groups); a probe that has entered directly must then see
in /proc what the engine's exec saw. Where anything can't be told or differs, there is no access and the reason is
logged; commands then go through the engine. Needs a service that is root in the engine's process namespace; containers
under a label of AppArmor or SELinux are left to the engine.
"""

import asyncio
import contextlib
import logging
import os
import re
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from docker.models.containers import Container

from swe_rl.errors import SandboxError
from swe_rl.sandbox.cgroup import Cgroup
from swe_rl.sandbox.disk import Disk, WatchedSize
from swe_rl.sandbox.environment import USER_ID
from swe_rl.sandbox.joining import ALL_NAMESPACES, Joiner, Place

logger = logging.getLogger(__name__)
A = TypeVar("A", bound="Access | None")

REFERENCE = ("/bin/sh", "-c", "cat /proc/self/status /proc/self/cgroup; for n in /proc/self/ns/*; do readlink $n; done")
_COMPARED = ("Uid", "Gid", "Groups", "Umask", "Cap", "NoNewPrivs", "Seccomp", "Speculation", "Cpus_allowed_list")
_CGROUPS = Path("/sys/fs/cgroup")
_LIMITS = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})


@dataclass
class Access:
    """Descriptors of a live container, until `close`; `root_fd` is its root directory's."""

    pid: int
    pidfd: int
    root_fd: int
    place: Place
    cgroup: Cgroup

    def close(self) -> None:
        """Safe to call twice."""
        self.cgroup.close()
        for descriptor in (self.pidfd, self.root_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self.pidfd = self.root_fd = -1


def open_access(container: Container, joiner: Joiner, groups: tuple[int, ...]) -> Access | None:
    """Blocking. None, logged, where the container can't be entered from here. `groups` as an exec by the engine has."""
    try:
        return _open(container, joiner, groups)
    except (OSError, SandboxError, ValueError, KeyError, IndexError) as error:
        logger.info("container %s: commands go through the engine: %s", container.name, error)
        return None


async def await_access(opening: "asyncio.Future[A]") -> A:
    """What a thread opens; where nobody waits for it any more, it's closed."""
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close)
        raise


def comparable(text: str) -> list[str]:
    """The lines of a REFERENCE's output that must be the same for every way in."""
    lines = text.splitlines()
    return [line.strip() for line in lines if line.startswith(_COMPARED) or re.match(r"\d+:|\w+:\[", line)]


def groups_of(text: str) -> tuple[int, ...]:
    """Supplementary groups in a REFERENCE's output."""
    found = re.search(r"^Groups:(.*)$", text, re.MULTILINE)
    if found is None:
        raise SandboxError(f"docker: an exec's /proc/self/status has no line Groups: {text!r:.200}")
    return tuple(int(group) for group in found[1].split())


def open_disk_of(container: Container, limit_mb: int) -> Disk | None:
    """What the container writes, where this process may see the engine's files; else None."""
    upper = (container.attrs.get("GraphDriver", {}).get("Data") or {}).get("UpperDir")
    if not upper or not os.access(upper, os.R_OK | os.X_OK):
        return None
    return WatchedSize((Path(upper),), limit_mb)


def cgroup_of(container: Container) -> Cgroup:
    """The control groups of the container's first process, as this host names them. Raises OSError, ValueError."""
    pid = int(container.attrs["State"]["Pid"])
    is_v2 = (_CGROUPS / "cgroup.controllers").exists()
    directories, unified = {}, None
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if container.id not in path:
            raise ValueError(f"process {pid} of this host isn't in a control group of the container")
        if controllers:
            name = controllers.removeprefix("name=").split(",")[0]
            directories[name] = _CGROUPS / name / path.lstrip("/")
        elif not is_v2:
            unified = _CGROUPS / "unified" / path.lstrip("/")
        else:
            directories = dict.fromkeys(("memory", "pids", "cpu", "freezer"), _CGROUPS / path.lstrip("/"))
    missing = [str(d) for d in directories.values() if not d.is_dir()] or [
        name for name in ("memory", "pids", "freezer") if name not in directories
    ]
    if missing:
        raise ValueError(f"no control group {missing[0]}")
    return Cgroup(directories, is_v2, unified if unified is not None and unified.is_dir() else None)


def _open(container: Container, joiner: Joiner, groups: tuple[int, ...]) -> Access:
    if os.geteuid() != 0:
        raise ValueError("the service isn't root")
    container.reload()
    attributes = container.attrs
    for label in (attributes.get("AppArmorProfile"), attributes.get("ProcessLabel")):
        if label not in ("", None, "unconfined"):
            raise ValueError(f"it runs under the label {label}")
    pid = int(attributes["State"]["Pid"])
    with contextlib.ExitStack() as stack:
        pidfd = _open_for(stack, lambda: os.pidfd_open(pid))
        cgroup = cgroup_of(container)  # after the pidfd: so it is this process that is in the container's group
        stack.callback(cgroup.close)
        if os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user"):
            raise ValueError("it has a user namespace of its own")
        _require_bare(pid)
        root_fd = _open_for(stack, lambda: os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        place = Place(
            pidfd=pidfd,
            namespaces=ALL_NAMESPACES,
            user=USER_ID,
            filters=joiner.filters(pid),
            rlimits=_other_limits(pid),
            entrance=cgroup.entrance(),
            groups=groups,
            oom_score_adj=_other_oom_score(pid),
            nice=os.getpriority(os.PRIO_PROCESS, pid),
        )
        os.kill(pid, 0)
        stack.pop_all()
    return Access(pid, pidfd, root_fd, place, cgroup)


def _close(opening: "asyncio.Future[Any]") -> None:
    if not opening.cancelled() and opening.exception() is None and opening.result() is not None:
        opening.result().close()


def _open_for(stack: contextlib.ExitStack, opened: Callable[[], int]) -> int:
    descriptor = opened()
    stack.callback(os.close, descriptor)
    return descriptor


def _require_bare(pid: int) -> None:
    """The first process must have no rights that a command would have to be given or kept from."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Cap")
    )
    if any(int(value, 16) for value in status.values()):
        raise ValueError("it has capabilities")


def _other_limits(pid: int) -> tuple[tuple[int, int, int], ...]:
    found = []
    for number in _LIMITS:
        theirs = resource.prlimit(pid, number)
        if theirs != resource.getrlimit(number):
            found.append((number, *theirs))
    return tuple(found)


def _other_oom_score(pid: int) -> int | None:
    theirs, ours = (int(Path(f"/proc/{who}/oom_score_adj").read_text()) for who in (pid, "self"))
    return None if theirs == ours else theirs
