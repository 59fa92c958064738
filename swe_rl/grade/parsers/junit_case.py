"""How one <testcase> of JUnit XML ended: by its children, and by a `status` attribute where a runner writes one.

    <error>, <rerunError>, <flakyError>           ERROR
    <failure>, <rerunFailure>, <flakyFailure>     FAILED: a test that passed on a repeated try only has failed
    <skipped>                                     SKIPPED, but PASSED for a failure as expected, type="pytest.xfail"
    none of these                                 PASSED, unless the status is one of a test that didn't run

GoogleTest and CTest write a disabled test as a case without children: status="notrun" or "disabled". A child or a
status that isn't known, or a status that contradicts the children, makes a report unparsed rather than guessed.
"""

from xml.etree.ElementTree import Element

from swe_rl.grade.parsers.report import TestStatus

_CHILDREN = {
    "error": TestStatus.ERROR,
    "rerunError": TestStatus.ERROR,
    "flakyError": TestStatus.ERROR,
    "failure": TestStatus.FAILED,
    "rerunFailure": TestStatus.FAILED,
    "flakyFailure": TestStatus.FAILED,
    "skipped": TestStatus.SKIPPED,
}
_SILENT = {"properties", "system-out", "system-err", "attachments"}
_GOOD = {"run", "passed", "pass", "success", "ok", "completed"}
_BAD = {"fail", "failed", "failure", "error", "timeout"}
_NOT_RUN = {"notrun", "disabled", "skipped", "skip", "ignored", "pending", "suppressed"}


class UnknownCaseError(Exception):
    """A test case says what no known runner says, in one line that names no test."""


def read_case(case: Element) -> TestStatus:
    """Raises UnknownCaseError."""
    found = set()
    for child in case:
        if child.tag in _CHILDREN:
            found.add(_CHILDREN[child.tag])
        elif child.tag not in _SILENT:
            raise UnknownCaseError("a test case has a child that no known runner writes")
    stated = {case.get(key, "").strip().lower() for key in ("status", "result")} - {""}
    if unknown := stated - _GOOD - _BAD - _NOT_RUN:
        raise UnknownCaseError(f"{len(unknown)} status of a test case is one that no known runner writes")
    for status in (TestStatus.ERROR, TestStatus.FAILED):
        if status in found:
            return status
    if stated & _BAD:
        raise UnknownCaseError("a test case has failed by its status and not by its children")
    if found:
        return _read_skip(case)
    return TestStatus.SKIPPED if stated & _NOT_RUN else TestStatus.PASSED


def _read_skip(case: Element) -> TestStatus:
    is_expected_failure = all(child.get("type") == "pytest.xfail" for child in case if child.tag == "skipped")
    return TestStatus.PASSED if is_expected_failure else TestStatus.SKIPPED
