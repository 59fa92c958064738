"""Files on the host around one grading: the copy of a task's environment, and the report that a run left behind."""

import os
import shutil
import stat
from pathlib import Path

MAX_REPORT_BYTES = 8 * 1024 * 1024
_MIN_MEMORY_BYTES = 256 * 1024 * 1024


def memory_dir() -> Path | None:
    """A directory in memory for a few small files, if the machine has room in one: ten times as fast as a disk.

    None means the default temporary directory.
    """
    shm = Path("/dev/shm")
    try:
        has_room = os.access(shm, os.W_OK) and shutil.disk_usage(shm).free >= _MIN_MEMORY_BYTES
    except OSError:
        return None
    return shm if has_room else None


def copy_tree(source: Path, target: Path) -> None:
    """Copies files, links and directories below `source` to the new directory `target`, writable by the owner."""
    target.mkdir()
    with os.scandir(source) as entries:
        for entry in entries:
            copy = target / entry.name
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), copy)
            elif entry.is_dir():
                copy_tree(Path(entry.path), copy)
            else:
                shutil.copyfile(entry.path, copy)
                copy.chmod(0o755 if entry.stat().st_mode & 0o100 else 0o644)


def read_report(directory: Path, name: str, limit_bytes: int = MAX_REPORT_BYTES) -> tuple[bytes | None, str]:
    """The report's bytes, or None and the reason; the run may have put anything at `name`.

    A link isn't followed, at `directory` itself neither; a pipe doesn't block, and a file beyond the limit isn't read.
    """
    try:
        above = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=above)
        finally:
            os.close(above)
    except FileNotFoundError:
        return None, "no report file"
    except OSError as error:
        return None, f"the report can't be opened: {error.strerror}"
    try:
        # Before any file object is made of it: Python refuses a directory with an error of its own.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None, "the report isn't a regular file"
        if status.st_nlink != 1:
            return None, "the report has a second name"
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        return None, f"the report can't be read: {error.strerror}"
    finally:
        os.close(descriptor)
    if len(data) > limit_bytes:
        return None, f"the report has more than {limit_bytes} bytes"
    return data, ""
