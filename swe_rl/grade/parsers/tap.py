"""Format `tap`: the Test Anything Protocol, versions 12 to 14, from the report file or else from standard output.

    TAP version 14
    # Subtest: tests/test_ring.c
        ok 1 - wraps_around
        1..1
    ok 1 - tests/test_ring.c
    1..1
    # seal <see grade.seal>                   ours, optional

The id of a nested test is the names on its way joined by "::"; a test without a name is called by its number. A report
is whole if every level's plan counts its tests, and those that are numbered are numbered in order, whether the numbers
count the others, too, or not. Tests of a subtest
that died, or failed without any of them having failed, have not passed. Unknown lines (diagnostics, what tests print)
are skipped, as the protocol has it, but a result among diagnostics in YAML is a forgery or a misread one: unparsed. So
are subtests in braces, which some runners write. "# time=1ms" is no part of a name.

What it can't guarantee, where a runner writes to the standard output that tests print to: a test that prints a whole
report and ends the process before its runner does. Source: testanything.org, TAP 14 specification.
"""

import re
from dataclasses import dataclass, field

from swe_rl.grade.parsers.report import ParsedReport, TestStatus, gather
from swe_rl.grade.parsers.terminal import plain_lines

_POINT = re.compile(r"^((?: {4})*)(not )?ok\b(?: +(\d{1,9})\b)?(?: *- *| +|$)(.*)$")
_PLAN = re.compile(r"^((?: {4})*)1\.\.(\d{1,9})(?: *#.*)?$")
_DIRECTIVE = re.compile(r"(?<!\\)#\s*(skip|todo)\b.*$", re.IGNORECASE)
_TIME = re.compile(r"\s#\s*time=[0-9.]+ *m?s\b")
_BLOCK = re.compile(r"^( +)---$")
_BROKEN = (TestStatus.FAILED, TestStatus.ERROR)
_SEAL = re.compile(r"^# seal (\S+)$")


@dataclass
class _Level:
    """The tests of one depth since the last line of a shallower one."""

    count: int = 0
    num_numbered: int = 0
    plan: int | None = None
    is_braced: bool = False  # its last test's line ends as one does whose subtests follow in braces
    rows: list[tuple[str, TestStatus]] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return self.plan == self.count


def parse(report: bytes | None, stdout: bytes, stderr: bytes) -> ParsedReport:
    """`stderr` isn't read."""
    levels = [_Level()]
    seal, block, is_after_point = "", None, False
    lines = plain_lines(stdout if report is None else report)
    if _PLAN.match(lines[-1]) or _POINT.match(lines[-1]):
        return ParsedReport.unparsed("the last line is cut")
    for line in lines:
        plan, point = _PLAN.match(line), _POINT.match(line)
        problem = ""
        if block is not None:
            problem = "a result stands among diagnostics" if plan or point else ""
            block = None if line == f"{block}..." else block
        elif is_after_point and (opening := _BLOCK.match(line)):
            block = opening[1]
        elif plan:
            problem = _add_plan(levels, plan)
        elif point:
            problem = _add_point(levels, point)
        elif line.startswith("Bail out!"):
            problem = "the test run bailed out"
        elif match := _SEAL.match(line):
            seal = match[1]
        if problem:
            return ParsedReport.unparsed(problem)
        is_after_point = point is not None
    if block is not None:
        return ParsedReport.unparsed("diagnostics have no end")
    if len(levels) > 1:
        return ParsedReport.unparsed("a subtest has no closing line")
    if not levels[0].is_whole:
        return ParsedReport.unparsed("the plan is missing or doesn't count the tests")
    return gather(levels[0].rows, seal)


def _open(levels: list[_Level], depth: int) -> _Level | None:
    """The level of this depth, a new one if need be; None if it would be the inside of braces."""
    if len(levels) == depth and levels[-1].is_braced:
        return None
    while len(levels) <= depth:
        levels.append(_Level())
    return levels[depth]


def _add_plan(levels: list[_Level], match: re.Match[str]) -> str:
    """The problem in one line, or '' once it's recorded."""
    level = _open(levels, len(match[1]) // 4)
    if level is None:
        return "a subtest is in braces"
    if level.plan is not None:
        return "one level has two plans"
    level.plan = int(match[2])
    return ""


def _add_point(levels: list[_Level], match: re.Match[str]) -> str:
    """Records one test with its nested ones; the problem in one line, or ''."""
    depth = len(match[1]) // 4
    nested = levels[depth + 1 :]
    level = _open(levels, depth)
    if level is None:
        return "a subtest is in braces"
    del levels[depth + 1 :]
    level.count += 1
    level.num_numbered += match[3] is not None
    if match[3] is not None and int(match[3]) not in (level.count, level.num_numbered):
        return "the numbers of tests aren't in order"
    level.is_braced = match[4].endswith("{")
    name, status = _read_point(match, level.count)
    level.rows.append((name, status))
    if nested:
        is_whole = len(nested) == 1 and nested[0].is_whole
        # A subtest that died would look like a short one that passed.
        if status is TestStatus.PASSED and not is_whole:
            return "a subtest is reported as passed, but its plan is missing or wrong"
        # One that died, or that failed although none of its tests did, has shown that what they say is not so.
        is_told = status is TestStatus.PASSED or any(inner in _BROKEN for _, inner in nested[0].rows)
        for inner, value in nested[0].rows:
            is_vain = value is TestStatus.PASSED and not (is_whole and is_told)
            level.rows.append((f"{name}::{inner}", TestStatus.ERROR if is_vain else value))
    return ""


def _read_point(match: re.Match[str], position: int) -> tuple[str, TestStatus]:
    text = _TIME.sub("", match[4])
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
