"""How much a sandbox has written: a hard limit by a file system of its own, or else a size that is watched.

A service that is root and keeps its sessions in memory gives each a tmpfs of the limit's size: a write beyond it fails,
and is seen by the lack of free blocks. Elsewhere the size is measured while commands run and when they end; who has
passed the limit is killed. To measure a large tree is slow, so that the file system's free space decides first whether
the sandbox can have grown beyond its limit at all.
"""

import contextlib
import ctypes
import os
import stat
import time
from pathlib import Path
from typing import Protocol

from swe_rl.errors import SandboxError

MNT_DETACH, MS_NOSUID, MS_NODEV = 2, 2, 4
MEASURE_EVERY_S = 10.0
MAX_DEPTH = 256
TOO_DEEP = 1 << 62
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_INODES_PER_MB = 64
_MIN_INODES = 16_384
_IN_MEMORY = "tmpfs"


class Disk(Protocol):
    """`is_hard`: the kernel refuses what goes beyond; otherwise the caller has to kill."""

    is_hard: bool

    def may_be_full(self) -> bool:
        """Cheap; false is certain."""
        ...

    def is_full(self) -> bool:
        """Blocking."""
        ...


class OwnFileSystem:
    """A tmpfs at `path`."""

    is_hard = True

    def __init__(self, path: Path) -> None:
        self._path = path

    def may_be_full(self) -> bool:
        return self.is_full()

    def is_full(self) -> bool:
        try:
            seen = os.statvfs(self._path)
        except OSError:  # closed meanwhile
            return False
        return seen.f_bavail == 0 or seen.f_ffree == 0


class WatchedSize:
    """Directories of a file system that others use too."""

    is_hard = False

    def __init__(self, paths: tuple[Path, ...], limit_mb: int) -> None:
        self._paths = paths
        self._limit_bytes = limit_mb << 20
        self._room_bytes = 0  # what may still be written before measuring anew is worth it
        self._free_bytes = 0
        self._measured_at = float("-inf")

    def may_be_full(self) -> bool:
        is_recent = time.monotonic() - self._measured_at < MEASURE_EVERY_S
        return not is_recent or self._free_bytes - self._free_now() >= self._room_bytes

    def is_full(self) -> bool:
        free = self._free_now()
        used = sum(used_bytes(path) for path in self._paths)
        self._free_bytes, self._measured_at = free, time.monotonic()
        self._room_bytes = self._limit_bytes - used
        return used > self._limit_bytes

    def _free_now(self) -> int:
        try:
            seen = os.statvfs(self._paths[0])
        except OSError:
            return self._free_bytes
        return seen.f_bfree * seen.f_frsize


def used_bytes(root: Path) -> int:
    """Blocks held by the files below `root`; one file under several names counts once.

    By descriptors: a path may be made too long for the kernel, or lead elsewhere by the time that it's followed. What
    lies deeper than MAX_DEPTH can't be measured and counts as more than any limit.
    """
    seen: set[tuple[int, int]] = set()
    total = 0
    stack: list[tuple[int, list[str]]] = []  # directories, and which names in them are still to be measured
    try:
        stack.append((os.open(root, _DIRECTORY), ["."]))
        while stack:
            directory, names = stack[-1]
            if not names:
                os.close(stack.pop()[0])
                continue
            with contextlib.suppress(OSError):  # removed meanwhile
                below = os.open(names.pop(), _DIRECTORY, dir_fd=directory)
                stack.append((below, []))
                total += _measure(below, stack[-1][1], seen)
            if len(stack) > MAX_DEPTH:
                return TOO_DEEP
    except FileNotFoundError:  # closed meanwhile
        return 0
    finally:
        for directory, _ in stack:
            os.close(directory)
    return total


def _measure(directory: int, below: list[str], seen: set[tuple[int, int]]) -> int:
    """The blocks of what lies in one directory; the names of those below are added to `below`."""
    total = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(found.st_mode):
                below.append(entry.name)
            elif found.st_nlink > 1:
                if (found.st_dev, found.st_ino) in seen:
                    continue
                seen.add((found.st_dev, found.st_ino))
            total += found.st_blocks * 512
    return total


def open_disk(path: Path, limit_mb: int) -> Disk:
    """A session's directory with its limit; mounts a tmpfs there where that is possible. Raises SandboxError."""
    if os.geteuid() != 0 or _file_system_type(path) != _IN_MEMORY:
        return WatchedSize((path,), limit_mb)
    inodes = max(_MIN_INODES, limit_mb * _INODES_PER_MB)
    options = f"size={limit_mb}m,nr_inodes={inodes},mode=0700".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"swe-rl", os.fsencode(path), b"tmpfs", MS_NOSUID | MS_NODEV, options) != 0:
        number = ctypes.get_errno()
        raise SandboxError(f"sandbox: no tmpfs can be mounted at {path}: {os.strerror(number)}")
    return OwnFileSystem(path)


def unmount_below(path: Path) -> int:
    """Detaches every mount at or below `path`; how many. Nothing happens where there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    prefix = str(path)
    found = [at for at in _mount_points() if at == prefix or at.startswith(prefix + "/")]
    return sum(libc.umount2(os.fsencode(at), MNT_DETACH) == 0 for at in reversed(found))


def unmount(path: Path) -> None:
    """Detaches what is mounted at `path`, if anything."""
    ctypes.CDLL(None, use_errno=True).umount2(os.fsencode(path), MNT_DETACH)


def _file_system_type(path: Path) -> str:
    best, kind = "", ""
    resolved = str(path.resolve())
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        at = before.split()[4]
        if (resolved == at or resolved.startswith(at.rstrip("/") + "/")) and len(at) >= len(best):
            best, kind = at, after.split()[0]
    return kind


def _mount_points() -> list[str]:
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
