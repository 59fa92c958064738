"""go test -json: what counts as a result, and what a test that prints can't bring about."""

import json

from swe_rl.grade.parsers import go_json
from swe_rl.grade.parsers.report import TestStatus


def event(action: str, test: str | None = None, package: str = "p") -> str:
    return json.dumps({"Action": action, "Package": package} | ({"Test": test} if test else {}))


def parse(*lines: str):
    return go_json.parse("\n".join(lines).encode() + b"\n", b"", b"")


def test_a_result_without_a_run_event_is_no_result() -> None:
    parsed = parse(event("run", "TestA"), event("pass", "TestForged"), event("pass", "TestA"), event("pass"))
    assert parsed.status == {"p::TestA": TestStatus.PASSED}


def test_a_printed_pass_of_a_test_that_fails_makes_the_report_unparsed() -> None:
    assert not parse(event("run", "TestA"), event("pass", "TestA"), event("fail", "TestA"), event("fail")).is_parsed


def test_a_test_that_began_and_did_not_end_is_an_error() -> None:
    assert parse(event("run", "TestA"), event("fail")).status == {"p::TestA": TestStatus.ERROR}


def test_a_package_without_its_closing_event_is_unparsed() -> None:
    assert not parse(event("run", "TestA"), event("pass", "TestA")).is_parsed


def test_the_same_test_name_in_two_packages_is_two_tests() -> None:
    lines = [event(*args) for args in (("run", "T", "a"), ("run", "T", "b"), ("pass", "T", "a"), ("fail", "T", "b"))]
    parsed = parse(*lines, event("pass", package="a"), event("fail", package="b"))
    assert parsed.status == {"a::T": TestStatus.PASSED, "b::T": TestStatus.FAILED}


def test_words_of_go_between_events_are_skipped_and_a_cut_event_is_not() -> None:
    lines = (event("run", "T"), event("pass", "T"), event("pass"))
    assert parse("FAIL\tbroken [build failed]", *lines).is_parsed
    assert not parse(*lines, event("run", "T")[:-3]).is_parsed


def test_interleaved_packages_are_told_apart() -> None:
    lines = [event("run", "A", "a"), event("run", "B", "b"), event("pass", package="b"), event("pass", "A", "a")]
    parsed = parse(*lines, event("pass", package="a"))
    assert parsed.status == {"a::A": TestStatus.PASSED, "b::B": TestStatus.ERROR}
