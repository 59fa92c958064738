"""Files of an untrusted directory, read and written from the host: no link is ever followed.

Every step down goes through a directory's descriptor with O_NOFOLLOW, so that a link that a running command swaps in
meanwhile is refused as well. Nothing here runs a command or knows of sessions.
"""

import contextlib
import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from swe_rl.errors import PathError, SandboxError
from swe_rl.sandbox.base import WORKDIR, FileEntry

MAX_FILE_BYTES = 32 * 1024 * 1024
MAX_TREE_BYTES = 256 * 1024 * 1024
MAX_TREE_FILES = 50_000
MAX_DEPTH = 64
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a FIFO must not block the open
_OF_THE_MACHINE = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS}
)


def unreadable(what: str, error: OSError) -> SandboxError:
    """What a step that failed in an untrusted tree means: its own state (a PathError), or a fault of this machine.

    Which errors a race gives is the attacker's choice (a link, a socket, a pipe in a file's place), hence no list.
    """
    if error.errno in _OF_THE_MACHINE:
        return SandboxError(f"{what}: {error.strerror}")
    if error.errno in (errno.EACCES, errno.EPERM):
        return PathError(f"{what}: can't be read: {error.strerror}")
    return PathError(f"{what}: changed while it was read ({error.strerror}); end the running commands first")


def open_root(root: Path) -> int:
    """A descriptor of the tree's own directory. Raises SandboxError where it's gone, PathError where it's closed."""
    try:
        return os.open(root, _DIRECTORY)
    except PermissionError as error:
        raise unreadable(f"tree: {WORKDIR}", error) from error
    except OSError as error:
        raise SandboxError(f"tree: {WORKDIR}: isn't there any more: {error.strerror}") from error


def relative_parts(path: str) -> tuple[str, ...]:
    """Parts of a path below the working directory; `/workspace/a` and `a` are the same. Raises PathError."""
    if "\0" in path or len(path) > 4096:
        raise PathError(f"path {path[:80]!r}: a NUL byte, or longer than 4096")
    inside = path
    if path.startswith("/"):
        if path != WORKDIR and not path.startswith(WORKDIR + "/"):
            raise PathError(f"path {path!r}: outside {WORKDIR}")
        inside = path[len(WORKDIR) :]
    parts = tuple(part for part in inside.split("/") if part not in ("", "."))
    if ".." in parts:
        raise PathError(f"path {path!r}: '..' is refused; give a path below {WORKDIR}")
    return parts


def read_file(root: Path, path: str) -> bytes:
    """Raises PathError for what is missing, a link, not a regular file, or larger than MAX_FILE_BYTES."""
    parts = relative_parts(path)
    if not parts:
        raise PathError(f"path {path!r}: is the working directory, expected a file")
    with _parent(root, parts, path, create=False) as parent:
        return _read_at(parent, parts[-1], path, MAX_FILE_BYTES)


def write_file(root: Path, path: str, data: bytes) -> None:
    """Creates parents, keeps the mode of a file that it replaces, atomic. Raises PathError as `read_file`."""
    parts = relative_parts(path)
    if not parts:
        raise PathError(f"path {path!r}: is the working directory, expected a file")
    with _parent(root, parts, path, create=True) as parent:
        mode = _replaceable_mode(parent, parts[-1], path)
        temporary = f".swe-rl-{uuid4().hex}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(temporary, flags, 0o600, dir_fd=parent), "wb") as file:
                file.write(data)
                _give(file.fileno(), root)
                os.fchmod(file.fileno(), mode)
            os.replace(temporary, parts[-1], src_dir_fd=parent, dst_dir_fd=parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=parent)
            raise PathError(f"path {path!r}: can't be written: {error.strerror}") from error


def read_tree(root: Path) -> dict[str, FileEntry]:
    """Every regular file and link except `.git`, sorted by path; sockets and pipes are left out, as git does.

    Raises PathError where the tree is too large, too deep, or has a name that isn't UTF-8.
    """
    tree: dict[str, FileEntry] = {}
    descriptor = open_root(root)
    try:
        _walk(descriptor, "", tree, [MAX_TREE_BYTES], 0)
    finally:
        os.close(descriptor)
    return dict(sorted(tree.items()))


def remove_tree(path: Path) -> None:
    """Removes whatever an untrusted command left: directories without permissions and of any depth included."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(path)], check=False, capture_output=True, timeout=60)
        subprocess.run(["rm", "-rf", "--", str(path)], check=False, capture_output=True, timeout=60)


@contextlib.contextmanager
def _parent(root: Path, parts: tuple[str, ...], path: str, create: bool) -> Iterator[int]:
    descriptor = open_root(root)
    try:
        for part in parts[:-1]:
            try:
                below = _descend(descriptor, part, root if create else None)
            except OSError as error:
                raise PathError(
                    f"path {path!r}: {part!r} is no directory inside {WORKDIR}: {error.strerror}"
                ) from error
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _descend(descriptor: int, part: str, root_to_create: Path | None) -> int:
    try:
        return os.open(part, _DIRECTORY, dir_fd=descriptor)
    except FileNotFoundError:
        if root_to_create is None:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, 0o755, dir_fd=descriptor)
    made = os.open(part, _DIRECTORY, dir_fd=descriptor)
    _give(made, root_to_create)
    return made


def _give(descriptor: int, root: Path) -> None:
    """What root makes inside belongs to the user to whom all of it belongs."""
    owner = os.stat(root)
    if owner.st_uid != os.geteuid():
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _replaceable_mode(parent: int, name: str, path: str) -> int:
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return 0o644
    except OSError as error:
        raise PathError(f"path {path!r}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise PathError(f"path {path!r}: exists and isn't a regular file; links are never followed")
    return stat.S_IMODE(found.st_mode) & 0o777


def _read_at(parent: int, name: str, path: str, limit: int) -> bytes:
    try:
        descriptor = os.open(name, _FILE, dir_fd=parent)
    except OSError as error:
        if error.errno in _OF_THE_MACHINE:
            raise unreadable(f"path {path!r}", error) from error
        reason = "is a link; links are never followed" if error.errno == errno.ELOOP else error.strerror
        raise PathError(f"path {path!r}: {reason}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):  # before `open`, which raises its own error for a directory
            raise PathError(f"path {path!r}: isn't a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(limit + 1) if found.st_size <= limit else b""
    finally:
        os.close(descriptor)
    if found.st_size > limit or len(data) > limit:
        raise PathError(f"path {path!r}: {found.st_size} bytes, more than the {limit} that are read")
    return data


def _walk(directory: int, prefix: str, tree: dict[str, FileEntry], room: list[int], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise PathError(f"tree: {prefix[:80]!r}: deeper than {MAX_DEPTH} directories")
    try:
        with os.scandir(directory) as entries:
            found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries if entry.name != ".git"]
    except OSError as error:
        raise unreadable(f"tree: {prefix[:80]!r}", error) from error
    for name, status in found:
        path = prefix + name
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise PathError(f"tree: {path!r}: a file name that isn't UTF-8") from error
        try:
            _enter(directory, name, status, path, tree, room, depth)
        except OSError as error:
            raise unreadable(f"tree: {path[:200]!r}", error) from error


def _enter(
    directory: int,
    name: str,
    status: os.stat_result,
    path: str,
    tree: dict[str, FileEntry],
    room: list[int],
    depth: int,
) -> None:
    if stat.S_ISDIR(status.st_mode):
        below = os.open(name, _DIRECTORY, dir_fd=directory)
        try:
            _walk(below, path + "/", tree, room, depth + 1)
        finally:
            os.close(below)
        return
    if stat.S_ISLNK(status.st_mode):
        tree[path] = FileEntry("120000", os.fsencode(os.readlink(name, dir_fd=directory)))
    elif stat.S_ISREG(status.st_mode):
        data = _read_at(directory, name, path, min(room[0], MAX_FILE_BYTES))
        room[0] -= len(data)
        tree[path] = FileEntry("100755" if status.st_mode & 0o100 else "100644", data)
    if len(tree) > MAX_TREE_FILES:
        raise PathError(f"tree: more than {MAX_TREE_FILES} files; remove build outputs before the end")
