"""Format `tap`: the Test Anything Protocol, versions 12 to 14, from the report file or else from standard output.

    TAP version 14
    # Subtest: tests/test_ring.c
        ok 1 - wraps_around
        1..1
    ok 1 - tests/test_ring.c
    1..1
    # nonce <as given to the runner>          ours, optional

The id of a nested test is the names on its way joined by "::"; a test without a name is called by its number. A report
is whole if every level's plan counts its tests. Unknown lines (diagnostics, what tests print) are skipped, as the
protocol has it. Source: testanything.org, TAP 14 specification.
"""

import re
from dataclasses import dataclass, field

from swe_rl.grade.parsers.report import ParsedReport, TestStatus
from swe_rl.grade.parsers.terminal import plain_lines

_POINT = re.compile(r"^((?: {4})*)(not )?ok\b(?: +(\d+))?(?: *- *| +|$)(.*)$")
_PLAN = re.compile(r"^((?: {4})*)1\.\.(\d{1,9})(?: *#.*)?$")
_DIRECTIVE = re.compile(r"(?<!\\)#\s*(skip|todo)\b.*$", re.IGNORECASE)
_NONCE = re.compile(r"^# nonce (\S+)$")


@dataclass
class _Level:
    """The tests of one depth since the last line of a shallower one."""

    count: int = 0
    plan: int | None = None
    rows: list[tuple[str, TestStatus]] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return self.plan == self.count


def parse(report: bytes | None, stdout: bytes, stderr: bytes) -> ParsedReport:
    """`stderr` isn't read."""
    levels = [_Level()]
    nonce = ""
    for line in plain_lines(stdout if report is None else report):
        if line.startswith("Bail out!"):
            return ParsedReport.unparsed("the test run bailed out")
        if match := _NONCE.match(line):
            nonce = match[1]
        elif match := _PLAN.match(line):
            level = _open(levels, len(match[1]) // 4)
            if level.plan is not None:
                return ParsedReport.unparsed("one level has two plans")
            level.plan = int(match[2])
        elif match := _POINT.match(line):
            problem = _add_point(levels, match)
            if problem:
                return ParsedReport.unparsed(problem)
    if len(levels) > 1:
        return ParsedReport.unparsed("a subtest has no closing line")
    if not levels[0].is_whole:
        return ParsedReport.unparsed("the plan is missing or doesn't count the tests")
    return _collect(levels[0].rows, nonce)


def _open(levels: list[_Level], depth: int) -> _Level:
    while len(levels) <= depth:
        levels.append(_Level())
    return levels[depth]


def _add_point(levels: list[_Level], match: re.Match[str]) -> str:
    """Records one test with its nested ones; the problem in one line, or ''."""
    depth = len(match[1]) // 4
    nested = levels[depth + 1 :]
    level = _open(levels, depth)
    del levels[depth + 1 :]
    level.count += 1
    name, status = _read_point(match, level.count)
    level.rows.append((name, status))
    if nested:
        # The level below must be closed by its plan, else a subtest that died would look like a short one that passed.
        if status is TestStatus.PASSED and not (len(nested) == 1 and nested[0].is_whole):
            return "a subtest is reported as passed, but its plan is missing or wrong"
        level.rows += [(f"{name}::{inner}", inner_status) for inner, inner_status in nested[0].rows]
    return ""


def _read_point(match: re.Match[str], position: int) -> tuple[str, TestStatus]:
    text = match[4]
    directive = _DIRECTIVE.search(text)
    if directive:
        text = text[: directive.start()]
    name = re.sub(r"\\([#\\])", r"\1", text.strip()) or str(match[3] or position)
    is_ok = match[2] is None
    if directive and directive[1].lower() == "skip":
        return name, TestStatus.SKIPPED
    if directive:  # todo: a failure is expected
        is_ok = not is_ok
    return name, TestStatus.PASSED if is_ok else TestStatus.FAILED


def _collect(rows: list[tuple[str, TestStatus]], nonce: str) -> ParsedReport:
    status: dict[str, TestStatus] = {}
    for name, value in rows:
        if status.setdefault(name, value) is not value:
            return ParsedReport(status, problem="a test is reported twice with different statuses")
    if not status:
        return ParsedReport.unparsed("the report holds no test")
    return ParsedReport(status, is_parsed=True, nonce=nonce)
