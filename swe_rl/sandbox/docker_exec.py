"""Files into and out of a container: the scripts that read and write one, and tar archives for many.

The scripts run as the command's user, so that a link can't reach further than the command itself could. An archive from
inside is data of an untrusted command: what lies in it is written to the host only below a fresh directory.
"""

import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from swe_rl.errors import PathError, SandboxError
from swe_rl.sandbox.base import REPORT_DIR, FileEntry, Limits
from swe_rl.sandbox.copying import MAX_FILES
from swe_rl.sandbox.environment import USER_ID
from swe_rl.sandbox.tree import MAX_DEPTH, MAX_FILE_BYTES, MAX_TREE_BYTES, MAX_TREE_FILES, unreadable
from swe_rl.sandbox.workspace import Template

MAX_SNAPSHOT_BYTES = 512 * 1024 * 1024
_CHECKED_PATH = """p=/workspace; for part; do [ -n "$part" ] || continue; p="$p/$part"; [ -L "$p" ] && exit 40"""
READ_SCRIPT = f"""{_CHECKED_PATH}; done
[ -e "$p" ] || exit 44
[ -f "$p" ] || exit 41
[ -r "$p" ] || exit 43
[ "$(wc -c <"$p")" -le {MAX_FILE_BYTES} ] || exit 42
exec cat "$p" 2>/dev/null"""
WRITE_SCRIPT = f"""{_CHECKED_PATH}
d="${{p%/*}}"; [ -d "$d" ] || mkdir "$d" 2>/dev/null || exit 45; done
[ ! -e "$p" ] || [ -f "$p" ] || exit 41
t=$(mktemp "$d/.swe-rl-XXXXXX") || exit 45
cat >"$t" && {{ chmod --reference="$p" "$t" 2>/dev/null || chmod 644 "$t"; }} && mv -fT "$t" "$p" && exit 0
rm -f "$t"; exit 45"""
FILE_PROBLEMS = {
    40: "is a link, or lies behind one; links are never followed",
    41: "isn't a regular file",
    42: f"is larger than {MAX_FILE_BYTES} bytes",
    43: "Permission denied",
    44: "No such file or directory",
    45: "can't be written",
}


def template_archive(template: Template) -> bytes:
    """A laid-out workspace as a tar for the container's root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        add_directory(archive, "workspace", USER_ID)
        for path in template.directories:
            add_directory(archive, f"workspace/{path}", USER_ID)
        for path, mode, data in template.files:
            add_file(
                archive, f"workspace/{path}", data if data is not None else (template.root / path).read_bytes(), mode
            )
        for path, target in template.links:
            add_link(archive, f"workspace/{path}", target)
    return buffer.getvalue()


def directory_archive(source: Path, name: str, user_id: int = USER_ID) -> bytes:
    """Any host directory as a tar in which it is called `name`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        add_directory(archive, name, user_id)
        for directory, names, leaves in os.walk(source):
            prefix = os.path.normpath(os.path.join(name, os.path.relpath(directory, source)))
            for leaf in sorted(names + leaves):
                full, inside = Path(directory, leaf), f"{prefix}/{leaf}"
                if full.is_symlink():
                    add_link(archive, inside, os.readlink(full), user_id)
                elif full.is_dir():
                    add_directory(archive, inside, user_id)
                else:
                    mode = 0o755 if full.stat().st_mode & 0o100 else 0o644
                    add_file(archive, inside, full.read_bytes(), mode, user_id)
    return buffer.getvalue()


def with_home(archive: bytes) -> bytes:
    """The same archive with what a container needs besides the workspace: the user's home."""
    home = _info("tmp/home", USER_ID, 0o755)
    home.type = tarfile.DIRTYPE
    return home.tobuf() + archive


def extract(archive: bytes) -> None:
    """Unpacks one of these archives below the root directory, with the owners that it names."""
    # As what it is: to try whether it's compressed would import modules, and the root is the container's by now.
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as opened:
        opened.extraction_filter = lambda member, _: member  # nothing is to be changed: we have made it
        opened.extractall("/", numeric_owner=True)


def add_directory(archive: tarfile.TarFile, name: str, user_id: int) -> None:
    info = _info(name, user_id, 0o755)
    info.type = tarfile.DIRTYPE
    archive.addfile(info)


def add_file(archive: tarfile.TarFile, name: str, data: bytes, mode: int, user_id: int = USER_ID) -> None:
    info = _info(name, user_id, mode)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def add_link(archive: tarfile.TarFile, name: str, target: str, user_id: int = USER_ID) -> None:
    info = _info(name, user_id, 0o777)
    info.type, info.linkname = tarfile.SYMTYPE, target
    archive.addfile(info)


def tree_of_archive(chunks: Iterable[bytes]) -> dict[str, FileEntry]:
    """Files and links of a tar of the working directory, `.git` left out. Raises PathError as `tree.read_tree`."""
    tree: dict[str, FileEntry] = {}
    room = MAX_TREE_BYTES
    for member, data in _members(chunks):
        path = _inside(member.name)
        if not path or ".git" in path.split("/"):
            continue
        if path.count("/") > MAX_DEPTH:
            raise PathError(f"tree: {path[:80]!r}: deeper than {MAX_DEPTH} directories")
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise PathError(f"tree: {path!r}: a file name that isn't UTF-8") from error
        if member.issym():
            tree[path] = FileEntry("120000", os.fsencode(member.linkname))
        elif member.isreg():
            tree[path] = FileEntry("100755" if member.mode & 0o100 else "100644", data)
        elif member.islnk():
            first = tree.get(_inside(member.linkname))
            if first is None:
                raise PathError(f"tree: {path!r}: another name of a pipe, or of a file in .git; remove it")
            tree[path] = first
        room -= len(tree[path].data) if path in tree else 0
        if room < 0 or len(tree) > MAX_TREE_FILES:
            raise PathError(f"tree: more than {MAX_TREE_BYTES} bytes or {MAX_TREE_FILES} files; remove build outputs")
    return dict(sorted(tree.items()))


def max_snapshot_bytes(limits: Limits) -> int:
    """A fork's container is filled from memory, hence a bound besides the disk's."""
    return min(limits.disk_mb << 20, MAX_SNAPSHOT_BYTES)


def unpack(chunks: Iterable[bytes], into: Path, max_bytes: int) -> None:
    """Writes an archive's only directory as `into`, for the service alone. Links come last: none is ever followed.

    Raises PathError for what is too much, or can't lie there; SandboxError for a fault of this machine.
    """
    into.mkdir()
    links: dict[str, str] = {}
    room = max_bytes
    for num_files, (member, data) in enumerate(_members(chunks)):
        path = _inside(member.name)
        if member.islnk() and _inside(member.linkname) in links:
            links[path] = links[_inside(member.linkname)]
        elif member.issym():
            links[path] = member.linkname
        elif path:
            try:
                room -= _lay(member, data, into, path)
            except OSError as error:
                raise unreadable(f"snapshot: {path[:200]!r}", error) from error
        if room < 0 or num_files > MAX_FILES:
            raise PathError(f"snapshot: more than {max_bytes} bytes or {MAX_FILES} files; remove build outputs")
    for path, target in links.items():
        try:
            os.symlink(target, into / path)
        except OSError as error:
            raise unreadable(f"snapshot: {path[:200]!r}", error) from error


def _lay(member: tarfile.TarInfo, data: bytes, into: Path, path: str) -> int:
    """One directory or file; how many bytes it has."""
    if path.count("/") > MAX_DEPTH:
        raise PathError(f"snapshot: {path[:80]!r}: deeper than {MAX_DEPTH} directories")
    if member.isdir():
        (into / path).mkdir(mode=0o755, exist_ok=True)
        return 0
    if member.islnk():
        first = into / _inside(member.linkname)
        if not first.is_file():  # another name of a pipe
            return 0
        data, mode = first.read_bytes(), first.stat().st_mode & 0o777
    elif member.isreg():
        mode = member.mode & 0o777 | 0o600
    else:
        return 0
    (into / path).write_bytes(data)
    (into / path).chmod(mode)
    return len(data)


def _inside(name: str) -> str:
    """The path below the archive's only directory, '' for that itself. Raises PathError for one that leads out of it.

    Who packed it may be a program of an image that nobody has looked into.
    """
    path = name.partition("/")[2]
    if path.startswith("/") or ".." in path.split("/"):
        raise PathError(f"tree: {name[:80]!r}: leads out of the archive's directory")
    return path


def save_report(chunks: Iterable[bytes], report_dir: Path) -> None:
    """Writes the plain files directly below /report into `report_dir`; links and directories don't cross.

    A file that is there already is written anew, as it would be where the command has the directory itself.
    """
    for member, data in _members(chunks):
        directory, _, name = member.name.rpartition("/")
        if member.isreg() and directory == REPORT_DIR.lstrip("/") and name not in ("", ".", ".."):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(report_dir / name, flags, 0o600), "wb") as file:
                file.write(data)


def _info(name: str, user_id: int, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.uid = info.gid = user_id
    info.mode = mode
    return info


def _members(chunks: Iterable[bytes]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Members and, for regular files, their bytes. Raises PathError for a file beyond MAX_FILE_BYTES."""
    try:
        with tarfile.open(fileobj=_ChunkFile(chunks), mode="r|", errorlevel=2) as archive:
            for member in archive:
                if member.isreg() and member.size > MAX_FILE_BYTES:
                    raise PathError(f"tree: {member.name!r}: {member.size} bytes, more than {MAX_FILE_BYTES}")
                content = archive.extractfile(member) if member.isreg() else None
                yield member, content.read() if content is not None else b""
    except tarfile.TarError as error:
        raise SandboxError(f"docker: the engine's archive can't be read: {error}") from error


class _ChunkFile(io.RawIOBase):
    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts, missing = [], size
        while missing > 0:
            if not self._rest:
                self._rest = next(self._chunks, b"")
                if not self._rest:
                    break
            parts.append(self._rest[:missing])
            self._rest = self._rest[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)
