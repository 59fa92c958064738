"""Files that survive a crash: written under a temporary name, flushed, renamed, and never half there.

A writer holds a kernel lock (flock) on what it writes until its index row is committed, so a sweep can tell a dead
writer's leftovers from a live one's work. This module knows nothing of groups or policies.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from swe_rl.errors import StoreError

TEMP_PREFIX = ".tmp-"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FULL_TEXTS = ("No space left", "File too large", "Disk quota exceeded", "disk is full")


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_durably(path: Path, data: bytes) -> None:
    """Replaces `path` in one step; after a return the bytes survive a power cut. Raises StoreError."""
    with held_write(path, data):
        pass


@contextmanager
def held_write(path: Path, data: bytes) -> Iterator[None]:
    """As `write_durably`, and no sweep removes the file before the block ends. Raises StoreError."""
    temp = path.with_name(f"{TEMP_PREFIX}{uuid.uuid4().hex}")
    descriptor = -1
    try:
        descriptor = _create_locked(temp)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(temp, path)
        sync_directory(path.parent)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        temp.unlink(missing_ok=True)
        raise disk_error(path, error) from error
    try:
        yield
    finally:
        os.close(descriptor)  # drops the lock


def sync_directory(path: Path) -> None:
    """Makes the names in one directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Makes every file and every name below `root` durable."""
    for directory, _, names in os.walk(root):
        for name in names:
            descriptor = os.open(Path(directory, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(Path(directory))


@contextmanager
def temp_directory(parent: Path) -> Iterator[Path]:
    """A fresh locked directory beside its destination; whatever is left of it at the end is removed."""
    path = parent / f"{TEMP_PREFIX}{uuid.uuid4().hex}"
    descriptor = -1
    while descriptor < 0:
        path.mkdir()
        descriptor = _lock_directory(path)
    try:
        yield path
    finally:
        os.close(descriptor)
        shutil.rmtree(path, ignore_errors=True)


def is_abandoned(path: Path) -> bool:
    """True if no live writer holds the file or directory; False also if it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def is_disk_full(error: BaseException) -> bool:
    """Also for libraries that hide the errno in a message of their own."""
    return getattr(error, "errno", None) in _FULL or any(text in str(error) for text in _FULL_TEXTS)


def disk_error(path: Path, error: BaseException) -> StoreError:
    """One line: what couldn't be written, why, and what to do."""
    if is_disk_full(error):
        return StoreError(
            f"{path}: not written, the disk or quota is full; free some space (old policies can be pruned) and start "
            "the same command again: the run goes on where it stopped"
        )
    reason = getattr(error, "strerror", None) or repr(error)
    return StoreError(f"{path}: not written: {reason}; check the directory and its permissions")


def _create_locked(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # a sweep removed it between creation and lock


def _lock_directory(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return -1  # a sweep removed it between creation and lock
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    if path.exists():
        return descriptor
    os.close(descriptor)
    return -1
