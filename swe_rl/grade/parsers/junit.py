"""Format `junit`: JUnit XML as most test runners write it, from the report file only.

    <testsuites><testsuite name="ring" failures="1">
      <testcase classname="RingTest" name="wraps[1-2]"><failure message="..."/></testcase>
    </testsuite></testsuites>
    <!-- seal <see grade.seal> -->                   ours, optional, behind the root element

The id is "<classname>::<name>", or the name alone where there is no class or it says the same. Statuses are read by
`junit_case`. A suite's own <error> or <failure> is an error under the suite's name, and if none of its tests has failed
then none has passed either. A suite that counts failures and shows none, or a report that isn't whole XML, is unparsed;
so is one with a document type, which no runner writes and which could make a reader expand entities without end. Which
runner writes what, and what it can't say, is a table in docs/parsers.md.
"""

import re
from collections.abc import Callable, Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from swe_rl.grade.parsers.junit_case import UnknownCaseError, read_case
from swe_rl.grade.parsers.report import ParsedReport, TestStatus, gather

_SEAL = re.compile(r"</testsuites?>\s*<!-- seal (\S{1,200}) -->\s*\Z")
# Runners copy what tests print; control characters are forbidden in XML 1.0, also as references.
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]"
    "|&#(?:[xX]0*(?:[0-8bcefBCEF]|1[0-9a-fA-F]|[dD][89a-fA-F]..|[fF]{3}[eEfF])|0*(?:[0-8]|1[124-9]|2[0-9]|3[01]));"
)
_DEPTH_LIMIT = 200
_LINE_LIMIT = 1000
_BROKEN = (TestStatus.FAILED, TestStatus.ERROR)


class _TooLargeError(Exception):
    """The document nests more deeply than any report does."""


class _Builder(ElementTree.TreeBuilder):
    """Gives up early: a tree takes a hundred times the memory of a document that only opens elements."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0

    def start(self, tag: str, attrs: dict[str, str], /) -> Element:
        self.depth += 1
        if self.depth > _DEPTH_LIMIT:
            raise _TooLargeError
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> Element:
        self.depth -= 1
        return super().end(tag)


def parse(report: bytes | None, stdout: bytes, stderr: bytes) -> ParsedReport:
    """`stdout` and `stderr` aren't read."""
    return parse_cases(report, _name_case)


def parse_cases(report: bytes | None, name_case: Callable[[Element], str]) -> ParsedReport:
    """As `parse`, with ids by `name_case`."""
    if not report:
        return ParsedReport.unparsed("no report file" if report is None else "the report is empty")
    # As text, so that no encoding which the document declares can hide its type from the next line.
    text = _FORBIDDEN.sub("?", report.decode("utf-8", "replace"))
    if "<!DOCTYPE" in text:
        return ParsedReport.unparsed("the report has a document type")
    try:
        root = ElementTree.fromstring(text, parser=ElementTree.XMLParser(target=_Builder()))
    except (ElementTree.ParseError, _TooLargeError):
        return ParsedReport.unparsed("the report isn't well-formed XML, or nests too deeply")
    if root.tag not in ("testsuites", "testsuite"):
        return ParsedReport.unparsed("the report's root isn't a test suite")
    try:
        rows = list(_rows(root, name_case))
    except UnknownCaseError as error:
        return ParsedReport.unparsed(str(error))
    if any(_claims_failures(suite) for suite in root.iter("testsuite")) and all(row[1] not in _BROKEN for row in rows):
        return ParsedReport(dict(rows), problem="a suite counts failures, but the report shows none")
    seal = _SEAL.search(text)
    return gather(rows, seal=seal[1] if seal else "")


def _rows(root: Element, name_case: Callable[[Element], str]) -> Iterator[tuple[str, TestStatus]]:
    num_cases = 0
    for suite in (element for element in root.iter() if element.tag in ("testsuites", "testsuite")):
        cases = [child for child in suite if child.tag == "testcase"]
        num_cases += len(cases)
        skipped = _names_skipped_by_log(suite)
        statuses = [_read(case, skipped) for case in cases]
        if any(child.tag in ("error", "failure") for child in suite):
            yield suite.get("name", ""), TestStatus.ERROR
            if all(status not in _BROKEN for status in statuses):
                statuses = [TestStatus.ERROR if status is TestStatus.PASSED else status for status in statuses]
        yield from ((name_case(case), status) for case, status in zip(cases, statuses, strict=True))
    if num_cases != sum(1 for _ in root.iter("testcase")):
        raise UnknownCaseError("a test case stands outside of the suites")


def _read(case: Element, skipped: set[str]) -> TestStatus:
    status = read_case(case)
    return TestStatus.SKIPPED if status is TestStatus.PASSED and case.get("name") in skipped else status


def _names_skipped_by_log(suite: Element) -> set[str]:
    """OUnit shows a skipped test as one that passed, and says otherwise only in its log."""
    names = set()
    for log in suite.findall("system-out"):
        for line in (log.text or "").splitlines():
            words = line.partition(" W: Skip test ")[2][:_LINE_LIMIT].split(": ")
            names |= {": ".join(words[:count]) for count in range(1, len(words))}
    return names


def _claims_failures(suite: Element) -> bool:
    return any(suite.get(key, "0").strip() not in ("", "0") for key in ("failures", "errors"))


def _name_case(case: Element) -> str:
    name, owner = case.get("name", ""), case.get("classname", "")
    return f"{owner}::{name}" if owner not in ("", name) else name
