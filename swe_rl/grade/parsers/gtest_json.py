"""Format `gtest_json`: `--gtest_output=json:F` of GoogleTest, from the report file only.

    {"tests": 1, "failures": 0, "disabled": 0, "testsuites": [{"name": "Ring", "tests": 1, ..., "testsuite": [
      {"classname": "Ring", "name": "wraps", "status": "RUN", "result": "COMPLETED"}]}]}
    -> Ring::wraps

A test with failures has failed whatever its result says; a disabled one (NOTRUN) is skipped. Numbers must agree with
lists, in every suite and in all. GoogleTest writes the file when all tests have run: a process that ends early leaves
none. A suite whose set-up failed shows its tests as skipped.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field

from swe_rl.grade.parsers.report import ParsedReport, TestStatus, gather
from swe_rl.grade.parsers.strict_json import parse_by


class _Test(BaseModel):
    name: str
    owner: str = Field(alias="classname")
    state: Literal["RUN", "NOTRUN"] = Field(alias="status")
    result: Literal["COMPLETED", "SKIPPED", "SUPPRESSED"]
    failures: list[Any] = Field(default_factory=list)

    def read(self) -> TestStatus:
        if self.failures:
            return TestStatus.FAILED
        has_run = self.state == "RUN" and self.result == "COMPLETED"
        return TestStatus.PASSED if has_run else TestStatus.SKIPPED


class _Counts(BaseModel):
    total: int = Field(alias="tests")
    failed: int = Field(alias="failures")
    disabled: int

    def agree(self, tests: list[_Test]) -> bool:
        failed = sum(bool(test.failures) for test in tests)
        disabled = sum(test.state == "NOTRUN" for test in tests)
        return (self.total, self.failed, self.disabled) == (len(tests), failed, disabled)


class _Suite(_Counts):
    tests: list[_Test] = Field(alias="testsuite")


class _Run(_Counts):
    suites: list[_Suite] = Field(alias="testsuites")


def _read(run: _Run) -> ParsedReport:
    tests = [test for suite in run.suites for test in suite.tests]
    if not run.agree(tests) or not all(suite.agree(suite.tests) for suite in run.suites):
        return ParsedReport.unparsed("the report's numbers of tests aren't those of its lists")
    return gather((f"{test.owner}::{test.name}", test.read()) for test in tests)


parse = parse_by(_Run, _read)
