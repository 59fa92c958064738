"""An independent copy of an untrusted directory, as a snapshot or for a fork of one.

Files, links and directories with their permissions; pipes and sockets stay behind. Every step goes through a
directory's descriptor with O_NOFOLLOW, as in `tree`, so that nothing of the host can be copied by a link that is
swapped in meanwhile. Where the file system can, blocks are shared until one side changes (FICLONE). Bytes are counted
as they would be read: a file with holes, or one with many names, is small where it lies and large where it's copied.
"""

import contextlib
import fcntl
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from swe_rl.errors import PathError
from swe_rl.sandbox.tree import MAX_DEPTH, open_root, unreadable

FICLONE = 0x4004_9409
MAX_FILES = 500_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20


@dataclass(slots=True)
class _Room:
    """What may still be copied."""

    num_files: int
    num_bytes: int

    def take(self, num_files: int, num_bytes: int) -> None:
        self.num_files -= num_files
        self.num_bytes -= num_bytes
        if self.num_files < 0:
            raise PathError(f"snapshot: more than {MAX_FILES} files; remove build outputs before it")
        if self.num_bytes < 0:
            raise PathError("snapshot: more bytes than the disk's limit, read file by file; remove some before it")


def copy_tree(source: Path, target: Path, max_bytes: int, owner: int | None = None) -> None:
    """Makes `target` (which must not exist), for `owner` where one is given. Raises PathError, SandboxError."""
    with contextlib.ExitStack() as stack:
        from_fd = open_root(source)
        stack.callback(os.close, from_fd)
        os.mkdir(target, 0o755)
        to_fd = os.open(target, _DIRECTORY)
        stack.callback(os.close, to_fd)
        _copy_directory(from_fd, to_fd, owner, _Room(MAX_FILES, max_bytes), 0)


def _copy_directory(source: int, target: int, owner: int | None, room: _Room, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise PathError(f"snapshot: deeper than {MAX_DEPTH} directories")
    if owner is not None:
        os.fchown(target, owner, owner)
    names = os.listdir(source)
    room.take(len(names), 0)
    for name in names:
        try:
            _copy_entry(source, target, name, owner, room, depth)
        except OSError as error:
            raise unreadable(f"snapshot: {name!r}", error) from error


def _copy_entry(source: int, target: int, name: str, owner: int | None, room: _Room, depth: int) -> None:
    found = os.stat(name, dir_fd=source, follow_symlinks=False)
    mode = stat.S_IMODE(found.st_mode) & 0o777
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        if owner is not None:
            os.chown(name, owner, owner, dir_fd=target, follow_symlinks=False)
    elif stat.S_ISDIR(found.st_mode):
        os.mkdir(name, 0o700, dir_fd=target)
        with contextlib.ExitStack() as stack:
            from_fd = os.open(name, _DIRECTORY, dir_fd=source)
            stack.callback(os.close, from_fd)
            to_fd = os.open(name, _DIRECTORY, dir_fd=target)
            stack.callback(os.close, to_fd)
            _copy_directory(from_fd, to_fd, owner, room, depth + 1)
            os.fchmod(to_fd, mode)
    elif stat.S_ISREG(found.st_mode):
        with contextlib.ExitStack() as stack:
            from_fd = os.open(name, _FILE, dir_fd=source)
            stack.callback(os.close, from_fd)
            to_fd = os.open(name, _NEW, 0o600, dir_fd=target)
            stack.callback(os.close, to_fd)
            opened = os.fstat(from_fd)
            if stat.S_ISREG(opened.st_mode):
                room.take(0, opened.st_size)
                _copy_bytes(from_fd, to_fd, opened.st_size)
            if owner is not None:
                os.fchown(to_fd, owner, owner)
            os.fchmod(to_fd, mode)
            os.utime(to_fd, ns=(found.st_atime_ns, found.st_mtime_ns))


def _copy_bytes(source: int, target: int, size: int) -> None:
    """No more than `size`, though the file may grow meanwhile."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(target, FICLONE, source)
        os.ftruncate(target, size)
        return
    left = size
    while left > 0 and (sent := os.sendfile(target, source, None, min(left, _CHUNK))) > 0:
        left -= sent
