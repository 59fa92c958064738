"""Is a task fit to train on? Its solution must resolve it, its base must not, and every run must agree with the last.

A task that fails here teaches the wrong lesson or none, so check before training. A language whose toolchain this
machine lacks is reported as skipped: it says nothing about the task.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from swe_rl.errors import SandboxError, TaskError
from swe_rl.grade.judge import Judgement
from swe_rl.task.language import LanguageSpec
from swe_rl.task.spec import TaskSpec
from swe_rl.verdict import Outcome, Verdict

NUM_RUNS = 2


class PatchGrader(Protocol):
    """What a check needs: a `Grader` here, or a service's."""

    async def grade(self, task: TaskSpec, patch: str) -> Verdict: ...

    async def run_base(self, task: TaskSpec) -> Judgement: ...


class CheckStatus(StrEnum):
    """SKIPPED means that this machine can't tell."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one task's check found; `problem` is one line, '' if it's ok."""

    task_id: str
    split: str
    status: CheckStatus
    problem: str = ""


async def check_tasks(
    tasks: Sequence[TaskSpec], grader: PatchGrader, languages: dict[str, LanguageSpec], *, needs_host_tools: bool
) -> AsyncIterator[CheckResult]:
    """Yields results in the tasks' order while later tasks already run. The grader bounds how many run at once.

    `needs_host_tools`: the backend runs the host's own toolchain, so a language without one is skipped.
    """
    running = [asyncio.ensure_future(_check(task, grader, languages, needs_host_tools)) for task in tasks]
    try:
        for result in running:
            yield await result
    finally:
        for result in running:
            result.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _check(
    task: TaskSpec, grader: PatchGrader, languages: dict[str, LanguageSpec], needs_host_tools: bool
) -> CheckResult:
    language = languages.get(task.language)
    if language is None:
        return _result(task, CheckStatus.FAILED, f"language {task.language!r} has no sandbox.toml")
    if needs_host_tools and language.missing_tools:
        return _result(task, CheckStatus.SKIPPED, f"this machine lacks {', '.join(language.missing_tools)}")
    try:
        problem = await check_task(task, grader)
    except TaskError as error:
        problem = str(error)
    except SandboxError as error:
        problem = f"the environment failed: {error}"
    return _result(task, CheckStatus.FAILED if problem else CheckStatus.OK, problem)


async def check_task(task: TaskSpec, grader: PatchGrader) -> str:
    """The first problem in one line, or ''. Raises TaskError for an unreadable folder, SandboxError for a fault."""
    task.content_sha256  # noqa: B018  (walks the folder, and so refuses what a task may not hold)
    for run in range(1, NUM_RUNS + 1):
        problem = await _solution_problem(task, grader) or await _base_problem(task, grader)
        if problem:
            return problem if run == 1 else f"run {run} of {NUM_RUNS} disagrees with the first: {problem}"
    return ""


async def _solution_problem(task: TaskSpec, grader: PatchGrader) -> str:
    verdict = await grader.grade(task, task.solution_patch)
    if verdict.is_resolved:
        restored = verdict.signals["restored"]
        return f"the solution changes protected files: {', '.join(restored)}" if restored else ""
    if verdict.outcome is Outcome.ENVIRONMENT_ERROR:
        raise SandboxError(str(verdict.signals.get("fault", "unknown fault")))
    reason = verdict.signals.get("patch") or verdict.signals.get("problem") or "tests fail"
    reason = "; ".join(f"{v.rule}: {v.path or v.evidence}" for v in verdict.violations) or reason
    return (
        f"the solution is {verdict.outcome.value} ({reason}): fail_to_pass {verdict.fail_to_pass.passed}/"
        f"{verdict.fail_to_pass.total}, pass_to_pass {verdict.pass_to_pass.passed}/{verdict.pass_to_pass.total}"
    )


async def _base_problem(task: TaskSpec, grader: PatchGrader) -> str:
    judgement = await grader.run_base(task)
    passing, kept = judgement.fail_to_pass, judgement.pass_to_pass
    if judgement.outcome is Outcome.TIMEOUT:
        return "the tests of the unpatched base run into the time limit"
    if passing.passed:
        return f"{passing.passed} of {passing.total} fail_to_pass tests pass on the unpatched base"
    if kept.passed != kept.total:
        reason = judgement.signals["problem"] or "they fail"
        return f"{kept.total - kept.passed} of {kept.total} pass_to_pass tests don't pass on the base ({reason})"
    return ""


def _result(task: TaskSpec, status: CheckStatus, problem: str) -> CheckResult:
    return CheckResult(task.task_id, task.split, status, problem)
