"""TAP: plans, nesting, directives, and what a test might print to be taken for another."""

import pytest

from swe_rl.grade.parsers import tap
from swe_rl.grade.parsers.report import TestStatus

PASSED, FAILED, SKIPPED = TestStatus.PASSED, TestStatus.FAILED, TestStatus.SKIPPED


def parse(text: str):
    return tap.parse(text.encode(), b"", b"")


def test_a_plan_may_come_first_or_last() -> None:
    assert parse("1..2\nok 1 - a\nnot ok 2 - b\n").status == {"a": PASSED, "b": FAILED}
    assert parse("ok 1 - a\nnot ok 2 - b\n1..2\n").status == {"a": PASSED, "b": FAILED}


@pytest.mark.parametrize(
    "text",
    [
        "ok 1 - a\n",
        "1..2\nok 1 - a\n",
        "1..1\nok 1 - a\nok 2 - b\n",
        "1..1\nok 1 - a\n1..1\n",
        "1..1\nok 1 - a\nBail out! disk full\n",
        "    ok 1 - inner\n    1..1\n1..0\n",
        "1..0 # SKIP nothing to do\n",
    ],
)
def test_a_report_that_contradicts_its_plan_is_unparsed(text: str) -> None:
    assert not parse(text).is_parsed


def test_a_subtest_that_died_cannot_pass() -> None:
    assert not parse("    ok 1 - a\nok 1 - file\n1..1\n").is_parsed
    died = parse("    ok 1 - a\nnot ok 1 - file\n1..1\n")
    assert died.status == {"file": FAILED, "file::a": TestStatus.ERROR}


def test_tests_of_a_subtest_that_failed_without_any_failing_have_not_passed() -> None:
    hidden = parse("    ok 1 - a\n    # not ok 2 - b\n    ok 2 - b\n    1..2\nnot ok 1 - file\n1..1\n")
    assert set(hidden.status.values()) == {FAILED, TestStatus.ERROR}
    honest = parse("    ok 1 - a\n    not ok 2 - b\n    1..2\nnot ok 1 - file\n1..1\n")
    assert honest.status == {"file": FAILED, "file::a": PASSED, "file::b": FAILED}


@pytest.mark.parametrize("printed", ["    ok 1 - forged", "    1..1", "ok 2 - forged"])
def test_a_result_among_diagnostics_makes_the_report_unparsed(printed: str) -> None:
    text = f"1..1\nnot ok 1 - a\n  ---\n  message: |\n{printed}\n  ...\n"
    assert not parse(text).is_parsed
    assert parse(text.replace(printed, "    ok, then")).status == {"a": FAILED}
    assert not parse(text.replace(printed, "    ok, then").replace("  ...\n", "")).is_parsed


def test_numbers_may_leave_out_the_tests_that_have_none() -> None:
    for numbers in ((1, 2), (3, 4)):
        first, second = (f"ok {number} - t{number}\n" for number in numbers)
        text = f"not ok - a\nok - b\n{first}{second}ok - c\n1..5\n"
        assert parse(text).is_parsed
    assert not parse("ok - a\nok 3 - b\n1..2\n").is_parsed
    assert not parse("ok 1 - a\nok 1 - b\n1..2\n").is_parsed


def test_numbers_out_of_order_are_unparsed() -> None:
    assert not parse("1..2\nok 2 - a\nok 1 - b\n").is_parsed
    assert not parse("1..2\nok 1 - a\nok 1 - b\n").is_parsed


def test_subtests_in_braces_are_unparsed_and_a_name_that_ends_in_one_is_a_name() -> None:
    assert not parse("1..1\nok 1 - a {\n    ok 1 - b\n    1..1\n}\n").is_parsed
    assert parse("1..1\nok 1 - parses {\n").status == {"parses {": PASSED}


def test_a_time_is_no_part_of_a_name() -> None:
    assert parse("1..2\nok 1 - a # time=0.18ms\nok 2 - b # time=3ms # SKIP\n").status == {"a": PASSED, "b": SKIPPED}


def test_nested_names_are_joined() -> None:
    text = "        ok 1 - deep\n        1..1\n    ok 1 - mid\n    1..1\nok 1 - top\n1..1\n"
    assert set(parse(text).status) == {"top", "top::mid", "top::mid::deep"}


def test_directives_decide_the_status_whatever_their_case() -> None:
    text = "1..4\nok 1 - a # skip why\nnot ok 2 - b # TODO later\nok 3 - c # todo later\nok 4 - d \\# TODO\n"
    assert parse(text).status == {"a": SKIPPED, "b": PASSED, "c": FAILED, "d # TODO": PASSED}


def test_a_test_without_a_name_is_called_by_its_number() -> None:
    assert parse("1..2\nok\nnot ok 2\n").status == {"1": PASSED, "2": FAILED}


def test_the_same_name_with_two_statuses_is_unparsed() -> None:
    assert not parse("1..2\nok 1 - a\nnot ok 2 - a\n").is_parsed


def test_a_carriage_return_hides_nothing() -> None:
    assert parse("1..1\nnot ok 1 - a\rok 1 - a\n").status == {"a ok 1 - a": FAILED}


def test_colours_are_ignored() -> None:
    assert parse("1..1\n\x1b[31mnot ok 1 - a\x1b[0m\n").status == {"a": FAILED}


def test_printed_output_between_results_is_skipped() -> None:
    assert parse("1..1\nhello ok 1 - b\n# ok 2 - c\n  ok 3 - d\nok 1 - a\n").status == {"a": PASSED}


def test_standard_output_is_read_where_there_is_no_report() -> None:
    assert tap.parse(None, b"1..1\nok 1 - a\n", b"").status == {"a": PASSED}
    assert not tap.parse(b"", b"1..1\nok 1 - a\n", b"").is_parsed


@pytest.mark.parametrize(
    "cheat",
    [
        r'BEGIN { $| = 1; print "ok 1 - adds\nok 2 - adds nothing\n1..2\n"; exit 1 }',
        r'BEGIN { $| = 1; print "ok 1 - adds\nok 2 - adds nothing\n"; exit 1 }',
        r'BEGIN { $| = 1; print "# "; } END { print "ok 1 - adds\n"; }',
    ],
)
def test_a_module_that_prints_the_results_of_its_tests_passes_none(cheat: str, run_tests) -> None:
    module = f"package Sum;\n{cheat}\nsub add {{ 0 }}\n1;\n"
    test = (
        "use strict; use Test::More tests => 2; use lib 'lib'; use Sum;\nis Sum::add(1, 2), 3, 'adds';\nok 1, 'more';\n"
    )
    _, parsed = run_tests("perl", {"lib/Sum.pm": module, "t/sum.t": test})
    assert not parsed.is_parsed or parsed.status.get("t/sum.t::adds") is not PASSED
