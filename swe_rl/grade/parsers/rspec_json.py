"""Format `rspec_json`: `rspec --options /dev/null --format json --out F`, from the report file only.

    {"examples": [{"full_description": "Ring wraps", "file_path": "./spec/ring_spec.rb", "status": "passed"}],
     "summary": {"example_count": 1, "failure_count": 0, "pending_count": 0, "errors_outside_of_examples_count": 0}}
    -> spec/ring_spec.rb::Ring wraps

Pending examples are skipped; one that is pending and works is a failure, as RSpec has it. The summary must count the
examples. Where a spec file can't be loaded RSpec runs nothing, so an error outside of examples makes it unparsed. RSpec
writes no report at all where a failure's message isn't valid text.
"""

from typing import Literal

from pydantic import BaseModel, Field

from swe_rl.grade.parsers.report import ParsedReport, TestStatus, gather
from swe_rl.grade.parsers.strict_json import parse_by

_STATUS = {"passed": TestStatus.PASSED, "failed": TestStatus.FAILED, "pending": TestStatus.SKIPPED}


class _Example(BaseModel):
    description: str = Field(alias="full_description")
    path: str = Field(alias="file_path")
    status: Literal["passed", "failed", "pending"]


class _Summary(BaseModel):
    total: int = Field(alias="example_count")
    failed: int = Field(alias="failure_count")
    pending: int = Field(alias="pending_count")
    errors_outside: int = Field(default=0, alias="errors_outside_of_examples_count")


class _Run(BaseModel):
    examples: list[_Example]
    summary: _Summary


def _read(run: _Run) -> ParsedReport:
    if run.summary.errors_outside:
        return ParsedReport.unparsed("an error occurred outside of examples")
    said = [example.status for example in run.examples]
    stated = (run.summary.total, run.summary.failed, run.summary.pending)
    if stated != (len(said), said.count("failed"), said.count("pending")):
        return ParsedReport.unparsed("the summary doesn't count the examples")
    return gather(
        (f"{example.path.removeprefix('./')}::{example.description}", _STATUS[example.status])
        for example in run.examples
    )


parse = parse_by(_Run, _read)
