"""Patches, on the host only: made by comparing two trees, checked strictly, applied to a fresh copy.

The agent's own git repository, its configuration and its index are never read, so they can hide nothing and run
nothing. git is used as a diff engine on plain files, with every configuration it might pick up switched off.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from swe_rl.errors import PatchError, SandboxTimeoutError, SandboxUnavailableError
from swe_rl.grade.patch_format import ParsedPatch, parse_patch
from swe_rl.grade.tree import memory_dir
from swe_rl.sandbox.base import FileEntry
from swe_rl.task.language import compile_globs

MAX_PATCH_BYTES = 2 * 1024 * 1024
MAX_FILES = 2000
MAX_DEPTH = 40
ATTRIBUTES = ".gitattributes"
MAX_PATH_BYTES = 1024
MAX_NAME_BYTES = 200
GIT_TIMEOUT_S = 60.0
# What running code leaves behind. A file of the base is never ignored, whatever its name.
GENERATED_GLOBS = (
    "**/__pycache__/**",
    "**/*.pyc",
    "**/.pytest_cache/**",
    "**/.mypy_cache/**",
    "**/.ruff_cache/**",
    "**/.hypothesis/**",
)


def make_patch(base: Mapping[str, FileEntry], tree: Mapping[str, FileEntry], ignored_globs: Sequence[str] = ()) -> str:
    """The git-style diff that turns `base` into `tree`; '' if they are equal.

    New files that match GENERATED_GLOBS or `ignored_globs` are left out. Raises PatchError where every check would
    refuse the patch for its size, before anything is compared; SandboxUnavailableError without git.
    """
    is_generated = compile_globs((*GENERATED_GLOBS, *ignored_globs)).fullmatch
    changed = [
        path
        for path in sorted(base.keys() | tree.keys())
        if base.get(path) != tree.get(path) and (path in base or not is_generated(path))
    ]
    _check_growth(changed, base, tree)
    rest, attributes = _split_attributes(changed)
    binary = [path for path in rest if not (_is_text(base.get(path)) and _is_text(tree.get(path)))]
    is_binary = set(binary)
    text = [path for path in rest if path not in is_binary]
    return "".join(
        _diff(group, base, tree, as_binary)
        for group, as_binary in ((text, False), (binary, True), (attributes, False))
        if group
    )


def check_patch(patch: str, *, allow_binary: bool = False) -> ParsedPatch:
    """Parses the whole patch and refuses what no solution needs.

    Raises PatchError for a patch that is too large, touches too many files or isn't in git's format; for an absolute
    path, `..` or a `.git` component; for symbolic links and submodules; and for binary content unless `allow_binary`.
    """
    try:
        num_bytes = len(patch.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise PatchError(f"patch: character {error.start} isn't text; encode the patch as UTF-8") from error
    if num_bytes > MAX_PATCH_BYTES:
        raise PatchError(f"patch: {num_bytes} bytes, more than the {MAX_PATCH_BYTES} allowed; make it smaller")
    parsed = parse_patch(patch)
    _check_count(parsed.paths)
    for file in parsed.files:
        for path in file.paths:
            _check_path(path)
        for mode in file.modes:
            if mode not in ("100644", "100755"):
                kind = {"120000": "a symbolic link", "160000": "a submodule"}.get(mode, f"the file mode {mode}")
                raise PatchError(f"patch: {file.path}: {kind} isn't allowed; change plain files only")
        if file.is_binary and not allow_binary:
            raise PatchError(f"patch: {file.path}: binary content isn't allowed; change text files only")
    return parsed


def apply_patch(
    patch: str, directory: Path, *, allow_binary: bool = False, scratch_dir: Path | None = None
) -> ParsedPatch:
    """Checks `patch` and applies all of it below `directory`, or raises PatchError and changes nothing.

    git sees a staging directory with copies of the touched files alone: no attribute file, link or repository around
    them can change what it does. Every line of context must match; an offset is allowed, fuzz isn't.
    """
    parsed = check_patch(patch, allow_binary=allow_binary)
    touched = set(parsed.paths)
    for path in parsed.paths:
        _check_place(directory, path, touched)
    with tempfile.TemporaryDirectory(prefix="swe-rl-apply-", dir=scratch_dir or memory_dir()) as name:
        stage = Path(name)
        for paths, which in zip(_split_attributes(parsed.paths), ("--exclude", "--include"), strict=True):
            for path in paths:
                _stage_file(directory, stage, path)
            if paths:
                _apply_in(stage, f"{which}=*{ATTRIBUTES}", patch)
        _write_back(stage, directory, parsed.paths)
    return parsed


def _check_count(paths: Sequence[str]) -> None:
    if len(paths) > MAX_FILES:
        raise PatchError(f"patch: touches {len(paths)} files, more than the {MAX_FILES} allowed; make it smaller")


def _check_growth(changed: Sequence[str], base: Mapping[str, FileEntry], tree: Mapping[str, FileEntry]) -> None:
    """All that files grow by stands in a patch, so one that says it needn't be made."""
    _check_count(changed)
    sizes = ((len(base[path].data) if path in base else 0, path) for path in changed if path in tree)
    num_bytes = sum(max(0, len(tree[path].data) - before) for before, path in sizes)
    if num_bytes > MAX_PATCH_BYTES:
        raise PatchError(f"patch: adds {num_bytes} bytes, more than the {MAX_PATCH_BYTES} allowed; make it smaller")


def _split_attributes(paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """The attribute files apart from all others: git obeys those that lie beside the files it reads or writes."""
    rest: list[str] = []
    attributes: list[str] = []
    for path in paths:
        (attributes if path.endswith(ATTRIBUTES) else rest).append(path)
    return rest, attributes


def _apply_in(stage: Path, which: str, patch: str) -> None:
    run = _git(["apply", "--whitespace=nowarn", which, "-"], stage, patch.encode("utf-8"))
    if run.returncode != 0:
        raise PatchError(f"patch: doesn't apply: {_first_line(run.stderr)}; make it against the task's base")


def _is_text(entry: FileEntry | None) -> bool:
    """True if the content survives being part of a UTF-8 patch. A missing file does."""
    if entry is None:
        return True
    if b"\0" in entry.data:
        return False
    try:
        entry.data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _diff(paths: Iterable[str], base: Mapping[str, FileEntry], tree: Mapping[str, FileEntry], as_binary: bool) -> str:
    with tempfile.TemporaryDirectory(prefix="swe-rl-diff-", dir=memory_dir()) as name:
        root = Path(name)
        for side, entries in (("a", base), ("b", tree)):
            (root / side).mkdir()
            for path in paths:
                if path in entries:
                    _write_entry(root / side / path, entries[path])
        options = ["--no-index", "--no-ext-diff", "--no-textconv", "--no-renames", "--no-color", "--full-index"]
        options += ["--src-prefix=", "--dst-prefix=", "--binary" if as_binary else "--text", "--diff-algorithm=myers"]
        config = []
        if as_binary:
            (root / "attributes").write_text("* -diff\n")
            config = ["-c", f"core.attributesFile={root / 'attributes'}"]
        run = _git([*config, "diff", *options, "a", "b"], root)
    if run.returncode != 1:
        raise SandboxUnavailableError(f"git diff: exit code {run.returncode}, want 1: {_first_line(run.stderr)}")
    diff = re.sub(rb"^diff --git (.*)$", _both_sides, run.stdout, flags=re.MULTILINE)
    return diff.decode("utf-8", "backslashreplace")  # only a link's target, refused by every check, can need it


def _both_sides(match: re.Match[bytes]) -> bytes:
    """For a file on one side only, --no-index names that side twice; the format wants a/ and then b/.

    Safe on the whole text: every line of content begins with a blank, '+', '-' or a backslash.
    """
    names = match[1]
    half = (len(names) - 1) // 2
    left, right = names[:half], names[half + 1 :]
    quote = b'"' if left.startswith(b'"') else b""
    start = len(quote) + 1
    return b"diff --git " + quote + b"a" + left[start:] + b" " + quote + b"b" + right[start:]


def _write_entry(path: Path, entry: FileEntry) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if entry.mode == "120000":
        os.symlink(os.fsdecode(entry.data), path)
    else:
        path.write_bytes(entry.data)
        path.chmod(0o755 if entry.mode == "100755" else 0o644)


def _check_path(path: str) -> None:
    parts = path.split("/")
    if path.startswith("/") or "\0" in path or "\\" in path:
        raise PatchError(f"patch: {path!r}: not a path relative to the repository's root")
    if any(part in ("", ".", "..") for part in parts):
        raise PatchError(f"patch: {path!r}: a path may hold no '.', '..' or empty component")
    if any(part.lower().rstrip(". ") == ".git" for part in parts):
        raise PatchError(f"patch: {path!r}: a path may hold no .git component")
    if len(path.encode()) > MAX_PATH_BYTES or any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise PatchError(f"patch: {path[:80]!r}...: the path is too long; give the file a shorter name")
    if len(parts) > MAX_DEPTH:
        raise PatchError(f"patch: {path[:80]!r}...: lies {len(parts)} deep, more than the {MAX_DEPTH} allowed")


def _check_place(directory: Path, path: str, touched: set[str]) -> None:
    """Refuses what git can't see from the staging directory: links above a path, untouched files in its way."""
    if (directory / path).is_dir():
        below = (file for file in (directory / path).rglob("*") if file.is_symlink() or not file.is_dir())
        if not {str(file.relative_to(directory)) for file in below} <= touched:
            raise PatchError(f"patch: {path}: is a directory in the task; change plain files only")
    parent = directory
    for part in path.split("/")[:-1]:
        parent = parent / part
        if parent.is_symlink():
            raise PatchError(f"patch: {path}: lies beyond a symbolic link; name the file by its own path")
        if parent.is_file() and str(parent.relative_to(directory)) not in touched:
            raise PatchError(f"patch: {path}: {part} is a file in the task, not a directory")


def _stage_file(directory: Path, stage: Path, path: str) -> None:
    source = directory / path
    if source.is_symlink():
        raise PatchError(f"patch: {path}: is a symbolic link in the task; change plain files only")
    if source.is_file():
        (stage / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, stage / path)


def _write_back(stage: Path, directory: Path, paths: Sequence[str]) -> None:
    """Removals first: a file may have become a directory, or the other way round."""
    for path in paths:
        if not (stage / path).is_file():
            _remove(directory, path)
    for path in paths:
        if (stage / path).is_file():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_dir():
                shutil.rmtree(target)  # holds no file any more: _check_place
            target.unlink(missing_ok=True)
            shutil.copy(stage / path, target)


def _remove(directory: Path, path: str) -> None:
    """Removes the file and then, as git does, the directories that it leaves empty."""
    target = directory / path
    if not target.is_file():
        return
    target.unlink()
    for parent in target.parents:
        if parent == directory or not parent.is_dir() or any(parent.iterdir()):
            return
        parent.rmdir()


def _git(arguments: Sequence[str], cwd: Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(cwd),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": os.path.realpath(cwd.parent),
        "GIT_PAGER": "cat",
    }
    try:
        return subprocess.run(
            ["git", *arguments], cwd=cwd, env=environment, input=stdin, capture_output=True, timeout=GIT_TIMEOUT_S
        )
    except FileNotFoundError as error:
        raise SandboxUnavailableError("git isn't on this machine's PATH; install it") from error
    except subprocess.TimeoutExpired as error:
        raise SandboxTimeoutError(f"git {arguments[0]} ran longer than {GIT_TIMEOUT_S:g} s") from error


def _first_line(text: bytes) -> str:
    return (text.decode("utf-8", "replace").strip().splitlines() or ["no message"])[0][:300]
