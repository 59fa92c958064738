"""Format `lines`: JSON lines from our own lean runners, read from the report file only.

    {"id": "test_a", "status": "passed|failed|error|skipped", "message": "..."}      one a test
    {"end": <number of tests>, "seal": "<see grade.seal>"}                           the last line, once all have run

What it guarantees: a process that ends before the runner wrote the end mark (os._exit, a crash, a kill, a deadline)
has no parsed report, so it can't pass; text on stdout and stderr is never read; a second line for a test with another
status, a wrong count, a foreign line, or anything behind the end mark makes the whole report unparsed.

What it can't guarantee: where product code runs in the runner's own process, code that is written to do so can find
the runner's frames or read its memory, and write a complete forged report. The nonce, gone from the file system before
that code starts, stops a report that was prepared without looking into the live process; our runners also run a test
that must fail, which stops code that turns every failure into a pass.
"""

from typing import Any

from swe_rl.grade.parsers.report import ParsedReport, TestStatus
from swe_rl.grade.parsers.strict_json import NotJsonError, read_json


def parse(report: bytes | None, stdout: bytes, stderr: bytes) -> ParsedReport:
    """`report` is None if the runner left no readable report file."""
    if report is None:
        return ParsedReport.unparsed("no report file")
    if not report.endswith(b"\n"):
        return ParsedReport.unparsed("the report's last line is cut")
    try:
        rows = [read_json(line) for line in report.split(b"\n")[:-1]]
    except NotJsonError:
        return ParsedReport.unparsed("a line of the report isn't JSON")
    if not rows or not _is_end(rows[-1]):
        return ParsedReport.unparsed("the report has no end mark: the runner didn't finish")
    status: dict[str, TestStatus] = {}
    for row in rows[:-1]:
        problem = _add(row, status)
        if problem:
            return ParsedReport(status, problem=problem)
    if rows[-1]["end"] != len(rows) - 1:
        return ParsedReport(status, problem=f"the end mark counts {rows[-1]['end']} tests, the report {len(rows) - 1}")
    return ParsedReport(status, is_parsed=True, seal=rows[-1].get("seal", ""))


def _is_end(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and type(row.get("end")) is int
        and isinstance(row.get("seal", ""), str)
        and row.keys() <= {"end", "seal"}
    )


def _add(row: Any, status: dict[str, TestStatus]) -> str:
    """The problem with this line, or '' once it's recorded."""
    if not isinstance(row, dict) or not isinstance(row.get("id"), str):
        return "a line of the report has no test id"
    try:
        value = TestStatus(str(row.get("status")))
    except ValueError:
        return "a line of the report has an unknown status"
    if status.setdefault(row["id"], value) is not value:
        return "a test is reported twice with different statuses"
    return ""
