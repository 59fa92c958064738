"""One task with its secrets, read from its folder; the only type through which hidden tests and solutions are reached.

    <split>/<task_id>/task.toml          ids of the expected tests, labels, overrides of the language's defaults
                     /instruction.md     what the agent is told
                     /environment/       the repository at its base, visible tests included
                     /tests/             hidden test files, written over the tree at grading (same relative paths)
                     /variants/          optional: the same tests with other values, written over those in a run apart
                     /solution/solution.patch

Small files are read at once, so a broken task fails at load; the solution and the hash are read when asked for.
"""

import hashlib
import os
import stat
import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swe_rl.errors import TaskError
from swe_rl.task.files import MAX_FILE_BYTES, read_bytes, read_text, require_directory, walk_files
from swe_rl.task.language import first_problem

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


@dataclass(frozen=True)
class TaskSpec:
    """One task. An override that is None means the language's own value."""

    task_id: str
    split: str
    language: str
    instruction: str
    root: Path
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    labels: dict[str, str] = field(default_factory=dict)
    test_command: tuple[str, ...] | None = None
    visible_command: tuple[str, ...] | None = None
    timeout_s: float | None = None
    memory_mb: int | None = None

    @property
    def environment_dir(self) -> Path:
        return self.root / "environment"

    @property
    def tests_dir(self) -> Path:
        return self.root / "tests"

    @property
    def variants_dir(self) -> Path:
        return self.root / "variants"

    @property
    def has_variants(self) -> bool:
        return self.variants_dir.is_dir()

    @cached_property
    def solution_patch(self) -> str:
        """Raises TaskError if the task has no readable solution."""
        return read_text(self.root, "solution/solution.patch", MAX_FILE_BYTES)

    @cached_property
    def content_sha256(self) -> str:
        """Hash over each file's path, mode and bytes; raises TaskError for what a task folder may not hold."""
        return hash_folder(self.root)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Tests(_Section):
    fail_to_pass: list[str] = Field(min_length=1)
    pass_to_pass: list[str] = Field(default_factory=list)
    command: list[str] | None = Field(default=None, min_length=1)
    visible_command: list[str] | None = Field(default=None, min_length=1)


class _Limits(_Section):
    timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory_mb: int | None = Field(default=None, gt=0)


class _TaskFile(_Section):
    schema_version: Literal["1"]
    task_id: str = Field(pattern=NAME_PATTERN, max_length=200)
    language: str = Field(min_length=1)
    labels: dict[str, str] = Field(default_factory=dict)
    tests: _Tests
    limits: _Limits = Field(default_factory=_Limits)


def read_task(folder: Path) -> TaskSpec:
    """`folder` is <split>/<task_id>. Raises TaskError, one line with the file and the key."""
    path = folder / "task.toml"
    if not path.exists():
        raise TaskError(f"{path}: no such file; a task is a folder <split>/<task_id> with a task.toml")
    text = read_text(folder, "task.toml")
    try:
        parsed = _TaskFile.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{path}: isn't TOML: {error}") from error
    except ValidationError as error:
        raise TaskError(f"{path}: {first_problem(error)}") from error
    except (ValueError, RecursionError) as error:  # what the TOML parser lets through: long numbers, nesting
        raise TaskError(f"{path}: isn't TOML: {error}") from error
    if parsed.task_id != folder.name:
        raise TaskError(f"{path}: task_id: is {parsed.task_id!r}, but the folder is {folder.name!r}; make them equal")
    _check_ids(path, parsed.tests)
    for part in ("environment", "tests"):
        require_directory(folder / part)
    instruction = read_text(folder, "instruction.md")
    if not instruction.strip():
        raise TaskError(f"{folder / 'instruction.md'}: is empty; the agent needs an instruction")
    return TaskSpec(
        task_id=parsed.task_id,
        split=folder.parent.name,
        language=parsed.language,
        instruction=instruction,
        root=folder,
        fail_to_pass=tuple(parsed.tests.fail_to_pass),
        pass_to_pass=tuple(parsed.tests.pass_to_pass),
        labels=parsed.labels,
        test_command=None if parsed.tests.command is None else tuple(parsed.tests.command),
        visible_command=None if parsed.tests.visible_command is None else tuple(parsed.tests.visible_command),
        timeout_s=parsed.limits.timeout_s,
        memory_mb=parsed.limits.memory_mb,
    )


def hash_folder(root: Path) -> str:
    """sha256 over (path, executable or link, bytes) of all files below `root` in path order; times don't count.

    Raises TaskError for a nested .git, a special file, or a link that leaves the folder it is in.
    """
    digest = hashlib.sha256()
    for name, path in sorted(walk_files(root)):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            mode, data = "120000", os.fsencode(os.readlink(path))
            _check_link(root, name, path)
        elif stat.S_ISREG(status.st_mode):
            mode, data = ("100755" if status.st_mode & 0o100 else "100644"), read_bytes(root, name)
        else:
            raise TaskError(f"{path}: is neither a file nor a link; remove it from the task")
        # Lengths and NUL-free modes make the concatenation unambiguous.
        encoded = os.fsencode(name)
        digest.update(b"%s %d %d\n" % (mode.encode(), len(encoded), len(data)) + encoded + data)
    return digest.hexdigest()


def _check_link(root: Path, name: str, path: Path) -> None:
    """A link may point only inside environment/, tests/ or variants/, whichever it is in, and only relatively."""
    top = root / name.split("/")[0]
    target = Path(os.path.normpath(path.parent / os.readlink(path)))
    if os.path.isabs(os.readlink(path)) or not target.is_relative_to(top):
        raise TaskError(f"{path}: the link leaves {top.name}/; use a relative link inside it")


def _check_ids(path: Path, tests: _Tests) -> None:
    ids = [*tests.fail_to_pass, *tests.pass_to_pass]
    if "" in ids:
        raise TaskError(f"{path}: tests: an expected test id is empty")
    seen: set[str] = set()
    for test_id in ids:
        if test_id in seen:
            raise TaskError(f"{path}: tests: {test_id!r} is expected twice; list it once, in one of the two lists")
        seen.add(test_id)
