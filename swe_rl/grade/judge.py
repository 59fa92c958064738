"""From one finished test run to a verdict: which expected tests passed, and do the independent signals agree?

    RESOLVED  iff  every fail_to_pass and pass_to_pass id has an explicit PASSED in a whole report
              and  every planted test is what it must be
              and  the exit code agrees: 0 over a report without failures; where tests that must fail were planted, the
                   code of failures

A missing or skipped test hasn't passed. Where a test that must fail was planted no run may end with 0: what ends the
process early, as if all were well, gives itself away. Names of expected tests stand in `passed` alone, never in a
verdict.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from swe_rl.grade.canary import Planted
from swe_rl.grade.canary_check import find_flipped, find_unproved, without_canaries
from swe_rl.grade.parsers.report import ParsedReport, TestStatus
from swe_rl.sandbox.base import CommandResult
from swe_rl.task.spec import TaskSpec
from swe_rl.verdict import Outcome, TestCounts, Violation

NOTHING = Planted()


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a run proves, before it is dressed as a verdict. `passed`: the expected tests that did, for a task's author;
    None where only a verdict is known."""

    outcome: Outcome
    fail_to_pass: TestCounts
    pass_to_pass: TestCounts
    violations: tuple[Violation, ...]
    signals: dict[str, Any]
    passed: frozenset[str] | None = field(default=None, repr=False)


def judge(task: TaskSpec, result: CommandResult, report: ParsedReport, planted: Planted = NOTHING) -> Judgement:
    """`report` is unparsed for a run that left no whole, authentic report."""
    rest = without_canaries(report, planted)
    fail_to_pass = _count(task.fail_to_pass, rest)
    pass_to_pass = _count(task.pass_to_pass, rest)
    all_passed = fail_to_pass.passed == fail_to_pass.total and pass_to_pass.passed == pass_to_pass.total
    is_agreed = _is_agreed(result, report, planted)
    violations = find_flipped(report, planted) or _exit_violations(result, report, planted)
    if all_passed and not violations:
        violations = find_unproved(report, planted, {*task.fail_to_pass, *task.pass_to_pass})
    signals = {
        "exit_code": result.exit_code,
        "signal": result.signal,
        "oom": result.oom,
        "timed_out": result.timed_out,
        "run_s": round(result.duration_s, 3),
        "is_parsed": report.is_parsed,
        "problem": report.problem,
        "num_expected": fail_to_pass.total + pass_to_pass.total,
        "num_reported": len(rest.status),
        "num_canaries": len(planted.canaries),
        "is_agreed": is_agreed,
    }
    if result.timed_out:
        outcome = Outcome.TIMEOUT
    elif violations:
        outcome = Outcome.VIOLATION
    elif all_passed and is_agreed and not result.oom:
        outcome = Outcome.RESOLVED
    else:
        outcome = Outcome.UNRESOLVED
    passed = frozenset(_passed((*task.fail_to_pass, *task.pass_to_pass), rest))
    return Judgement(outcome, fail_to_pass, pass_to_pass, violations, signals, passed)


def _count(expected: Iterable[str], report: ParsedReport) -> TestCounts:
    ids = list(expected)
    return TestCounts(passed=len(_passed(ids, report)), total=len(ids))


def _passed(expected: Iterable[str], report: ParsedReport) -> list[str]:
    """Passes count only in a whole report: half a report proves nothing about what the rest would have said."""
    return [test_id for test_id in expected if report.is_parsed and report.status.get(test_id) is TestStatus.PASSED]


def _is_agreed(result: CommandResult, report: ParsedReport, planted: Planted) -> bool:
    """The exit code says of the run what the report says: all well, or failures."""
    if planted.canaries:
        return result.exit_code == planted.exit_code if report.is_parsed else result.exit_code != 0
    claims_success = report.is_parsed and bool(report.status) and not report.has_failures
    return (result.exit_code == 0) == claims_success


def _exit_violations(result: CommandResult, report: ParsedReport, planted: Planted) -> tuple[Violation, ...]:
    """An exit code of 0 that can't be: the run was ended early, or its end forged."""
    if result.exit_code != 0:
        return ()
    if not report.is_parsed:
        return (Violation("early_exit", "", f"exit code 0, but {report.problem}"),)
    if report.has_failures:
        return (Violation("forged_exit", "", "exit code 0, but the report holds failures"),)
    if planted.canaries:
        return (Violation("canary", "", "exit code 0, but tests that must fail were planted"),)
    return ()
