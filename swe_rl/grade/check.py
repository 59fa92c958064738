"""Is a task fit to train on? Its solution must resolve it, its base must not, and every run must agree with the first.

A task that fails here teaches the wrong lesson or none, so check before training. One whose runs differ is flaky: its
reward would be a lottery. A language whose toolchain this machine lacks is reported as skipped: it says nothing about
the task.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from swe_rl.errors import SandboxError, TaskError
from swe_rl.grade.exposure import Exposure
from swe_rl.grade.judge import Judgement
from swe_rl.task.language import LanguageSpec
from swe_rl.task.spec import TaskSpec
from swe_rl.verdict import Level, Outcome, TestCounts, Verdict

NUM_RUNS = 2
_MAX_NAMES = 3
_REPEATED_SIGNALS = ("exit_code", "signal", "is_parsed", "num_reported", "is_agreed")


class PatchGrader(Protocol):
    """What a check needs: a `Grader` here, or a service's."""

    async def grade(self, task: TaskSpec, patch: str, level: Level | None = None) -> Verdict: ...

    async def run_once(self, task: TaskSpec, patch: str = "") -> Judgement: ...


class CheckStatus(StrEnum):
    """FLAKY: the same patch was judged in two ways. SKIPPED: this machine can't tell."""

    OK = "ok"
    FAILED = "failed"
    FLAKY = "flaky"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one task's check found; `problem` is one line, '' if it's ok."""

    task_id: str
    split: str
    status: CheckStatus
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Seen:
    """One run of a patch: what is wrong with it ('' if nothing), and all that another run must repeat."""

    problem: str
    facts: dict[str, Any]


async def check_tasks(
    tasks: Sequence[TaskSpec],
    grader: PatchGrader,
    languages: dict[str, LanguageSpec],
    *,
    needs_host_tools: bool,
    num_runs: int = NUM_RUNS,
    exposure: Exposure | None = None,
) -> AsyncIterator[CheckResult]:
    """Yields results in the tasks' order while later tasks already run. The grader bounds how many run at once.

    `num_runs`: of the solution and of the base each. `needs_host_tools`: the backend runs the host's own toolchain, so
    a language without one is skipped. `exposure`: looks for history and solutions that a session shows.
    """
    running = [
        asyncio.ensure_future(_check(task, grader, languages, needs_host_tools, num_runs, exposure)) for task in tasks
    ]
    try:
        for result in running:
            yield await result
    finally:
        for result in running:
            result.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _check(
    task: TaskSpec,
    grader: PatchGrader,
    languages: dict[str, LanguageSpec],
    needs_host_tools: bool,
    num_runs: int,
    exposure: Exposure | None,
) -> CheckResult:
    language = languages.get(task.language)
    if language is None:
        return _result(task, CheckStatus.FAILED, f"language {task.language!r} has no sandbox.toml")
    if needs_host_tools and language.missing_tools:
        return _result(task, CheckStatus.SKIPPED, f"this machine lacks {', '.join(language.missing_tools)}")
    try:
        status, problem = await check_task(task, grader, num_runs)
        if status is CheckStatus.OK and exposure is not None:
            problem = await exposure.problem(task)
        return _result(task, CheckStatus.FAILED if problem and status is CheckStatus.OK else status, problem)
    except TaskError as error:
        return _result(task, CheckStatus.FAILED, str(error))
    except SandboxError as error:
        return _result(task, CheckStatus.FAILED, f"the environment failed: {error}")


async def check_task(task: TaskSpec, grader: PatchGrader, num_runs: int = NUM_RUNS) -> tuple[CheckStatus, str]:
    """The status and the first problem in one line. Ends at the first difference between runs.

    Raises TaskError for an unreadable folder, SandboxError for a fault.
    """
    task.content_sha256  # noqa: B018  (walks the folder, and so refuses what a task may not hold)
    first: tuple[_Seen, _Seen] | None = None
    for run in range(1, num_runs + 1):
        seen = await _see_solution(task, grader), await _see_base(task, grader)
        first = first or seen
        for what, before, now in zip(("solution", "base"), first, seen, strict=True):
            if now.facts != before.facts:
                return CheckStatus.FLAKY, f"run {run} of the {what} differs from the first: {_difference(before, now)}"
    problem = first[0].problem or first[1].problem if first else ""
    return (CheckStatus.FAILED if problem else CheckStatus.OK), problem


async def _see_solution(task: TaskSpec, grader: PatchGrader) -> _Seen:
    verdict = await grader.grade(task, task.solution_patch, "strict" if task.has_variants else None)
    if verdict.outcome is Outcome.ENVIRONMENT_ERROR:
        raise SandboxError(str(verdict.signals.get("fault", "unknown fault")))
    facts = _facts(verdict.outcome, verdict.fail_to_pass, verdict.pass_to_pass, verdict.signals)
    if verdict.is_resolved:
        restored = verdict.signals["restored"]
        return _Seen(f"the solution changes protected files: {', '.join(restored)}" if restored else "", facts)
    reason = verdict.signals.get("patch") or verdict.signals.get("problem") or "tests fail"
    reason = "; ".join(f"{v.rule}: {v.path or v.evidence}" for v in verdict.violations) or reason
    counts = (
        f"fail_to_pass {verdict.fail_to_pass.passed}/{verdict.fail_to_pass.total}, "
        f"pass_to_pass {verdict.pass_to_pass.passed}/{verdict.pass_to_pass.total}"
    )
    names = ""
    if verdict.outcome is Outcome.UNRESOLVED:
        names = _name_failing(task, await grader.run_once(task, task.solution_patch))
    return _Seen(f"the solution is {verdict.outcome.value} ({reason}): {counts}{names}", facts)


def _name_failing(task: TaskSpec, judgement: Judgement) -> str:
    """The expected tests that don't pass, the first few, for a task's author."""
    if judgement.passed is None:
        return ""
    return _listing(name for name in (*task.fail_to_pass, *task.pass_to_pass) if name not in judgement.passed)


def _listing(names: Iterable[str]) -> str:
    some = list(names)
    more = f" and {len(some) - _MAX_NAMES} more" if len(some) > _MAX_NAMES else ""
    return f": {', '.join(some[:_MAX_NAMES])}{more}" if some else ""


async def _see_base(task: TaskSpec, grader: PatchGrader) -> _Seen:
    judgement = await grader.run_once(task)
    passing, kept = judgement.fail_to_pass, judgement.pass_to_pass
    problem = ""
    if judgement.outcome is Outcome.TIMEOUT:
        problem = "the tests of the unpatched base run into the time limit"
    elif passing.passed:
        problem = f"{passing.passed} of {passing.total} fail_to_pass tests pass on the unpatched base"
        problem += _listing(name for name in task.fail_to_pass if name in (judgement.passed or ()))
    elif kept.passed != kept.total:
        reason = judgement.signals["problem"] or "they fail"
        problem = f"{kept.total - kept.passed} of {kept.total} pass_to_pass tests don't pass on the base ({reason})"
        if judgement.passed is not None:
            problem += _listing(name for name in task.pass_to_pass if name not in judgement.passed)
    return _Seen(problem, _facts(judgement.outcome, passing, kept, judgement.signals))


def _facts(
    outcome: Outcome, fail_to_pass: TestCounts, pass_to_pass: TestCounts, signals: Mapping[str, Any]
) -> dict[str, Any]:
    """Counts and signals alone; a run into the time limit may have got anywhere by then."""
    facts: dict[str, Any] = {"outcome": outcome.value}
    if outcome is not Outcome.TIMEOUT:
        facts |= {"fail_to_pass": fail_to_pass.passed, "pass_to_pass": pass_to_pass.passed}
        facts |= {name: signals.get(name) for name in _REPEATED_SIGNALS}
    return facts


def _difference(before: _Seen, now: _Seen) -> str:
    names = [name for name in before.facts | now.facts if before.facts.get(name) != now.facts.get(name)]
    return ", ".join(f"{name} {before.facts.get(name)} then {now.facts.get(name)}" for name in names)


def _result(task: TaskSpec, status: CheckStatus, problem: str) -> CheckResult:
    return CheckResult(task.task_id, task.split, status, problem)
