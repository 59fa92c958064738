"""Printed reports of unittest and Alcotest: every number they tell must be borne out, and nothing may stand between."""

from pathlib import Path

import pytest

from swe_rl.grade.parsers import alcotest_text, unittest_text
from swe_rl.grade.parsers.report import TestStatus

FIXTURES = Path(__file__).parent / "fixtures"
UNITTEST = (FIXTURES / "unittest_text" / "unittest-mixed.txt").read_bytes()
ALCOTEST = (FIXTURES / "alcotest_text" / "alcotest-mixed.txt").read_bytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"Ran 10 tests", b"Ran 11 tests"),
        (b"failures=3", b"failures=2"),
        (b"errors=2", b"errors=1"),
        (b"skipped=2", b"skipped=1"),
        (b"expected failures=1", b"expected failures=2"),
        (b"unexpected successes=1", b"unexpected successes=2"),
        (b"FAILED (", b"DONE ("),
        (b"FAIL: test_fails (", b"FAIL: test_other ("),
        (b"test_fails (odd.Ring.test_fails) ... FAIL", b"test_fails (odd.Ring.test_fails) ... ok"),
        (b"test_skips (", b"hello\ntest_skips ("),
        (b"\n\nFAILED", b"\n\nRan 10 tests in 0.1s\n\nFAILED"),
    ],
)
def test_a_unittest_report_that_contradicts_itself_is_unparsed(old: bytes, new: bytes) -> None:
    assert UNITTEST.count(old) >= 1
    assert not unittest_text.parse(UNITTEST.replace(old, new, 1), b"", b"").is_parsed


def test_unittest_writes_to_the_error_stream() -> None:
    assert unittest_text.parse(None, b"", UNITTEST) == unittest_text.parse(UNITTEST, b"", b"")
    assert not unittest_text.parse(None, UNITTEST, b"").is_parsed


def test_the_ids_of_older_pythons_are_the_same() -> None:
    text = b"test_a (m.A) ... ok\n\n" + b"-" * 70 + b"\nRan 1 test in 0.000s\n\nOK\n"
    assert unittest_text.parse(text, b"", b"").status == {"m.A.test_a": TestStatus.PASSED}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"2 failures!", b"1 failure!"),
        (b"7 tests run", b"8 tests run"),
        (b"2 failures! in", b"2 faults! in"),
        (b"> [FAIL]", b"  [OK]  "),
        (b"  [OK]          outside", b"hello\n  [OK]          outside"),
        (b"7 tests run.", b"7 tests run.\nTest Successful in 0.000s. 7 tests run."),
    ],
)
def test_an_alcotest_report_that_contradicts_itself_is_unparsed(old: bytes, new: bytes) -> None:
    assert ALCOTEST.count(old) == 1
    assert not alcotest_text.parse(ALCOTEST.replace(old, new), b"", b"").is_parsed


def test_two_alcotest_programs_in_one_report_are_told_apart() -> None:
    both = alcotest_text.parse(ALCOTEST + ALCOTEST.replace(b"`odd'", b"`other'"), b"", b"")
    assert both.is_parsed
    assert {test_id.split("::")[0] for test_id in both.status} == {"odd", "other"}
