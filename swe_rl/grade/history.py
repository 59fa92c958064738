"""What a session's repository may hold: one commit, the objects of its tree, and no way to any other history.

git itself is asked, on a copy of the workspace. Whatever a fresh one-commit repository lacks is named: objects that the
commit doesn't reach (loose, packed or borrowed), branches, tags, remotes, a reflog, a stash, hooks, worktrees,
submodules, and second object stores in the working directory.
"""

import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from swe_rl.errors import SandboxError
from swe_rl.sandbox.tree import read_tree

GIT_S = 120.0
_FORMAT = "--batch-check=%(objectname) %(objecttype)"
_ENVIRONMENT = {
    "PATH": os.defpath,
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
}
_FRESH = re.compile(r"HEAD|config|index|refs/heads/main|objects/[0-9a-f]{2}/[0-9a-f]{38}")
_SETTINGS = {"core.repositoryformatversion", "core.filemode", "core.bare", "core.logallrefupdates"}
_STORE_HEADS = (b"PACK\0\0\0", b"# v2 git bundle", b"# v3 git bundle", b"gitdir: ")


def find_history(root: Path) -> list[str]:
    """One line a finding; empty for a workspace that is as it should be. Raises SandboxError where git can't tell."""
    return [*_foreign_objects(root), *_foreign_settings(root), *_foreign_files(root / ".git"), *_second_stores(root)]


def _foreign_objects(root: Path) -> Iterator[str]:
    stored = dict(line.split() for line in _git(root, "cat-file", "--batch-all-objects", _FORMAT).splitlines())
    reached = {line.split()[0] for line in _git(root, "rev-list", "--objects", "HEAD", "--").splitlines()}
    commits = [name for name, kind in stored.items() if kind == "commit"]
    if len(commits) != 1:
        yield f"{len(commits)} commits, expected one"
    foreign = sorted(set(stored) - reached)
    if foreign:
        yield f"{len(foreign)} objects that the commit doesn't reach, e.g. the {stored[foreign[0]]} {foreign[0]}"
    references = _git(root, "for-each-ref", "--format=%(refname)").split()
    if references != ["refs/heads/main"]:
        yield f"references {' '.join(references)}, expected refs/heads/main alone"
    # By their bytes: git's own comparison would obey the repository's attributes.
    listed = [line.partition("\t") for line in _git(root, "ls-tree", "-r", "-z", "HEAD").split("\0") if line]
    committed = {f"{head.split()[0]} {head.split()[2]} {path}" for head, _, path in listed}
    files = {f"{entry.mode} {_blob_name(entry.data)} {path}" for path, entry in read_tree(root).items()}
    changed = sorted(files ^ committed)
    if changed:
        yield f"{len(changed)} files that aren't as the commit has them, e.g. {changed[0].split(' ', 2)[2]}"


def _blob_name(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _foreign_settings(root: Path) -> Iterator[str]:
    listed = _git(root, "config", "--file", str(root / ".git" / "config"), "--name-only", "--list").split()
    for name in sorted(set(listed) - _SETTINGS):
        yield f"the setting {name} in .git/config"


def _foreign_files(git: Path) -> Iterator[str]:
    for path in _files(git):
        name = path.relative_to(git).as_posix()
        if path.is_symlink() or not _FRESH.fullmatch(name):
            yield f".git/{name}, which a fresh repository lacks"


def _second_stores(root: Path) -> Iterator[str]:
    for directory, names, files in os.walk(root):
        here = Path(directory)
        if here == root:
            names.remove(".git")
        if here.name == "objects" and any(re.fullmatch(r"[0-9a-f]{2}|pack", name) for name in names):
            yield f"{here.relative_to(root)}/, an object store"
        if ".git" in names:
            yield f"{(here / '.git').relative_to(root)}, a second repository"
        for name in files:
            path = here / name
            if not path.is_symlink() and _head(path).startswith(_STORE_HEADS):
                yield f"{path.relative_to(root)}, a pack, a bundle or a link to a repository"


def _files(root: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(root):
        yield from (Path(directory) / name for name in files)
        yield from (path for name in names if (path := Path(directory) / name).is_symlink())


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(16)


def _git(root: Path, *arguments: str) -> str:
    argv = ["git", f"--git-dir={root / '.git'}", f"--work-tree={root}", *arguments]
    try:
        done = subprocess.run(argv, cwd=root, env=_ENVIRONMENT, capture_output=True, timeout=GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"git {arguments[0]}: can't be run on a session's workspace: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise SandboxError(f"git {arguments[0]}: exit code {done.returncode} on a session's workspace: {said[:300]}")
    return done.stdout.decode(errors="surrogateescape")
