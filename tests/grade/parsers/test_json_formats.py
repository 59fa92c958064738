"""Reports that are one JSON document: numbers and lists that contradict each other, second tries, doubled keys."""

import json
from pathlib import Path
from typing import Any

import pytest

from swe_rl.grade.parsers import PARSERS
from swe_rl.grade.parsers.report import ParsedReport, TestStatus

FIXTURES = Path(__file__).parent / "fixtures"
REPORTS = {
    "jest_json": "jest-mixed.json",
    "mocha_json": "mocha-mixed.json",
    "rspec_json": "rspec-mixed.json",
    "gtest_json": "gtest-mixed.json",
}


def read(report_format: str) -> Any:
    return json.loads((FIXTURES / report_format / REPORTS[report_format]).read_bytes())


def parse(report_format: str, value: Any) -> ParsedReport:
    return PARSERS[report_format](json.dumps(value).encode(), b"", b"")


@pytest.mark.parametrize(
    ("report_format", "path"),
    [
        ("jest_json", ["numTotalTests"]),
        ("jest_json", ["numPassedTests"]),
        ("jest_json", ["numFailedTests"]),
        ("mocha_json", ["stats", "tests"]),
        ("mocha_json", ["stats", "passes"]),
        ("mocha_json", ["stats", "pending"]),
        ("mocha_json", ["stats", "failures"]),
        ("rspec_json", ["summary", "example_count"]),
        ("rspec_json", ["summary", "failure_count"]),
        ("rspec_json", ["summary", "pending_count"]),
        ("rspec_json", ["summary", "errors_outside_of_examples_count"]),
        ("gtest_json", ["tests"]),
        ("gtest_json", ["failures"]),
        ("gtest_json", ["testsuites", 0, "tests"]),
        ("gtest_json", ["testsuites", 0, "disabled"]),
    ],
)
def test_a_number_that_contradicts_the_list_is_unparsed(report_format: str, path: list) -> None:
    root = read(report_format)
    assert parse(report_format, root).is_parsed
    *way, key = path
    at = root
    for step in way:
        at = at[step]
    at[key] += 1
    assert not parse(report_format, root).is_parsed


def test_success_over_failures_and_an_interrupted_run_are_unparsed() -> None:
    assert not parse("jest_json", read("jest_json") | {"success": True}).is_parsed
    assert not parse("jest_json", read("jest_json") | {"wasInterrupted": True}).is_parsed


def test_a_test_that_passed_on_a_second_try_has_failed() -> None:
    jest, mocha = read("jest_json"), read("mocha_json")
    jest["testResults"][0]["assertionResults"][0]["invocations"] = 2
    mocha["passes"][0]["currentRetry"] = 1
    first = "tests/odd.test.js::ring [buffer] (of 2) > passes"
    assert parse("jest_json", jest).status[first] is TestStatus.FAILED
    assert parse("mocha_json", mocha).status["bdd.js::passes outside"] is TestStatus.FAILED


def test_a_mocha_test_that_passed_with_an_error_or_stands_in_no_list_is_unparsed() -> None:
    mocha = read("mocha_json")
    mocha["passes"][0]["err"] = {"message": "x"}
    assert not parse("mocha_json", mocha).is_parsed
    mocha = read("mocha_json")
    mocha["tests"][0]["fullTitle"] = "another"
    assert not parse("mocha_json", mocha).is_parsed


@pytest.mark.parametrize("report_format", sorted(REPORTS))
def test_a_key_given_twice_is_unparsed(report_format: str) -> None:
    text = json.dumps(read(report_format))
    assert not PARSERS[report_format](b'{"a": 1, "a": 2, ' + text[1:].encode(), b"", b"").is_parsed
    assert PARSERS[report_format](b'{"a": 1, "b": 2, ' + text[1:].encode(), b"", b"").is_parsed
