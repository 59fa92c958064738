"""Format `mocha_json`: `mocha --no-config --no-package --reporter json --reporter-option output=F`, report file only.

    {"stats": {"tests": 1, ...}, "tests": [...], "pending": [], "failures": [],
     "passes": [{"fullTitle": "ring wraps", "file": "/workspace/test/ring.js", "currentRetry": 0}]}
    -> test/ring.js::ring wraps

A hook that failed is a failure under its own title, and the tests behind it are missing. Numbers and lists must agree.
A test that passed only when it was tried again has failed, and one that passed shows no error. Titles are joined by
spaces, so two tests can share an id.
"""

from collections import Counter
from typing import Any

from pydantic import BaseModel, Field

from swe_rl.grade.parsers.report import ParsedReport, TestStatus, gather
from swe_rl.grade.parsers.strict_json import parse_by
from swe_rl.sandbox.base import WORKDIR


class _Test(BaseModel):
    title: str = Field(alias="fullTitle")
    file: str = ""
    retry: int = Field(default=0, alias="currentRetry")
    error: dict[str, Any] = Field(default_factory=dict, alias="err")

    @property
    def test_id(self) -> str:
        path = self.file.removeprefix(f"{WORKDIR}/")
        return f"{path}::{self.title}" if path else self.title


class _Stats(BaseModel):
    tests: int
    passes: int
    pending: int
    failures: int


class _Run(BaseModel):
    stats: _Stats
    tests: list[_Test]
    passes: list[_Test]
    pending: list[_Test]
    failures: list[_Test]


def _read(run: _Run) -> ParsedReport:
    if not _is_agreed(run):
        return ParsedReport.unparsed("the report's numbers and lists of tests contradict each other")
    rows = [(test.test_id, TestStatus.FAILED if test.retry else TestStatus.PASSED) for test in run.passes]
    rows += [(test.test_id, TestStatus.FAILED) for test in run.failures]
    rows += [(test.test_id, TestStatus.SKIPPED) for test in run.pending]
    return gather(rows)


def _is_agreed(run: _Run) -> bool:
    counts = (len(run.tests), len(run.passes), len(run.pending), len(run.failures))
    listed, passed, pending, failed = (
        Counter(test.test_id for test in tests) for tests in (run.tests, run.passes, run.pending, run.failures)
    )
    stated = (run.stats.tests, run.stats.passes, run.stats.pending, run.stats.failures)
    if any(test.error for test in [*run.passes, *run.pending]):
        return False
    # A hook that failed is among the failures alone.
    return counts == stated and passed + pending <= listed <= passed + pending + failed


parse = parse_by(_Run, _read)
