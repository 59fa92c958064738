"""Format `jest_json`: `jest --ci --json --outputFile=F` and `vitest run --reporter=json --outputFile=F`, report file
only.

    {"numTotalTests": 2, "success": false, "testResults": [{"name": "/workspace/tests/ring.test.js", "status": "failed",
      "assertionResults": [{"ancestorTitles": ["ring"], "title": "wraps", "status": "passed"}, ...]}]}
    -> tests/ring.test.js::ring > wraps

A file that failed without a failed test (it couldn't be loaded, a hook failed) is an error under its own name. The
numbers of all, passed and failed tests must be those of the list; a run that was interrupted is unparsed. A test that
jest tried more than once and that passed in the end has failed; vitest doesn't tell how often it tried.
"""

from typing import Literal

from pydantic import BaseModel, Field

from swe_rl.grade.parsers.report import ParsedReport, TestStatus, gather
from swe_rl.grade.parsers.strict_json import parse_by
from swe_rl.sandbox.base import WORKDIR

_STATUS = {"passed": TestStatus.PASSED, "failed": TestStatus.FAILED}


class _Test(BaseModel):
    ancestors: list[str] = Field(alias="ancestorTitles")
    title: str
    status: Literal["passed", "failed", "pending", "skipped", "todo", "disabled"]
    invocations: int = 1

    def read(self) -> TestStatus:
        if self.status == "passed" and self.invocations > 1:
            return TestStatus.FAILED
        return _STATUS.get(self.status, TestStatus.SKIPPED)


class _File(BaseModel):
    name: str
    status: Literal["passed", "failed", "pending", "skipped", "focused"]
    tests: list[_Test] = Field(alias="assertionResults")


class _Run(BaseModel):
    success: bool
    interrupted: bool = Field(default=False, alias="wasInterrupted")
    total: int = Field(alias="numTotalTests")
    passed: int = Field(alias="numPassedTests")
    failed: int = Field(alias="numFailedTests")
    files: list[_File] = Field(alias="testResults")


def _read(run: _Run) -> ParsedReport:
    said = [test.status for file in run.files for test in file.tests]
    if (run.total, run.passed, run.failed) != (len(said), said.count("passed"), said.count("failed")):
        return ParsedReport.unparsed("the report's numbers of tests aren't those of its list")
    if run.interrupted:
        return ParsedReport.unparsed("the test run was interrupted")
    if run.success and any("failed" in (file.status, *(test.status for test in file.tests)) for file in run.files):
        return ParsedReport.unparsed("the report claims success over failures")
    return gather(row for file in run.files for row in _rows(file))


def _rows(file: _File) -> list[tuple[str, TestStatus]]:
    path = file.name.removeprefix(f"{WORKDIR}/")
    rows = [(f"{path}::{' > '.join([*test.ancestors, test.title])}", test.read()) for test in file.tests]
    if file.status == "failed" and all(test.status != "failed" for test in file.tests):
        rows.append((path, TestStatus.ERROR))
    return rows


parse = parse_by(_Run, _read)
