"""All tasks below some roots, by id, and the manifests that freeze a split. A root holds <split>/<task_id>/ folders.

Hashing is left to whoever asks for `content_sha256`, so that thousands of tasks load in a second or two.
"""

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from swe_rl.errors import TaskError
from swe_rl.task.files import read_bytes
from swe_rl.task.quarantine import Quarantined, split_quarantined
from swe_rl.task.spec import NAME_PATTERN, TaskSpec, read_task


class TaskSet:
    """A fixed set of tasks in a fixed order (split, then id)."""

    def __init__(self, tasks: Sequence[TaskSpec], quarantined: Mapping[str, Quarantined] | None = None) -> None:
        """`quarantined`: ids that are left out on purpose. Raises TaskError if two tasks share an id."""
        self.quarantined = dict(quarantined or {})
        self._by_id: dict[str, TaskSpec] = {}
        for task in sorted(tasks, key=lambda task: (task.split, task.task_id)):
            other = self._by_id.setdefault(task.task_id, task)
            if other is not task:
                raise TaskError(f"task {task.task_id!r} is in {other.root} and in {task.root}; ids must be unique")

    @classmethod
    def load(cls, roots: Sequence[Path]) -> "TaskSet":
        """Leaves out what a root's quarantine.json names.

        Raises TaskError for a root that is missing or holds no task, or for any broken task.
        """
        tasks: list[TaskSpec] = []
        quarantined: dict[str, Quarantined] = {}
        for root in roots:
            found = [read_task(folder) for folder in _task_folders(root)]
            if not found:
                raise TaskError(f"{root}: holds no <split>/<task_id>/task.toml")
            usable, left_out = split_quarantined(found, root)
            tasks += usable
            quarantined |= left_out
        return cls(tasks, quarantined)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[TaskSpec]:
        return iter(self._by_id.values())

    def get(self, task_id: str) -> TaskSpec:
        try:
            return self._by_id[task_id]
        except KeyError:
            if task_id in self.quarantined:
                raise TaskError(f"task {task_id!r} is quarantined: {self.quarantined[task_id].reason}") from None
            raise TaskError(
                f"task {task_id!r} isn't among the {len(self)} loaded; list them with: swe-rl tasks list"
            ) from None

    def tasks(self, split: str | None = None) -> list[TaskSpec]:
        """In order; all of them if `split` is None. Raises TaskError if the split has none."""
        if split is not None and split not in self.splits:
            raise TaskError(f"no task has the split {split!r}; there are: {', '.join(self.splits)}")
        return [task for task in self if split in (None, task.split)]

    @property
    def splits(self) -> list[str]:
        return sorted({task.split for task in self})


def freeze_split(tasks: TaskSet, split: str, path: Path) -> None:
    """Writes {task_id: content_sha256} as sorted JSON, atomically."""
    frozen = {task.task_id: task.content_sha256 for task in tasks.tasks(split)}
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False, encoding="utf-8") as file:
        json.dump(frozen, file, indent=1, sort_keys=True)
        file.write("\n")
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def verify_split(tasks: TaskSet, split: str, path: Path) -> None:
    """Raises TaskError if the split lacks a task of the manifest, has one more, or holds one that was changed.

    A quarantined task may be lacking, unless it was changed.
    """
    frozen = _read_manifest(path)
    frozen = {
        task_id: digest
        for task_id, digest in frozen.items()
        if task_id not in tasks.quarantined or tasks.quarantined[task_id].content_sha256 != digest
    }
    current = {task.task_id: task for task in tasks.tasks(split)}
    for task_id in sorted(frozen.keys() | current.keys()):
        if task_id not in current:
            raise TaskError(f"{path}: {task_id}: is in the manifest, not in split {split!r}; restore the task")
        if task_id not in frozen:
            raise TaskError(f"{path}: {task_id}: is in split {split!r}, not in the manifest; freeze the split again")
        if frozen[task_id] != current[task_id].content_sha256:
            raise TaskError(
                f"{path}: {task_id}: the folder's hash is {current[task_id].content_sha256[:12]}, "
                f"the manifest's {frozen[task_id][:12]}; restore the task or freeze the split again"
            )


def _task_folders(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        raise TaskError(f"{root}: no such folder of tasks; give the folder that holds <split>/<task_id>")
    for split in _folders(root):
        for folder in _folders(Path(split.path)):
            if not re.match(NAME_PATTERN, split.name):
                raise TaskError(f"{split.path}: isn't a split's name; use letters, digits, '.', '_' and '-'")
            yield Path(folder.path)


def _folders(directory: Path) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        found = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    return sorted(found, key=lambda entry: entry.name)


def _read_manifest(path: Path) -> dict[str, str]:
    try:
        frozen = json.loads(read_bytes(path.parent, path.name))
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{path}: can't be read as a manifest: {error}") from error
    if not isinstance(frozen, dict) or not all(isinstance(value, str) for value in frozen.values()):
        raise TaskError(f"{path}: isn't a manifest: want a JSON object of task id and hash")
    return frozen
