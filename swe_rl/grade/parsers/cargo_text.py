"""Format `cargo_text`: what `cargo test` prints on stable Rust, from the report file (both streams in one) or else from
the two streams.

         Running tests/basic.rs (target/debug/deps/basic-4754b58ee19e62b9)      on stderr: names the binary
    running 2 tests                                                             on stdout, as all that follows
    test one ... ok
    test four - should panic ... FAILED
                                                                                then the captured output of failures
    test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s

The id is "<binary>::<test>", for doc tests "doc:<crate>::<test>". Result lines count only from "running" to the first
blank line, and must be as many as announced and as summed up; what a test prints later can't pass for one. Where a
binary prints between its result lines (`--nocapture`), its report is unparsed rather than guessed.
"""

import re
from dataclasses import dataclass, field

from swe_rl.grade.parsers.report import ParsedReport, TestStatus
from swe_rl.grade.parsers.terminal import plain_lines

_HEADER = re.compile(r"^ +(?:Running (?P<what>.*)\)|Doc-tests (?P<crate>\S+))$")
_BINARY = re.compile(r"^(?P<name>.+)-[0-9a-f]{16}(?:\.exe)?$")
_RUNNING = re.compile(r"^running (\d{1,9}) tests?$")
_END_OF_CASE = re.compile(r"^(ok|FAILED|ignored)(?:, .*)?(?: <[0-9.]+s>)?$")
_RESULT = re.compile(r"^test result: (?:ok|FAILED)\. (\d{1,9}) passed; (\d{1,9}) failed; (\d{1,9}) ignored; ")
_STATUS = {"ok": TestStatus.PASSED, "FAILED": TestStatus.FAILED, "ignored": TestStatus.SKIPPED}


@dataclass
class _Block:
    """One test binary's part of the output."""

    announced: int
    name: str | None = None
    cases: list[tuple[str, TestStatus]] = field(default_factory=list)
    is_listing: bool = True
    is_whole: bool = False

    def close(self, result: re.Match[str]) -> None:
        counts = [
            sum(status is wanted for _, status in self.cases)
            for wanted in (TestStatus.PASSED, TestStatus.FAILED, TestStatus.SKIPPED)
        ]
        self.is_whole = counts == [int(result[i]) for i in (1, 2, 3)] and sum(counts) == self.announced


def parse(report: bytes | None, stdout: bytes, stderr: bytes) -> ParsedReport:
    """Reads `stdout` and `stderr` only if there is no report."""
    blocks, _ = _read_blocks(plain_lines(stdout if report is None else report))
    if report is None:
        headers = _read_blocks(plain_lines(stderr))[1]
        if len(headers) != len(blocks):
            return ParsedReport.unparsed("stderr names another number of test binaries than stdout has results of")
        for block, name in zip(blocks, headers, strict=True):
            block.name = name
    if not any(block.cases for block in blocks):
        return ParsedReport.unparsed("the report holds no test")
    status: dict[str, TestStatus] = {}
    for block in blocks:
        if block.name is None:
            return ParsedReport.unparsed("test results stand under no binary's name")
        if not block.is_whole:
            return ParsedReport(status, problem="a binary's results are cut or contradict its own counts")
        for test, value in block.cases:
            if status.setdefault(f"{block.name}::{test}", value) is not value:
                return ParsedReport(status, problem="a test is reported twice with different statuses")
    return ParsedReport(status, is_parsed=True)


def _read_blocks(lines: list[str]) -> tuple[list[_Block], list[str]]:
    """The binaries' parts in order, and the names of binaries in order; a name goes to the next part that begins."""
    blocks: list[_Block] = []
    headers: list[str] = []
    name = None
    for line in lines:
        current = blocks[-1] if blocks else None
        if found := _read_header(line):
            name = found
            headers.append(name)
        elif (match := _RUNNING.match(line)) and (current is None or not current.is_listing or name is not None):
            blocks.append(_Block(int(match[1]), name))
            name = None
        elif current is None or current.is_whole:
            continue
        elif match := _RESULT.match(line):
            current.close(match)
        elif current.is_listing:
            if case := _read_case(line):
                current.cases.append(case)
            elif not line and len(current.cases) >= current.announced:
                current.is_listing = False
    return blocks, headers


def _read_header(line: str) -> str:
    """The name of the binary whose tests come next, or '' for another line."""
    match = _HEADER.match(line)
    if match is None:
        return ""
    if match["crate"]:
        return f"doc:{match['crate']}"
    binary = _BINARY.match(re.split(r"[/\\]", match["what"].rpartition("(")[2])[-1])
    return binary["name"] if binary else ""


def _read_case(line: str) -> tuple[str, TestStatus] | None:
    test, _, end = line.partition(" ... ")
    match = _END_OF_CASE.match(end)
    if match is None or not test.startswith("test "):
        return None
    return test.removeprefix("test ").removesuffix(" - should panic"), _STATUS[match[1]]
