"""From one finished test run to a verdict: which expected tests passed, and do the independent signals agree?

    RESOLVED  iff  every fail_to_pass and pass_to_pass id has an explicit PASSED in a whole report
              and  the exit code is 0 and the report holds no failure

A missing or skipped test hasn't passed. No expected test's name leaves this file.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from swe_rl.grade.parsers.report import ParsedReport, TestStatus
from swe_rl.sandbox.base import CommandResult
from swe_rl.task.spec import TaskSpec
from swe_rl.verdict import Outcome, TestCounts, Violation


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a run proves, before it is dressed as a verdict."""

    outcome: Outcome
    fail_to_pass: TestCounts
    pass_to_pass: TestCounts
    violations: tuple[Violation, ...]
    signals: dict[str, Any]


def judge(task: TaskSpec, result: CommandResult, report: ParsedReport) -> Judgement:
    """`report` is unparsed for a run that left no whole, authentic report."""
    fail_to_pass = _count(task.fail_to_pass, report)
    pass_to_pass = _count(task.pass_to_pass, report)
    is_agreed = _is_agreed(result, report)
    signals = {
        "exit_code": result.exit_code,
        "signal": result.signal,
        "oom": result.oom,
        "timed_out": result.timed_out,
        "is_parsed": report.is_parsed,
        "problem": report.problem,
        "num_reported": len(report.status),
        "is_agreed": is_agreed,
    }
    violations = _violations(result, report)
    all_passed = fail_to_pass.passed == fail_to_pass.total and pass_to_pass.passed == pass_to_pass.total
    if result.timed_out:
        outcome = Outcome.TIMEOUT
    elif violations:
        outcome = Outcome.VIOLATION
    elif all_passed and is_agreed and not result.oom:
        outcome = Outcome.RESOLVED
    else:
        outcome = Outcome.UNRESOLVED
    return Judgement(outcome, fail_to_pass, pass_to_pass, violations, signals)


def _count(expected: Iterable[str], report: ParsedReport) -> TestCounts:
    """Passes count only in a whole report: half a report proves nothing about what the rest would have said."""
    ids = list(expected)
    passed = sum(report.status.get(test_id) is TestStatus.PASSED for test_id in ids) if report.is_parsed else 0
    return TestCounts(passed=passed, total=len(ids))


def _is_agreed(result: CommandResult, report: ParsedReport) -> bool:
    """The exit code is 0 exactly if a whole report holds tests and no failure."""
    claims_success = report.is_parsed and bool(report.status) and not report.has_failures
    return (result.exit_code == 0) == claims_success


def _violations(result: CommandResult, report: ParsedReport) -> tuple[Violation, ...]:
    """An exit code of 0 over a report that isn't whole or has failures: the run was ended early, or its end forged."""
    if result.exit_code == 0 and not report.is_parsed:
        return (Violation("early_exit", "", f"exit code 0, but {report.problem}"),)
    if result.exit_code == 0 and report.has_failures:
        return (Violation("forged_exit", "", "exit code 0, but the report holds failures"),)
    return ()
