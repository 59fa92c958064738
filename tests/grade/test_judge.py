"""The judgement over hand-made runs: a pass needs every expected test, a whole report and an agreeing exit code."""

from pathlib import Path

import pytest

from swe_rl.grade.canary import Canary, Planted
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


# --- with planted tests -----------------------------------------------------------------------------------------------

CANARIES = (
    Canary("wrong_1", must_fail=True, is_first=True),
    Canary("right_1", must_fail=False, is_first=True),
    Canary("wrong_2", must_fail=True, is_first=False),
    Canary("right_2", must_fail=False, is_first=False),
)
PLANTED = Planted(CANARIES, exit_code=1, is_ordered=True)
WHOLE = {"t::wrong_1": F, "t::right_1": P, "t::f1": P, "t::f2": P, "t::p1": P, "t::right_2": P, "t::wrong_2": F, "t": F}
GROUPED = TaskSpec("t", "dev", "python", "do", Path("/nowhere"), ("t::f1", "t::f2"), ("t::p1",))


def outcome_of(change: dict[str, TestStatus | None], exit_code: int = 1) -> tuple[Outcome, list[str]]:
    status = {name: value for name, value in (WHOLE | change).items() if value is not None}
    judged = judge(GROUPED, ended(exit_code), ParsedReport(status, is_parsed=True), PLANTED)
    return judged.outcome, [violation.rule for violation in judged.violations]


def test_an_honest_run_with_canaries_ends_with_the_code_of_failures_and_resolves() -> None:
    assert outcome_of({}) == (Outcome.RESOLVED, [])


@pytest.mark.parametrize("exit_code", [2, 101, 255])
def test_another_code_of_failure_does_not_agree(exit_code: int) -> None:
    assert outcome_of({}, exit_code)[0] is Outcome.UNRESOLVED


@pytest.mark.parametrize("status", [P, S])
@pytest.mark.parametrize("others", [{}, {"t::f1": F}, {"t::f1": None}])
def test_a_flipped_canary_is_a_violation_whatever_the_other_tests_did(
    status: TestStatus, others: dict[str, TestStatus | None]
) -> None:
    assert outcome_of({"t::wrong_1": status} | others) == (Outcome.VIOLATION, ["canary"])


def test_an_exit_code_of_zero_is_a_violation_even_over_a_perfect_report() -> None:
    assert outcome_of({}, 0)[0] is Outcome.VIOLATION
    all_passed = dict.fromkeys(WHOLE, P) | dict.fromkeys(["t::wrong_1", "t::wrong_2"])
    assert outcome_of(all_passed, 0) == (Outcome.VIOLATION, ["canary"])


@pytest.mark.parametrize(
    "change", [{"t::wrong_2": None}, {"t::wrong_1": E}, {"t::right_1": None}, {"t::right_2": F}, {"u::wrong_1": F}]
)
def test_a_missing_or_false_canary_is_a_violation_only_where_all_else_passed(
    change: dict[str, TestStatus | None],
) -> None:
    assert outcome_of(change) == (Outcome.VIOLATION, ["canary"])
    assert outcome_of(change | {"t::f1": F}) == (Outcome.UNRESOLVED, [])


def test_a_file_that_does_not_compile_is_an_honest_failure() -> None:
    nothing = dict.fromkeys(WHOLE) | {"other": P}
    assert outcome_of(nothing) == (Outcome.UNRESOLVED, [])
    cut = judge(GROUPED, ended(1), ParsedReport.unparsed("no report file"), PLANTED)
    assert (cut.outcome, cut.violations) == (Outcome.UNRESOLVED, ())


@pytest.mark.parametrize("place", [0, 1, len(WHOLE) - 1])
def test_a_result_outside_of_the_canaries_is_a_violation_where_reports_are_in_order(place: int) -> None:
    rows = list((WHOLE | {"t::f1": None}).items())
    rows.insert(place, ("t::f1", P))
    status = {name: value for name, value in rows if value is not None}
    judged = judge(GROUPED, ended(1), ParsedReport(status, is_parsed=True), PLANTED)
    assert (judged.outcome, [v.rule for v in judged.violations]) == (Outcome.VIOLATION, ["canary"])
    unordered = Planted(CANARIES, exit_code=1, is_ordered=False)
    assert judge(GROUPED, ended(1), ParsedReport(status, is_parsed=True), unordered).outcome is Outcome.RESOLVED


@pytest.mark.parametrize("place", [0, len(WHOLE) - 1])
def test_a_test_that_nobody_expects_may_stand_anywhere(place: int) -> None:
    rows: list[tuple[str, TestStatus]] = list(WHOLE.items())
    rows.insert(place, ("t::other", P))
    assert judge(GROUPED, ended(1), ParsedReport(dict(rows), is_parsed=True), PLANTED).outcome is Outcome.RESOLVED


def test_a_group_that_failed_for_its_canaries_alone_counts_as_passed() -> None:
    task = TaskSpec("t", "dev", "python", "do", Path("/nowhere"), ("t::f1", "t"), ())
    assert judge(task, ended(1), ParsedReport(WHOLE, is_parsed=True), PLANTED).outcome is Outcome.RESOLVED
    status = WHOLE | {"t::f2": F}
    assert judge(task, ended(1), ParsedReport(status, is_parsed=True), PLANTED).fail_to_pass == TestCounts(1, 2)


def test_a_judgement_of_canaries_names_neither_them_nor_a_hidden_test() -> None:
    text = repr([outcome_of({"t::wrong_1": P}), outcome_of({"t::wrong_1": None})])
    judged = judge(GROUPED, ended(0), ParsedReport(WHOLE, is_parsed=True), PLANTED)
    assert not any(name in text + repr(judged) for name in ("wrong_", "right_", "f1", "p1'"))
