"""Every row's right solution resolves its task and its buggy one doesn't, through the service."""

import asyncio
import os
from collections.abc import Callable

import pytest

from swe_rl.cli.remote_grader import NO_CHANGE, RemoteGrader
from swe_rl.client import SandboxClient
from swe_rl.grade.check import CheckStatus, check_task
from swe_rl.task.spec import TaskSpec
from swe_rl.task.taskset import TaskSet
from swe_rl.verdict import Outcome

CONCURRENCY = min(16, os.cpu_count() or 2)
# A row of each bug type where a run is quick; Go and Rust compile for seconds.
NUM_SAMPLED = {"python": 6, "javascript": 6, "go": 1, "rust": 1}
# Its right solution judges by the first two keys of a map, whose order Go draws anew in each run.
FLAKY = frozenset({"humanevalpack-go-95"})


def choose(tasks: list[TaskSpec], number: int) -> list[TaskSpec]:
    """One task a bug type in turn, in the tasks' order; none whose base runs until its time limit."""
    by_type: dict[str, list[TaskSpec]] = {}
    for task in (task for task in tasks if task.labels["failure_symptoms"] != "infinite loop"):
        by_type.setdefault(task.labels["bug_type"], []).append(task)
    turns = [group[turn] for turn in range(number) for group in by_type.values() if turn < len(group)]
    return turns[:number]


@pytest.mark.parametrize("extent", ["sample", pytest.param("all", marks=pytest.mark.real)])
@pytest.mark.parametrize("language", NUM_SAMPLED, indirect=True)
async def test_the_right_solution_resolves_a_row_and_the_buggy_one_does_not(
    language: str, extent: str, tasks: TaskSet, client: SandboxClient, record: Callable[[TaskSpec, bool, bool], None]
) -> None:
    chosen = [task for task in tasks if task.language == language]
    assert len(chosen) == 164
    if extent == "sample":
        chosen = choose(chosen, NUM_SAMPLED[language])
    slots = asyncio.Semaphore(CONCURRENCY)

    async def misgraded(task: TaskSpec) -> str:
        async with slots:
            right = await client.grade_patch(task.task_id, task.solution_patch)
            buggy = await client.grade_patch(task.task_id, NO_CHANGE)
        is_right = right.outcome is Outcome.RESOLVED and right.reward == 1.0
        is_refused = buggy.outcome in (Outcome.UNRESOLVED, Outcome.TIMEOUT) and buggy.reward == 0.0
        record(task, is_right, is_refused)
        if is_refused and (is_right or (task.task_id in FLAKY and right.outcome is Outcome.UNRESOLVED)):
            return ""
        return f"{task.task_id}: right: {right.outcome} {right.signals}; buggy: {buggy.outcome} {buggy.signals}"

    found = await asyncio.gather(*(misgraded(task) for task in chosen))
    assert [words for words in found if words] == []


@pytest.mark.real
@pytest.mark.parametrize("language", ["go"], indirect=True)
async def test_the_row_whose_right_solution_is_a_lottery_is_found_to_be_flaky(
    language: str, tasks: TaskSet, client: SandboxClient
) -> None:
    for task_id in FLAKY:
        status, problem = await check_task(tasks.get(task_id), RemoteGrader(client, 1), num_runs=60)
        assert status is CheckStatus.FLAKY and "of the solution differs" in problem
