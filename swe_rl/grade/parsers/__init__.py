"""One file per report format; a format is known to the grader exactly if it has its line in PARSERS."""

from swe_rl.grade.parsers import cargo_text, go_json, junit, lines, pytest_junit, tap
from swe_rl.grade.parsers.report import Parse

PARSERS: dict[str, Parse] = {
    "cargo_text": cargo_text.parse,
    "go_json": go_json.parse,
    "junit": junit.parse,
    "lines": lines.parse,
    "pytest_junit": pytest_junit.parse,
    "tap": tap.parse,
}
