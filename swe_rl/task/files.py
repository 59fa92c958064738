"""Files of a task folder, read with bounds: no link is followed, nothing but a regular file is opened, none is endless.

A task folder may come from anywhere; what reads it must end, and must not show what lies outside of it.
"""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from swe_rl.errors import TaskError

MAX_TEXT_BYTES = 4 * 1024 * 1024
MAX_FILE_BYTES = 32 * 1024 * 1024
MAX_DEPTH = 64
MAX_FILES = 50_000
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a FIFO must not block the open


def read_bytes(root: Path, name: str, limit: int = MAX_FILE_BYTES) -> bytes:
    """The file `name` below `root`. Raises TaskError for one that is missing, special, too large, or behind a link."""
    path = root / name
    for parent in list(Path(name).parents)[:-1]:
        if (root / parent).is_symlink():
            raise TaskError(f"{root / parent}: is a link; a task keeps its own files")
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        reason = (
            "is a link; a task keeps its own files"
            if error.errno == errno.ELOOP
            else f"can't be read: {error.strerror}"
        )
        raise TaskError(f"{path}: {reason}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise TaskError(f"{path}: isn't a regular file")
        if status.st_size > limit:
            raise TaskError(f"{path}: {status.st_size} bytes, more than the {limit} that a task may have there")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limit)
    except OSError as error:
        raise TaskError(f"{path}: can't be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


def read_text(root: Path, name: str, limit: int = MAX_TEXT_BYTES) -> str:
    """As `read_bytes`, and raises TaskError for what isn't UTF-8."""
    try:
        return read_bytes(root, name, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(f"{root / name}: isn't UTF-8: {error.reason} at byte {error.start}") from error


def require_directory(path: Path) -> None:
    """Raises TaskError where a part that every task has is missing, or is a link."""
    if path.is_symlink() or not path.is_dir():
        raise TaskError(f"{path}: no such folder; a task needs environment/ and tests/, and no links to them")


def walk_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Relative name and path of all that isn't a directory; links aren't followed.

    Raises TaskError for a nested .git, for too many files or too deep a tree, and for what can't be read.
    """
    stack, num_files = [("", 0)], 0
    while stack:
        prefix, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise TaskError(f"{root}: deeper than {MAX_DEPTH} directories")
        try:
            with os.scandir(root / prefix) as entries:
                found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError as error:
            raise TaskError(f"{root / prefix}: can't be read: {error.strerror}") from error
        for name, is_directory in found:
            if name == ".git":
                raise TaskError(f"{root / prefix / name}: a task may hold no .git; keep plain files only")
            if is_directory:
                stack.append((f"{prefix}{name}/", depth + 1))
                continue
            num_files += 1
            if num_files > MAX_FILES:
                raise TaskError(f"{root}: more than {MAX_FILES} files")
            yield prefix + name, root / prefix / name
