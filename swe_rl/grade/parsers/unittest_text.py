"""Format `unittest_text`: what `python -m unittest -v` prints, from the report file or else from standard error.

    test_wraps (tests.test_ring.Ring.test_wraps) ... ok          before Python 3.11: test_wraps (tests.test_ring.Ring)
    test_grows (tests.test_ring.Ring.test_grows)
    The first line of its docstring. ... FAIL
    setUpClass (tests.test_ring.Other) ... ERROR
                                                                 here the details of failures, unless there are none
    Ran 2 tests in 0.001s

    FAILED (failures=1, errors=1)

The id is "tests.test_ring.Ring.test_wraps" for either form. A failed subtest fails its test. Results and what tests
print share a stream, so nothing but results may stand between the first and the end; each failure must be told again
below, and the numbers must agree. What it can't guarantee: a process that prints a whole report and leaves.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

from swe_rl.grade.parsers.report import ParsedReport, TestStatus, gather
from swe_rl.grade.parsers.terminal import plain_lines

_WORDS = {
    "ok": TestStatus.PASSED,
    "expected failure": TestStatus.PASSED,
    "FAIL": TestStatus.FAILED,
    "unexpected success": TestStatus.FAILED,
    "ERROR": TestStatus.ERROR,
    "skipped": TestStatus.SKIPPED,
}
_NAME = r"(?P<name>[^\s()]+) \((?P<owner>[^\s()]+)\)"
_HEAD = re.compile(rf"^(?P<is_subtest>  )?{_NAME}(?: .*)?$")
_WORD = re.compile(r"^(ok|FAIL|ERROR|expected failure|unexpected success|skipped)(?: '.*'| \".*\")?$")
_DETAIL = re.compile(rf"^(?:FAIL|ERROR|UNEXPECTED SUCCESS): {_NAME}")
_RAN = re.compile(r"^Ran (\d{1,9}) tests? in [0-9.]+s$")
_END = re.compile(r"^(?:OK|FAILED|NO TESTS RAN)(?: \((?P<counts>[a-z]+[a-z ]*=\d{1,9}(?:, [a-z ]+=\d{1,9})*)\))?$")
_COUNTED = {
    "failures": "FAIL",
    "errors": "ERROR",
    "skipped": "skipped",
    "expected failures": "expected failure",
    "unexpected successes": "unexpected success",
}
_FIXTURES = ("setUpClass", "tearDownClass", "setUpModule", "tearDownModule")


@dataclass
class _Results:
    """The part up to the first ruler: (id, word) in order, a subtest's under its test's id."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)  # tests whose line ends without a word: their subtests say it
    is_whole: bool = True


def parse(report: bytes | None, stdout: bytes, stderr: bytes) -> ParsedReport:
    """`stdout` isn't read."""
    lines = plain_lines(stderr if report is None else report)
    rulers = [index for index, line in enumerate(lines) if line in ("=" * 70, "-" * 70)]
    endings = [index for index, line in enumerate(lines) if _RAN.match(line)]
    if not rulers or len(endings) != 1 or endings[0] < rulers[0]:
        return ParsedReport.unparsed("the report has no line on how many tests ran, or more than one")
    results = _read_results(lines[: rulers[0]])
    if not results.is_whole:
        return ParsedReport.unparsed("something else stands between the results")
    details = [_id(match) for line in lines[rulers[0] : endings[0]] if (match := _DETAIL.match(line))]
    problem = _contradiction(results, details, lines[endings[0] :])
    if problem:
        return ParsedReport.unparsed(problem)
    broken = {test_id for test_id, word in results.rows if _WORDS[word] is TestStatus.FAILED}
    rows = [
        (test_id, TestStatus.FAILED if test_id in broken and word != "ERROR" else _WORDS[word])
        for test_id, word in results.rows
    ]
    return gather(rows)


def _read_results(lines: list[str]) -> _Results:
    results = _Results()
    head: re.Match[str] | None = None  # of a test whose result stands behind the docstring on the next line
    for line in lines:
        name, dots, word = _split(line)
        match = _HEAD.match(name) if head is None else None
        if head is not None and _WORD.match(word):
            results.rows.append((_id(head), _WORD.match(word)[1]))  # type: ignore[index]
            head = None
        elif match and not dots and not match["is_subtest"]:
            head = match
        elif match and dots and not word:
            results.opened.append(_id(match))
        elif match and _WORD.match(word) and (match["is_subtest"] or match[0].endswith(")")):
            results.rows.append((_id(match), _WORD.match(word)[1]))  # type: ignore[index]
        elif line and (results.rows or results.opened or head):
            results.is_whole = False
    results.is_whole &= head is None
    return results


def _split(line: str) -> tuple[str, str, str]:
    """A name or a docstring, the dots behind it, and the result; either may have dots of its own."""
    first, dots, rest = line.partition(" ... ")
    if dots and rest and not _WORD.match(rest):
        return line.rpartition(" ... ")
    return first, dots, rest


def _id(match: re.Match[str]) -> str:
    name, owner = match["name"], match["owner"]
    return owner if owner.endswith(f".{name}") else f"{owner}.{name}"


def _contradiction(results: _Results, details: list[str], ending: list[str]) -> str:
    """What the report says of itself that its results don't bear out, in one line; '' if all agrees."""
    words = Counter(word for _, word in results.rows)
    tests = {test_id for test_id, _ in results.rows if test_id.rpartition(".")[2] not in _FIXTURES}
    if not set(results.opened) <= tests:
        return "a test has no result"
    if int(_RAN.match(ending[0])[1]) != len(tests):  # type: ignore[index]
        return "the report's number of tests isn't that of its results"
    end = next((match for line in ending[1:] if (match := _END.match(line))), None)
    if end is None:
        return "the report has no last line"
    stated = dict(part.split("=") for part in (end["counts"] or "").split(", ") if part)
    if any(int(stated.get(key, 0)) != words[word] for key, word in _COUNTED.items()):
        return "the report's numbers of failures aren't those of its results"
    told = {test_id for test_id, word in results.rows if word in ("FAIL", "ERROR", "unexpected success")}
    return "" if told == set(details) else "the failures told in full aren't those of the results"
