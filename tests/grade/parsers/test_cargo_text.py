"""cargo test's text: two streams, names, counts, and what a test prints to be taken for a result."""

from pathlib import Path

import pytest

from swe_rl.grade.parsers import cargo_text
from swe_rl.grade.parsers.report import TestStatus

REPORTS = Path(__file__).parent / "fixtures" / "cargo_text"
HEADER = "     Running tests/basic.rs (target/debug/deps/basic-4754b58ee19e62b9)\n"


def result(passed: int, failed: int = 0, ignored: int = 0) -> str:
    word = "FAILED" if failed else "ok"
    return f"test result: {word}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; 0 filtered out\n"


def parse(text: str):
    return cargo_text.parse(text.encode(), b"", b"")


def test_two_streams_say_the_same_as_one() -> None:
    merged = (REPORTS / "cargo-mixed.txt").read_text()
    is_header = [line.startswith(("     Running ", "   Doc-tests ")) for line in merged.splitlines()]
    err = "".join(line + "\n" for line, flag in zip(merged.splitlines(), is_header, strict=True) if flag)
    out = "".join(line + "\n" for line, flag in zip(merged.splitlines(), is_header, strict=True) if not flag)
    assert cargo_text.parse(None, out.encode(), err.encode()) == parse(merged)
    assert not cargo_text.parse(None, out.encode(), b"").is_parsed


@pytest.mark.parametrize("name", ["cargo-leaves.txt", "cargo-broken.txt"])
def test_a_process_that_left_early_and_a_build_that_failed_are_unparsed(name: str) -> None:
    assert not cargo_text.parse((REPORTS / name).read_bytes(), b"", b"").is_parsed


def test_a_result_printed_by_a_failing_test_does_not_count() -> None:
    text = HEADER + "\nrunning 1 test\ntest one ... FAILED\n\nfailures:\n\ntest one ... ok\ntest two ... ok\n\n"
    assert parse(text + result(0, 1)).status == {"basic::one": TestStatus.FAILED}


def test_a_result_printed_between_results_makes_the_report_unparsed() -> None:
    text = HEADER + "\nrunning 1 test\ntest two ... ok\ntest one ... FAILED\n\n"
    assert not parse(text + result(0, 1)).is_parsed


def test_counts_that_contradict_the_results_are_unparsed() -> None:
    text = HEADER + "\nrunning 2 tests\ntest one ... ok\ntest two ... ok\n\n"
    assert parse(text + result(2)).is_parsed
    assert not parse(text + result(1, 1)).is_parsed
    assert not parse(text.replace("2 tests", "3 tests") + result(2)).is_parsed


def test_results_without_a_binarys_name_are_unparsed() -> None:
    assert not parse("running 1 test\ntest one ... ok\n\n" + result(1)).is_parsed


def test_the_same_test_name_in_two_binaries_is_two_tests() -> None:
    block = "\nrunning 1 test\ntest one ... ok\n\n" + result(1)
    assert set(parse(HEADER + block + HEADER.replace("basic", "other") + block).status) == {"basic::one", "other::one"}
