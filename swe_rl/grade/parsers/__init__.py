"""One file per report format; a format is known to the grader exactly if it has its line in PARSERS."""

from swe_rl.grade.parsers import (
    alcotest_text,
    cargo_text,
    go_json,
    gtest_json,
    jest_json,
    junit,
    lines,
    mocha_json,
    pytest_junit,
    rspec_json,
    tap,
    unittest_text,
)
from swe_rl.grade.parsers.report import Parse

PARSERS: dict[str, Parse] = {
    "alcotest_text": alcotest_text.parse,
    "cargo_text": cargo_text.parse,
    "go_json": go_json.parse,
    "gtest_json": gtest_json.parse,
    "jest_json": jest_json.parse,
    "junit": junit.parse,
    "lines": lines.parse,
    "mocha_json": mocha_json.parse,
    "pytest_junit": pytest_junit.parse,
    "rspec_json": rspec_json.parse,
    "tap": tap.parse,
    "unittest_text": unittest_text.parse,
}
