"""Directories of a session as tar archives: packed on the host from what was read as data, unpacked inside the sandbox.

An archive that goes up is never opened on the host: the sandbox's own tar unpacks it with the sandbox's own rights.
One that comes down holds regular files and links alone, and nothing of .git.
"""

import io
import tarfile
from collections.abc import Mapping

from swe_rl.errors import PathError, SandboxError
from swe_rl.sandbox.base import Command, FileEntry, Sandbox
from swe_rl.sandbox.tree import relative_parts

UNPACK_S = 300.0
_UNPACK = 'mkdir -p -- "$1" && cd -- "$1" && exec tar -xf - --no-same-owner --no-overwrite-dir'


def pack(tree: Mapping[str, FileEntry], path: str) -> bytes:
    """The files below `path` (relative to it), sorted; the same tree gives the same bytes. Raises PathError."""
    parts = relative_parts(path)
    prefix = "".join(f"{part}/" for part in parts)
    chosen = {name.removeprefix(prefix): entry for name, entry in tree.items() if name.startswith(prefix)}
    if not chosen and parts:
        raise PathError(f"path {path!r}: no directory, or one without files")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, entry in sorted(chosen.items()):
            archive.addfile(_header(name, entry), None if entry.mode == "120000" else io.BytesIO(entry.data))
    return buffer.getvalue()


async def unpack(sandbox: Sandbox, path: str, data: bytes) -> None:
    """Unpacks a plain tar below `path`, which is made. Raises PathError with tar's own words where it refuses."""
    inside = "/".join(relative_parts(path)) or "."
    if not data:
        raise PathError(f"archive for {path!r}: is empty, expected a tar")
    command = Command(("bash", "-c", _UNPACK, "unpack", f"./{inside}"), stdin=data, timeout_s=UNPACK_S)
    result = await sandbox.run(command)
    if result.timed_out:
        raise PathError(f"archive for {path!r}: unpacking took more than {UNPACK_S:g} s")
    if result.exit_code != 0:
        said = result.stderr.decode(errors="replace").strip().splitlines()
        if result.exit_code in (126, 127) or result.signal is not None:
            raise SandboxError(f"archive for {path!r}: tar can't be run in the sandbox: {' '.join(said[:1])}")
        raise PathError(f"archive for {path!r}: {said[0][:300] if said else 'tar failed'}; expected a plain tar")


def _header(name: str, entry: FileEntry) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    if entry.mode == "120000":
        header.type, header.linkname, header.mode = (
            tarfile.SYMTYPE,
            entry.data.decode("utf-8", "surrogateescape"),
            0o777,
        )
    else:
        header.size, header.mode = len(entry.data), 0o755 if entry.mode == "100755" else 0o644
    return header
