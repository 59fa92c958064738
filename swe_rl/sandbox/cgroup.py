"""One control group a sandbox, for memory and the number of processes: version 1 or 2, where this user may make one.

RLIMIT_AS can't replace it: node, Java and Go reserve far more address space than they use. Without a writable
hierarchy `open_cgroups` gives None and the caller falls back on limits of single processes.
"""

import contextlib
import logging
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

logger = logging.getLogger(__name__)

MOUNT = Path("/sys/fs/cgroup")
_PREFIX = "swe-rl-"


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The directories of one group: memory's and pids' differ in version 1, and are the same in version 2."""

    memory: Path
    pids: Path
    is_v2: bool

    @property
    def join_files(self) -> tuple[str, ...]:
        """Files into which a process of one thread writes 0 to enter the group."""
        # Version 1 can move a thread without the global lock that moving a process waits for (many milliseconds).
        name = "cgroup.procs" if self.is_v2 else "tasks"
        return tuple(str(d / name) for d in dict.fromkeys((self.memory, self.pids)))

    def num_oom_kills(self) -> int:
        """How often the kernel has killed in this group for want of memory."""
        text = (self.memory / ("memory.events" if self.is_v2 else "memory.oom_control")).read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))

    def kill(self) -> None:
        """SIGKILL to every process inside; a fork bomb may need a second call."""
        with contextlib.suppress(OSError):
            for pid in (self.pids / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> bool:
        """False while a process is still inside."""
        for directory in dict.fromkeys((self.memory, self.pids)):
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


class CgroupTree:
    """The parent of this process's groups."""

    def __init__(self, memory: Path, pids: Path, is_v2: bool) -> None:
        self._memory, self._pids, self._is_v2 = memory, pids, is_v2

    def create(self, memory_mb: int, num_pids: int) -> Cgroup:
        """Raises OSError where the kernel refuses."""
        name = uuid4().hex[:16]
        group = Cgroup(self._memory / name, self._pids / name, self._is_v2)
        for directory in dict.fromkeys((group.memory, group.pids)):
            directory.mkdir()
        limit = str(memory_mb * 1024 * 1024)
        if self._is_v2:
            _write(group.memory / "memory.max", limit)
            _write(group.memory / "memory.swap.max", "0", is_optional=True)
        else:
            _write(group.memory / "memory.limit_in_bytes", limit)
            _write(group.memory / "memory.memsw.limit_in_bytes", limit, is_optional=True)
        _write(group.pids / "pids.max", str(num_pids))
        return group

    def close(self) -> None:
        """Kills and removes whatever is left below."""
        _remove_below(self._memory)
        _remove_below(self._pids)


def open_cgroups() -> CgroupTree | None:
    """A tree of groups for this process, or None (logged) where no hierarchy can be written."""
    is_v2 = (MOUNT / "cgroup.controllers").exists()
    name = f"{_PREFIX}{os.getpid()}-{uuid4().hex[:8]}"
    try:
        if is_v2:
            parent = _open_v2(name)
            tree = CgroupTree(parent, parent, True)
        else:
            memory, pids = _own_v1("memory"), _own_v1("pids")
            for parent in (memory, pids):
                _remove_stale(parent)
                (parent / name).mkdir()
            tree = CgroupTree(memory / name, pids / name, False)
        tree.create(64, 16).remove()
    except OSError as error:
        logger.info("no writable control group (%s): limits hold for each process, not for a sandbox", error)
        return None
    return tree


def _own_v1(controller: str) -> Path:
    mount = MOUNT / controller
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") and (mount / path.lstrip("/")).is_dir():
            return mount / path.lstrip("/")
    return mount


def _open_v2(name: str) -> Path:
    # Below the root, not below our own group: a group that holds processes can't hand controllers to its children.
    _remove_stale(MOUNT)
    parent = MOUNT / name
    parent.mkdir()
    try:
        _write(parent / "cgroup.subtree_control", "+memory +pids")
    except OSError:
        parent.rmdir()
        raise
    return parent


def _remove_stale(parent: Path) -> None:
    for directory in parent.glob(f"{_PREFIX}*-*"):
        pid = directory.name.removeprefix(_PREFIX).split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _remove_below(directory)


def _remove_below(parent: Path) -> None:
    for directory in [*parent.glob("*/"), parent]:
        Cgroup(directory, directory, True).kill()
        with contextlib.suppress(OSError):
            directory.rmdir()


def _write(path: Path, text: str, is_optional: bool = False) -> None:
    if is_optional and not path.exists():
        return
    path.write_text(text)
