"""What every report parser returns: a status for each test id, and whether the report can be trusted to be whole.

A parser reads bytes that a hostile process may have written. It never raises, never guesses, and reports as not parsed
anything that isn't complete. It doesn't know which tests are expected: that is the grader's business.
"""

from collections.abc import Callable, Mapping
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

    `problem` says in one line why it isn't parsed ('' if it is) and names no test. `nonce` is what the report's end
    mark repeated, for the formats that have one; the grader compares it with the nonce it handed to the runner.
    """

    status: Mapping[str, TestStatus] = field(default_factory=dict)
    is_parsed: bool = False
    problem: str = ""
    nonce: str = ""

    @classmethod
    def unparsed(cls, problem: str) -> "ParsedReport":
        return cls(problem=problem)

    @property
    def has_failures(self) -> bool:
        return any(status in (TestStatus.FAILED, TestStatus.ERROR) for status in self.status.values())


Parse = Callable[[bytes | None, bytes, bytes], ParsedReport]
