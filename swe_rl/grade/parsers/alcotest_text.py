"""Format `alcotest_text`: what an Alcotest program prints with `--color=never`, from the report file or else from
standard output.

    Testing `ring'.
      [OK]          buffer          0   wraps.
    > [FAIL]        buffer          1   grows.
    1 failure! in 0.000s. 2 tests run.

The id is "<program>::<suite>::<number> <name>"; Alcotest cuts long names by "...", so the number tells tests apart. The
program's name is the one given to `Alcotest.run`. Nothing but results may stand between the first result and the blank
line behind the last, as `--verbose` would have it, and the numbers must agree. Tests that a filter leaves out are
skipped. What it can't guarantee: a process that prints a whole report and leaves.
"""

import re
from itertools import pairwise

from swe_rl.grade.parsers.report import ParsedReport, TestStatus, gather
from swe_rl.grade.parsers.terminal import plain_lines

_START = re.compile(r"^Testing [`'‘](.+)['’]\.$")
_ROW = re.compile(r"^[> ] \[[A-Z]+\] ")
_NUMBER = re.compile(r"^\d{1,9}$")
_GAP = re.compile(r" {2,}")
_END = re.compile(r"^(?:Test Successful|(\d{1,9}) failures?!) in [0-9.]+s\. (\d{1,9}) tests? run\.$")
_STATUS = {
    "[OK]": TestStatus.PASSED,
    "[FAIL]": TestStatus.FAILED,
    "[SKIP]": TestStatus.SKIPPED,
    "[TODO]": TestStatus.SKIPPED,
}


def parse(report: bytes | None, stdout: bytes, stderr: bytes) -> ParsedReport:
    """`stderr` isn't read."""
    rows: list[tuple[str, TestStatus]] = []
    lines = plain_lines(stdout if report is None else report)
    starts = [index for index, line in enumerate(lines) if _START.match(line)]
    for start, stop in pairwise([*starts, len(lines)]):
        found, problem = _read_program(lines[start:stop])
        if problem:
            return ParsedReport.unparsed(problem)
        rows += found
    return gather(rows)


def _read_program(lines: list[str]) -> tuple[list[tuple[str, TestStatus]], str]:
    """One program's tests, and what is wrong with its report in one line, or ''."""
    name = _START.match(lines[0])[1]  # type: ignore[index]
    rows: list[tuple[str, TestStatus]] = []
    first = next((index for index, line in enumerate(lines) if _ROW.match(line)), len(lines))
    last = next((index for index in range(first, len(lines)) if not lines[index]), len(lines))
    for line in lines[first:last]:
        fields = _GAP.split(line[2:], maxsplit=3)
        if not _ROW.match(line) or len(fields) != 4 or fields[0] not in _STATUS or not _NUMBER.match(fields[2]):
            return rows, "something else stands between the results"
        shown = fields[3] if fields[3].endswith("...") else fields[3].removesuffix(".")
        rows.append((f"{name}::{fields[1]}::{fields[2]} {shown}", _STATUS[fields[0]]))
    endings = [match for line in lines[last:] if (match := _END.match(line))]
    if len(endings) != 1:
        return rows, "the report has no last line, or more than one"
    said = [status for _, status in rows]
    if int(endings[0][1] or 0) != said.count(TestStatus.FAILED):
        return rows, "the report's number of failures isn't that of its results"
    if int(endings[0][2]) != len(said) - said.count(TestStatus.SKIPPED):
        return rows, "the report's number of tests isn't that of its results"
    return rows, ""
