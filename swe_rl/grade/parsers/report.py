"""What every report parser returns: a status for each test id, and whether the report can be trusted to be whole.

A parser reads bytes that a hostile process may have written. It never raises, never guesses, and reports as not parsed
anything that isn't complete or contradicts itself. It doesn't know which tests are expected: that is the grader's
business. A test that passed only when it was tried again has failed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class TestStatus(StrEnum):
    """How one test ended. An expected failure that failed counts as PASSED; an unexpected pass as FAILED."""

    __test__ = False  # not a test class, whatever its name begins with

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class ParsedReport:
    """Statuses by test id. If `is_parsed` is False, `status` may be partial and proves nothing.

    `problem` says in one line why it isn't parsed ('' if it is) and names no test. `seal` is what the report's end
    mark says, for the formats that have one; the grader compares it with what `grade.seal` says.
    """

    status: Mapping[str, TestStatus] = field(default_factory=dict)
    is_parsed: bool = False
    problem: str = ""
    seal: str = ""

    @classmethod
    def unparsed(cls, problem: str) -> "ParsedReport":
        return cls(problem=problem)

    @property
    def has_failures(self) -> bool:
        return any(status in (TestStatus.FAILED, TestStatus.ERROR) for status in self.status.values())


def gather(rows: Iterable[tuple[str, TestStatus]], seal: str = "") -> ParsedReport:
    """A whole report of these tests; unparsed if there is none, or if one is reported with two statuses."""
    status: dict[str, TestStatus] = {}
    for test_id, value in rows:
        if status.setdefault(test_id, value) is not value:
            return ParsedReport(status, problem="a test is reported twice with different statuses")
    if not status:
        return ParsedReport.unparsed("the report holds no test")
    return ParsedReport(status, is_parsed=True, seal=seal)


Parse = Callable[[bytes | None, bytes, bytes], ParsedReport]
