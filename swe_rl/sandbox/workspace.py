"""A task's environment as a fresh one-commit git repository, laid once a content and copied for each session.

Source directory -> template on disk (files + `.git` with one commit, no remotes, no reflog, no other objects) ->
copies. A template is kept by content hash; whether a source has changed is seen from the names, sizes and times.
Nothing here is untrusted: sources are task folders on the host.
"""

import hashlib
import os
import shutil
import stat
import threading
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from git import Actor, Commit, Repo
from git.index.typ import BaseIndexEntry, IndexEntry
from gitdb import IStream

from swe_rl.errors import SandboxError
from swe_rl.sandbox.base import FileEntry
from swe_rl.sandbox.tree import read_tree, remove_tree

COMMIT_DATE = "2000-01-01T00:00:00+0000"
COMMITTER = Actor("swe-rl", "swe-rl@localhost")
MAX_HELD_BYTES = 2 * 1024 * 1024
_GIT_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = false\n"


@dataclass(frozen=True, slots=True)
class Template:
    """A laid-out directory. `files` holds path, mode and, where the template is small, the bytes."""

    root: Path
    tree: dict[str, FileEntry]
    content_sha256: str
    directories: tuple[str, ...]
    files: tuple[tuple[str, int, bytes | None], ...]
    links: tuple[tuple[str, str], ...]

    def copy_to(self, target: Path, owner: int | None = None) -> None:
        """Makes `target` (which must not exist) an independent copy of `owner`; nothing is hard-linked."""
        base = str(target) + "/"
        os.mkdir(target, 0o755)
        for path in self.directories:
            os.mkdir(base + path, 0o755)
            if owner is not None:
                os.chown(base + path, owner, owner)
        for path, mode, data in self.files:
            descriptor = os.open(base + path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            try:
                if owner is not None:
                    os.fchown(descriptor, owner, owner)
                if data is not None:
                    _write_all(descriptor, data)
            finally:
                os.close(descriptor)
            if data is None:
                shutil.copyfile(self.root / path, base + path)
        for path, link in self.links:
            os.symlink(link, base + path)
            if owner is not None:
                os.lchown(base + path, owner, owner)
        if owner is not None:
            os.chown(target, owner, owner)


class WorkspaceCache:
    """Templates below one private directory; safe to use from several threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._by_key: dict[tuple[str, str], Template] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    def template(self, source: Path) -> Template:
        """Raises SandboxError where the source isn't a readable directory."""
        key = (str(source), _signature(source))
        found = self._by_key.get(key)
        if found is not None:
            return found
        tree = read_tree(source)
        digest = content_hash(tree)
        with self._guard:
            lock = self._locks.setdefault(digest, threading.Lock())
        with lock:
            root = self._directory / digest
            if not root.exists():
                self._lay(tree, source, root)
            template = _load(root, tree)
        self._by_key[key] = template
        return template

    def _lay(self, tree: dict[str, FileEntry], source: Path, root: Path) -> None:
        partial = root.with_name(root.name + ".partial")
        remove_tree(partial)
        partial.mkdir(parents=True)
        write_tree(tree, partial)
        for directory in _directories(source):
            (partial / directory).mkdir(parents=True, exist_ok=True)
        lay_repository(partial, tree)
        partial.rename(root)


def take_over(source: Path, target: Path, owner: int | None = None) -> None:
    """Moves a disposable directory to `target` (which must not exist), for `owner`; it gets no repository."""
    try:
        os.rename(source, target)
    except OSError:  # another file system
        shutil.copytree(source, target, symlinks=True)
        remove_tree(source)
    if owner is not None:
        for directory, names, leaves in os.walk(target):
            for name in (".", *names, *leaves):
                os.lchown(os.path.join(directory, name), owner, owner)


def lay_repository(root: Path, tree: dict[str, FileEntry]) -> None:
    """Makes `root` a git repository whose only commit holds exactly `tree`; the same tree gives the same commit."""
    git = root / ".git"
    for directory in ("objects", "refs/heads"):
        (git / directory).mkdir(parents=True)
    # Written by hand: `git init` would cost a process and bring hooks and the host's own configuration.
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "config").write_text(_GIT_CONFIG)
    repository = Repo(root)
    try:
        # Object by object: `index.add` would change the process's working directory, which all threads share.
        entries = [_store(repository, path, entry) for path, entry in tree.items()]
        index = repository.index
        index.entries = {(entry.path, 0): entry for entry in entries}
        index.write(ignore_extension_data=True)
        commit = Commit.create_from_tree(
            repository,
            index.write_tree(),
            "Base",
            parent_commits=[],
            head=False,
            author=COMMITTER,
            committer=COMMITTER,
            author_date=COMMIT_DATE,
            commit_date=COMMIT_DATE,
        )
        (git / "refs" / "heads" / "main").write_text(f"{commit.hexsha}\n")
    finally:
        repository.close()


def _store(repository: Repo, path: str, entry: FileEntry) -> IndexEntry:
    stored = repository.odb.store(IStream("blob", len(entry.data), BytesIO(entry.data)))
    return IndexEntry.from_base(BaseIndexEntry((int(entry.mode, 8), stored.binsha, 0, path)))


def content_hash(tree: dict[str, FileEntry]) -> str:
    """sha256 over paths, modes and contents."""
    digest = hashlib.sha256()
    for path, entry in sorted(tree.items()):
        digest.update(f"{entry.mode} {len(entry.data)} {path}\0".encode())
        digest.update(entry.data)
    return digest.hexdigest()


def _signature(source: Path) -> str:
    digest = hashlib.sha256()
    stack = [str(source)]
    try:
        while stack:
            with os.scandir(stack.pop()) as entries:
                for entry in sorted(entries, key=lambda e: e.name):
                    status = entry.stat(follow_symlinks=False)
                    digest.update(f"{entry.path}\0{status.st_mode} {status.st_size} {status.st_mtime_ns}".encode())
                    if stat.S_ISDIR(status.st_mode) and entry.name != ".git":
                        stack.append(entry.path)
    except OSError as error:
        raise SandboxError(f"workspace: source {source} can't be read: {error}; expected a directory") from error
    return digest.hexdigest()


def _directories(root: Path) -> list[str]:
    found = []
    for directory, names, _ in os.walk(root):
        names[:] = [n for n in names if n != ".git" and not os.path.islink(os.path.join(directory, n))]
        found += [os.path.relpath(os.path.join(directory, name), root) for name in names]
    return found


def write_tree(tree: dict[str, FileEntry], root: Path) -> None:
    """Lays files and links below `root`, which is made where it isn't there."""
    root.mkdir(exist_ok=True)
    for path, entry in tree.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.mode == "120000":
            os.symlink(os.fsdecode(entry.data), target)
        else:
            target.write_bytes(entry.data)
            target.chmod(0o755 if entry.mode == "100755" else 0o644)


def _load(root: Path, tree: dict[str, FileEntry]) -> Template:
    directories, files, links = [], [], []
    room = MAX_HELD_BYTES
    for directory, names, leaves in os.walk(root):
        for name in sorted(names + leaves):
            full = os.path.join(directory, name)
            path, status = os.path.relpath(full, root), os.lstat(full)
            if stat.S_ISLNK(status.st_mode):
                links.append((path, os.readlink(full)))
            elif stat.S_ISDIR(status.st_mode):
                directories.append(path)
            else:
                room -= status.st_size
                data = Path(full).read_bytes() if room >= 0 else None
                files.append((path, 0o755 if status.st_mode & 0o100 else 0o644, data))
    return Template(root, tree, content_hash(tree), tuple(directories), tuple(files), tuple(links))


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
