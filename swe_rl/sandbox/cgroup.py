"""One control group a sandbox: memory, processes, CPU time, and a freezer; version 1 or 2, where one may be made.

RLIMIT_AS can't replace it: node, Java and Go reserve far more address space than they use. Without a writable
hierarchy `open_cgroups` gives None and the caller falls back on limits of single processes.
"""

import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from swe_rl.sandbox.base import Limits
from swe_rl.sandbox.instance import is_dead

logger = logging.getLogger(__name__)

MOUNT = Path("/sys/fs/cgroup")
CONTROLLERS = ("memory", "pids", "cpu", "freezer")
FREEZE_S = 0.5
_PREFIX = "swe-rl-"
_PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class Counts:
    """How often a limit has been met so far."""

    oom_kills: int = 0
    refused_forks: int = 0


@dataclass(frozen=True, slots=True)
class Entrance:
    """Descriptors by which a command enters a group: `files` get 0 written, into `directory` (version 2) it is born."""

    files: tuple[int, ...]
    directory: int | None


@dataclass
class Cgroup:
    """`directories`: by controller; all the same one in version 2. Made by others (an engine) or by a CgroupTree.

    `unified`: the directory of version 2 that goes along with those of version 1, where an engine has made one.
    """

    directories: dict[str, Path]
    is_v2: bool
    unified: Path | None = None
    _entrance: Entrance | None = field(default=None, repr=False)

    @property
    def _distinct(self) -> list[Path]:
        return list(dict.fromkeys(self.directories.values()))

    def entrance(self) -> Entrance:
        """Held until `close`."""
        if self._entrance is None:
            # In version 1 a thread is moved without the global lock that moving a process waits for (milliseconds).
            old = [] if self.is_v2 else self._distinct
            new = self._distinct[0] if self.is_v2 else self.unified
            with contextlib.ExitStack() as stack:  # the group may vanish in between
                opened = []
                for path, flags in [*((d / "tasks", os.O_WRONLY) for d in old), (new, os.O_RDONLY | os.O_DIRECTORY)]:
                    if path is not None:
                        opened.append(os.open(path, flags | os.O_CLOEXEC))
                        stack.callback(os.close, opened[-1])
                stack.pop_all()
            self._entrance = Entrance(tuple(opened[: len(old)]), opened[-1] if new is not None else None)
        return self._entrance

    @property
    def join_files(self) -> tuple[str, ...]:
        """Files into which a shell writes 0 to enter the group."""
        return tuple(str(d / ("cgroup.procs" if self.is_v2 else "tasks")) for d in self._distinct)

    def counts(self) -> Counts:
        memory = "memory.events" if self.is_v2 else "memory.oom_control"
        return Counts(
            _counter(self.directories["memory"] / memory, "oom_kill"),
            _counter(self.directories["pids"] / "pids.events", "max"),
        )

    def members(self) -> list[int]:
        """The processes inside."""
        try:
            return [int(pid) for pid in (self.directories["pids"] / "cgroup.procs").read_text().split()]
        except OSError:
            return []

    @contextmanager
    def frozen(self) -> Iterator[bool]:
        """Nobody inside runs meanwhile; gives false where they can't be held up within a moment."""
        directory = self.directories["freezer"]
        name, on, off = ("cgroup.freeze", "1", "0") if self.is_v2 else ("freezer.state", "FROZEN", "THAWED")
        is_frozen = False
        try:
            with contextlib.suppress(OSError):
                (directory / name).write_text(on)
                is_frozen = self._is_frozen()
            yield is_frozen
        finally:
            with contextlib.suppress(OSError):
                (directory / name).write_text(off)

    def _is_frozen(self) -> bool:
        directory = self.directories["freezer"]
        deadline = time.monotonic() + FREEZE_S
        while time.monotonic() < deadline:
            if self.is_v2 and _counter(directory / "cgroup.events", "frozen") == 1:
                return True
            if not self.is_v2 and (directory / "freezer.state").read_text().strip() == "FROZEN":
                return True
            time.sleep(0.001)
        return False

    def kill(self) -> None:
        """SIGKILL to every process inside."""
        with self.frozen():
            for pid in self.members():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Gives the descriptors back; the group stays."""
        if self._entrance is not None:
            for descriptor in self._entrance.files:
                os.close(descriptor)
            if self._entrance.directory is not None:
                os.close(self._entrance.directory)
            self._entrance = None

    def remove(self) -> bool:
        """False while a process is still inside."""
        self.close()
        for directory in self._distinct:
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


class CgroupTree:
    """The parents, by controller, of one backend's groups."""

    def __init__(self, parents: dict[str, Path], is_v2: bool) -> None:
        self._parents, self._is_v2 = parents, is_v2

    def create(self, limits: Limits, spare_pids: int = 0) -> Cgroup:
        """Raises OSError where the kernel refuses."""
        name = uuid4().hex[:16]
        group = Cgroup({controller: parent / name for controller, parent in self._parents.items()}, self._is_v2)
        for directory in dict.fromkeys(group.directories.values()):
            directory.mkdir()
        memory, pids, cpu = (group.directories[controller] for controller in ("memory", "pids", "cpu"))
        limit, quota = str(limits.memory_mb << 20), str(int(limits.cpus * _PERIOD_US))
        if self._is_v2:
            (memory / "memory.max").write_text(limit)
            _write_optional(memory / "memory.swap.max", "0")
            _write_optional(cpu / "cpu.max", f"{quota} {_PERIOD_US}")
        else:
            (memory / "memory.limit_in_bytes").write_text(limit)
            _write_optional(memory / "memory.memsw.limit_in_bytes", limit)
            _write_optional(cpu / "cpu.cfs_quota_us", quota)
        (pids / "pids.max").write_text(str(limits.num_pids + spare_pids))
        return group

    def close(self) -> None:
        """Kills and removes whatever is left below."""
        for parent in dict.fromkeys(self._parents.values()):
            _remove_below(parent, self._is_v2)


def open_cgroups(instance_id: str) -> CgroupTree | None:
    """A tree of groups that carries the instance's mark, or None (logged) where no hierarchy can be written."""
    name = _PREFIX + instance_id
    try:
        if _is_v2():
            parent = _open_v2(name)
            tree = CgroupTree(dict.fromkeys(CONTROLLERS, parent), True)
        else:
            parents = {controller: _own_v1(controller) / name for controller in CONTROLLERS}
            for parent in parents.values():
                parent.mkdir()
            tree = CgroupTree(parents, False)
        tree.create(Limits(memory_mb=64, num_pids=16)).remove()
    except OSError as error:
        logger.info("no writable control group (%s): limits hold for each process, not for a sandbox", error)
        return None
    return tree


def remove_stale_cgroups() -> int:
    """Removes what dead instances of this machine left, processes included; how many instances that were."""
    parents = [MOUNT] if _is_v2() else [_own_v1(controller) for controller in CONTROLLERS]
    found = {d.name: None for parent in parents for d in parent.glob(f"{_PREFIX}*:*")}
    dead = [name for name in found if is_dead(name.removeprefix(_PREFIX))]
    for name in dead:
        for parent in parents:
            if (parent / name).is_dir():
                _remove_below(parent / name, _is_v2())
    return len(dead)


def _is_v2() -> bool:
    return (MOUNT / "cgroup.controllers").exists()


def _own_v1(controller: str) -> Path:
    mount = MOUNT / controller
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") and (mount / path.lstrip("/")).is_dir():
            return mount / path.lstrip("/")
    return mount


def _open_v2(name: str) -> Path:
    # Below the root, not below our own group: a group that holds processes can't hand controllers to its children.
    parent = MOUNT / name
    parent.mkdir()
    try:
        (parent / "cgroup.subtree_control").write_text("+memory +pids")
        _write_optional(parent / "cgroup.subtree_control", "+cpu")
    except OSError:
        parent.rmdir()
        raise
    return parent


def _remove_below(parent: Path, is_v2: bool) -> None:
    deadline = time.monotonic() + 5.0
    for directory in [*parent.glob("*/"), parent]:
        group = Cgroup(dict.fromkeys(CONTROLLERS, directory), is_v2)
        while not group.remove() and time.monotonic() < deadline:
            group.kill()
            time.sleep(0.01)


def _counter(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(name + " "))


def _write_optional(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):
        path.write_text(text)
