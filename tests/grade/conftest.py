"""A real bubblewrap backend, the project's own Python language, and a small task to attack."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from swe_rl.errors import SandboxUnavailableError
from swe_rl.grade.grader import Grader
from swe_rl.grade.patch import make_patch
from swe_rl.sandbox.backend import open_backend
from swe_rl.sandbox.base import Backend, FileEntry
from swe_rl.sandbox.tree import read_tree
from swe_rl.task.language import LanguageSpec, read_language
from swe_rl.task.spec import TaskSpec, read_task

ROOT = Path(__file__).parents[2]
TASK_TOML = """
schema_version = "1"
task_id = "clamp"
language = "python"

[tests]
fail_to_pass = ["tests/test_hidden.py::test_upper"]
pass_to_pass = ["tests/test_hidden.py::test_lower", "tests/test_visible.py::test_inside"]

[limits]
timeout_s = 10
"""
FILES = {
    "task.toml": TASK_TOML,
    "instruction.md": "clamp(x, low, high) ignores `high`.\n",
    "environment/src/clamp.py": "def clamp(x, low, high):\n    return max(x, low)\n",
    "environment/tests/test_visible.py": (
        "from clamp import clamp\n\n\ndef test_inside():\n    assert clamp(2, 1, 3) == 2\n"
    ),
    "environment/README.md": "clamp\n",
    "tests/tests/test_hidden.py": (
        "from clamp import clamp\n\n\ndef test_upper():\n    assert clamp(5, 1, 3) == 3\n\n\n"
        "def test_lower():\n    assert clamp(0, 1, 3) == 1\n"
    ),
}
FIXED = "def clamp(x, low, high):\n    return min(max(x, low), high)\n"


def write_files(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.fixture
def python() -> LanguageSpec:
    return read_language(ROOT / "sandboxes" / "python")


@pytest.fixture
async def backend(python: LanguageSpec, tmp_path: Path) -> AsyncIterator[Backend]:
    try:
        opened = await open_backend("bubblewrap", {"python": python}, tmp_path / "sandboxes")
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    yield opened
    await opened.close()


@pytest.fixture
def grader(backend: Backend, python: LanguageSpec, tmp_path: Path) -> Grader:
    (tmp_path / "grading").mkdir()
    return Grader(backend, {"python": python}, concurrency=2, scratch_dir=tmp_path / "grading")


@pytest.fixture
def task(tmp_path: Path) -> TaskSpec:
    folder = tmp_path / "tasks" / "dev" / "clamp"
    write_files(folder, FILES)
    write_files(folder, {"solution/solution.patch": patch_of(read_task(folder), {"src/clamp.py": FIXED})})
    return read_task(folder)


def patch_of(task: TaskSpec, change: dict[str, str | None]) -> str:
    """The patch of an agent that wrote (or, for None, deleted) these files in its own sandbox."""
    base = read_tree(task.environment_dir)
    tree = base | {path: FileEntry("100644", text.encode()) for path, text in change.items() if text is not None}
    return make_patch(base, {path: file for path, file in tree.items() if change.get(path, "") is not None})


@pytest.fixture
def agent(task: TaskSpec) -> Callable[[dict[str, str | None]], str]:
    return lambda change: patch_of(task, change)
