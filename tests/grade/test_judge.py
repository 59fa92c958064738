"""The judgement over hand-made runs: a pass needs every expected test, a whole report and an agreeing exit code."""

from pathlib import Path

import pytest

from swe_rl.grade.judge import judge
from swe_rl.grade.parsers.report import ParsedReport, TestStatus
from swe_rl.sandbox.base import CommandResult
from swe_rl.task.spec import TaskSpec
from swe_rl.verdict import Outcome, TestCounts

TASK = TaskSpec("t", "dev", "python", "do", Path("/nowhere"), ("f1", "f2"), ("p1",))
P, F, S, E = TestStatus.PASSED, TestStatus.FAILED, TestStatus.SKIPPED, TestStatus.ERROR


def ended(exit_code: int | None = 0, *, timed_out: bool = False, oom: bool = False) -> CommandResult:
    return CommandResult(exit_code, None, b"", b"", 0, timed_out, oom, 0.1)


def report(f1: TestStatus | None = P, f2: TestStatus | None = P, p1: TestStatus | None = P, **more: TestStatus):
    status = {"f1": f1, "f2": f2, "p1": p1, **more}
    return ParsedReport({name: value for name, value in status.items() if value is not None}, is_parsed=True)


@pytest.mark.parametrize(
    ("result", "parsed", "outcome"),
    [
        (ended(), report(), Outcome.RESOLVED),
        (ended(), report(other=S), Outcome.RESOLVED),
        (ended(1), report(other=F), Outcome.RESOLVED),  # a test that nobody expects, broken before and after
        (ended(1), report(f1=F), Outcome.UNRESOLVED),
        (ended(1), report(p1=E), Outcome.UNRESOLVED),
        (ended(0), report(f1=S), Outcome.UNRESOLVED),
        (ended(0), report(f1=None), Outcome.UNRESOLVED),
        (ended(0), report(p1=None), Outcome.UNRESOLVED),
        (ended(1), report(), Outcome.UNRESOLVED),  # all passed, yet the process says no
        (ended(None), report(), Outcome.UNRESOLVED),
        (ended(0, oom=True), report(), Outcome.UNRESOLVED),
        (ended(0), report(other=F), Outcome.VIOLATION),
        (ended(0), report(f1=F), Outcome.VIOLATION),
        (ended(0), ParsedReport.unparsed("no report file"), Outcome.VIOLATION),
        (ended(3), ParsedReport.unparsed("no report file"), Outcome.UNRESOLVED),
        (ended(None, timed_out=True), report(), Outcome.TIMEOUT),
        (ended(0), ParsedReport(report().status, is_parsed=False, problem="cut"), Outcome.VIOLATION),
        (ended(0), ParsedReport({}, is_parsed=True), Outcome.UNRESOLVED),
    ],
)
def test_the_outcome_follows_from_agreeing_signals(
    result: CommandResult, parsed: ParsedReport, outcome: Outcome
) -> None:
    assert judge(TASK, result, parsed).outcome is outcome


def test_passes_count_only_in_a_whole_report() -> None:
    assert judge(TASK, ended(1), report(f1=F)).fail_to_pass == TestCounts(1, 2)
    cut = ParsedReport(report().status, is_parsed=False, problem="cut")
    assert judge(TASK, ended(1), cut).fail_to_pass == TestCounts(0, 2)


def test_a_judgement_names_no_hidden_test() -> None:
    text = repr(judge(TASK, ended(0), report(f1=F)))
    assert not any(name in text for name in ("f1", "f2", "p1'"))
