"""Tasks that a check has found to be flaky: `quarantine.json` beside the splits, which every load of the folder obeys.

    {"<task_id>": {"content_sha256": "...", "reason": "..."}}

An entry holds for the content that was checked: a task that has been changed since is loaded again. An entry is taken
away by hand, or by changing the task; that one run went well proves nothing.
"""

import json
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from swe_rl.errors import TaskError
from swe_rl.task.files import read_bytes
from swe_rl.task.language import first_problem
from swe_rl.task.spec import TaskSpec

logger = logging.getLogger(__name__)

FILE_NAME = "quarantine.json"
MAX_REASON = 500


class Quarantined(BaseModel):
    """Why a task is left out, and which content of it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    content_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    reason: str = Field(min_length=1, max_length=MAX_REASON)


_FILE = TypeAdapter(dict[str, Quarantined])


def read_quarantine(root: Path) -> dict[str, Quarantined]:
    """By task id; empty without such a file. Raises TaskError for one that can't be read."""
    path = root / FILE_NAME
    if not os.path.lexists(path):
        return {}
    try:
        return _FILE.validate_json(read_bytes(root, FILE_NAME))
    except ValidationError as error:
        raise TaskError(f"{path}: {first_problem(error)}") from error


def split_quarantined(tasks: Sequence[TaskSpec], root: Path) -> tuple[list[TaskSpec], dict[str, Quarantined]]:
    """The tasks that may be used, and the entries of those that may not; says each of the latter in the log."""
    entries = read_quarantine(root)
    usable: list[TaskSpec] = []
    left_out: dict[str, Quarantined] = {}
    for task in tasks:
        entry = entries.get(task.task_id)
        if entry is None:
            usable.append(task)
        elif entry.content_sha256 != task.content_sha256:
            logger.warning("%s: %s has changed since it was quarantined; check it again", root, task.task_id)
            usable.append(task)
        else:
            logger.warning("%s: %s is left out: quarantined: %s", root, task.task_id, entry.reason)
            left_out[task.task_id] = entry
    return usable, left_out


def quarantine(task: TaskSpec, reason: str) -> Path:
    """Adds a task to its folder's file, atomically; the file. Raises TaskError where it can't be written."""
    root = task.root.parent.parent
    path = root / FILE_NAME
    entry = Quarantined(content_sha256=task.content_sha256, reason=" ".join(reason.split())[:MAX_REASON])
    entries = {name: found.model_dump() for name, found in read_quarantine(root).items()}
    entries[task.task_id] = entry.model_dump()
    try:
        with tempfile.NamedTemporaryFile("w", dir=root, prefix=FILE_NAME, delete=False, encoding="utf-8") as file:
            json.dump(entries, file, indent=1, sort_keys=True)
            file.write("\n")
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    except OSError as error:
        raise TaskError(f"{path}: can't be written: {error.strerror}") from error
    return path
