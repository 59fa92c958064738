"""Real bugs that nobody here wrote (the HumanEvalFix rows): each solution resolves its task, each base doesn't."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from swe_rl.grade.check import CheckStatus, check_tasks
from swe_rl.grade.grader import Grader
from swe_rl.grade.patch import make_patch
from swe_rl.sandbox.base import FileEntry
from swe_rl.task.language import LanguageSpec
from swe_rl.task.spec import TaskSpec, read_task

DATA = Path(__file__).parents[3] / "shared/data/humanevalpack-python.jsonl.gz"
NUM_TASKS = 20
TOML = """schema_version = "1"
task_id = "{task_id}"
language = "python"
[tests]
fail_to_pass = ["tests/test_hidden.py::test_hidden"]
"""


def read_rows() -> list[dict[str, Any]]:
    if not DATA.is_file():
        pytest.skip(f"the public rows aren't beside the repository: {DATA.name}")
    with gzip.open(DATA, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def write_task(row: dict[str, Any], root: Path) -> TaskSpec:
    folder = root / "dev" / row["task_id"].replace("/", "-").lower()
    for part in ("environment/src", "environment/tests", "tests/tests", "solution"):
        (folder / part).mkdir(parents=True)
    buggy, right = (row["declaration"] + row[key] for key in ("buggy_solution", "canonical_solution"))
    body = "\n".join("    " + line for line in row["test"].strip().splitlines())
    (folder / "task.toml").write_text(TOML.format(task_id=folder.name))
    (folder / "instruction.md").write_text(row["instruction"] + "\n")
    (folder / "environment/src/solution.py").write_text(buggy)
    (folder / "environment/tests/test_import.py").write_text(
        "import solution\n\n\ndef test_it_imports():\n    solution\n"
    )
    (folder / "tests/tests/test_hidden.py").write_text(
        f"from solution import *\nfrom solution import {row['entry_point']}\n\n\ndef test_hidden():\n{body}\n"
    )
    patch = make_patch(*({"src/solution.py": FileEntry("100644", text.encode())} for text in (buggy, right)))
    (folder / "solution/solution.patch").write_text(patch)
    return read_task(folder)


async def test_solutions_resolve_and_buggy_bases_do_not(grader: Grader, python: LanguageSpec, tmp_path: Path) -> None:
    rows = read_rows()
    tasks = [write_task(row, tmp_path / "pack") for row in rows[:: len(rows) // NUM_TASKS][:NUM_TASKS]]
    results = [result async for result in check_tasks(tasks, grader, {"python": python}, needs_host_tools=True)]
    assert len(results) == NUM_TASKS
    assert [result for result in results if result.status is not CheckStatus.OK] == []
