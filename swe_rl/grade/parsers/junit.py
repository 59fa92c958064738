"""Format `junit`: JUnit XML as most test runners write it, from the report file only.

The id is "<classname>::<name>", or the name alone where there is no class or it says the same. A testcase with an
<error> is an error, with a <failure> failed, with <skipped> skipped, else passed. Ours, optional: `<!-- nonce WORD -->`
behind the root element.
An XML document that was cut isn't well formed, so it's unparsed; so is one with a document type, which no runner writes
and which could make the parser expand entities without end.
"""

import re
from collections.abc import Callable
from xml.etree import ElementTree

from swe_rl.grade.parsers.report import ParsedReport, TestStatus

_NONCE = re.compile(rb"</testsuites?>\s*<!-- nonce (\S{1,200}) -->\s*\Z")
# Runners copy what tests print; control characters are forbidden in XML 1.0, also as references.
_FORBIDDEN = re.compile(
    rb"[\x00-\x08\x0b\x0c\x0e-\x1f]|&#(?:x0*(?:[0-8bcef]|1[0-9a-f])|0*(?:[0-8]|1[124-9]|2\d|3[01]));", re.I
)


def parse(report: bytes | None, stdout: bytes, stderr: bytes) -> ParsedReport:
    """`stdout` and `stderr` aren't read."""
    return parse_cases(report, _name_case)


def parse_cases(report: bytes | None, name_case: Callable[[ElementTree.Element], str]) -> ParsedReport:
    """As `parse`, with ids by `name_case`."""
    if not report:
        return ParsedReport.unparsed("no report file" if report is None else "the report is empty")
    if b"<!DOCTYPE" in report or b"<!ENTITY" in report:
        return ParsedReport.unparsed("the report has a document type")
    try:
        root = ElementTree.fromstring(_FORBIDDEN.sub(b"?", report))
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError):
        return ParsedReport.unparsed("the report isn't well-formed XML")
    if root.tag not in ("testsuites", "testsuite"):
        return ParsedReport.unparsed("the report's root isn't a test suite")
    status: dict[str, TestStatus] = {}
    for case in root.iter("testcase"):
        value = _read_status(case)
        if status.setdefault(name_case(case), value) is not value:
            return ParsedReport(status, problem="a test is reported twice with different statuses")
    if not status:
        return ParsedReport.unparsed("the report holds no test")
    nonce = _NONCE.search(report)
    return ParsedReport(status, is_parsed=True, nonce=nonce[1].decode("utf-8", "replace") if nonce else "")


def _name_case(case: ElementTree.Element) -> str:
    name, owner = case.get("name", ""), case.get("classname", "")
    return f"{owner}::{name}" if owner not in ("", name) else name


def _read_status(case: ElementTree.Element) -> TestStatus:
    children = {child.tag: child for child in case}
    if "error" in children:
        return TestStatus.ERROR
    if "failure" in children:
        return TestStatus.FAILED
    if "skipped" in children:
        # pytest writes a failure that was expected as a skip of this type.
        is_expected_failure = children["skipped"].get("type") == "pytest.xfail"
        return TestStatus.PASSED if is_expected_failure else TestStatus.SKIPPED
    return TestStatus.PASSED
