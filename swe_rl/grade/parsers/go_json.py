"""Format `go_json`: the events of `go test -json`, from the report file or else from standard output.

    {"Action": "run", "Package": "example.com/ring", "Test": "TestPush/full"}
    {"Action": "pass", "Package": "example.com/ring", "Test": "TestPush/full", "Elapsed": 0}
    {"Action": "pass", "Package": "example.com/ring", "Elapsed": 0.1}
    {"Action": "end", "Seal": "<see grade.seal>"}                   ours, the last line, optional

The id is "<package>::<test>". A test counts only between its run event and its package's closing event; one that began
and didn't end is an error. go makes its events from what test binaries print, so a test can print another one's
result: a second, different status makes the report unparsed, and a result without a run event is no result.
Lines that aren't JSON objects are go's own words on packages that don't build: their tests are simply missing.
Source: `go doc test2json`.
"""

from typing import Any

from swe_rl.grade.parsers.report import ParsedReport, TestStatus
from swe_rl.grade.parsers.strict_json import NotJsonError, read_json

_STATUS = {"pass": TestStatus.PASSED, "fail": TestStatus.FAILED, "skip": TestStatus.SKIPPED}


def parse(report: bytes | None, stdout: bytes, stderr: bytes) -> ParsedReport:
    """`stderr` isn't read."""
    events = _read_events(stdout if report is None else report)
    if events is None:
        return ParsedReport.unparsed("an event is cut or isn't JSON")
    seal = ""
    if events and events[-1].get("Action") == "end":
        seal = str(events.pop().get("Seal", ""))
    status: dict[str, TestStatus] = {}
    running: set[str] = set()
    open_packages: set[str] = set()
    for event in events:
        action, package, test = event.get("Action"), event.get("Package"), event.get("Test")
        if not isinstance(package, str):
            continue
        if not isinstance(test, str):
            if action in _STATUS:
                open_packages.discard(package)
            continue
        test_id = f"{package}::{test}"
        if action == "run":
            running.add(test_id)
            open_packages.add(package)
        elif action in _STATUS and test_id in running:
            value = _STATUS[action]
            if status.setdefault(test_id, value) is not value:
                return ParsedReport(status, problem="a test is reported twice with different statuses")
    if open_packages:
        return ParsedReport(status, problem="a package has no closing event: its test run was cut")
    status |= dict.fromkeys(running - status.keys(), TestStatus.ERROR)
    if not status:
        return ParsedReport.unparsed("the report holds no test")
    return ParsedReport(status, is_parsed=True, seal=seal)


def _read_events(data: bytes) -> list[dict[str, Any]] | None:
    """None if a line begins as an object and isn't one."""
    events = []
    for line in data.split(b"\n"):
        if not line.startswith(b"{"):
            continue
        try:
            events.append(read_json(line))
        except NotJsonError:
            return None
    return events
