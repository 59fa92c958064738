"""Every task that ships is fit to train on: its solution resolves it and its base doesn't, in real sandboxes."""

import hashlib
import re
from pathlib import Path

import pytest

from swe_rl.errors import SandboxUnavailableError
from swe_rl.grade.check import CheckStatus, check_task
from swe_rl.grade.grader import Grader
from swe_rl.sandbox.backend import open_backend
from swe_rl.task.language import read_languages
from swe_rl.task.taskset import TaskSet

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = read_languages(ROOT / "sandboxes")
TASKS = TaskSet.load([ROOT / "tasks"])
EACH = pytest.mark.parametrize("task_id", [task.task_id for task in TASKS])


@EACH
async def test_the_solution_resolves_the_task_and_the_base_does_not(task_id: str, tmp_path: Path) -> None:
    task = TASKS.get(task_id)
    language = LANGUAGES[task.language]
    if language.missing_tools:
        pytest.skip(f"this machine lacks {', '.join(language.missing_tools)}")
    try:
        backend = await open_backend("bubblewrap", {language.language: language}, tmp_path)
    except SandboxUnavailableError as error:
        pytest.skip(f"no bubblewrap sandbox here: {error}")
    try:
        assert await check_task(task, Grader(backend, {language.language: language})) == (CheckStatus.OK, "")
    finally:
        await backend.close()


@EACH
def test_the_instruction_gives_away_no_hidden_test(task_id: str) -> None:
    task = TASKS.get(task_id)
    names = {re.split(r"::|#", test_id)[-1] for test_id in task.fail_to_pass}
    assert not [name for name in names if name in task.instruction]


@EACH
def test_hidden_tests_are_not_in_the_environment(task_id: str) -> None:
    task = TASKS.get(task_id)
    visible = {hashlib.sha256(path.read_bytes()).digest() for path in task.environment_dir.rglob("*") if path.is_file()}
    hidden = [path for path in task.tests_dir.rglob("*") if path.is_file()]
    assert hidden
    assert not [path for path in hidden if hashlib.sha256(path.read_bytes()).digest() in visible]


@EACH
def test_every_hidden_test_file_is_protected(task_id: str) -> None:
    task = TASKS.get(task_id)
    language = LANGUAGES[task.language]
    paths = [path.relative_to(task.tests_dir).as_posix() for path in task.tests_dir.rglob("*") if path.is_file()]
    assert all(language.is_protected(path) for path in paths)


def test_every_task_is_in_a_language_that_ships() -> None:
    assert {task.language for task in TASKS} <= set(LANGUAGES)


def test_the_test_header_of_the_tasks_in_c_is_the_one_that_the_runner_offers() -> None:
    copies = {path.read_bytes() for path in (ROOT / "tasks").rglob("tap.h")}
    assert copies == {(ROOT / "sandboxes/tap/tap.h").read_bytes()}
