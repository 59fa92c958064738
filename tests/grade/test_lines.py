"""The lines report: whole and consistent, or not parsed at all."""

import pytest

from swe_rl.grade.parsers import lines
from swe_rl.grade.parsers.report import TestStatus

GOOD = (
    b'{"id": "t.py::a", "status": "passed", "message": ""}\n'
    b'{"id": "t.py::b [x y]", "status": "failed", "message": "1 != 2"}\n'
    b'{"id": "t.py::c", "status": "skipped"}\n'
    b'{"id": "t.py::d", "status": "error", "message": "\\u2028"}\n'
    b'{"end": 4, "seal": "n0"}\n'
)


def test_a_whole_report_is_parsed_with_its_seal() -> None:
    report = lines.parse(GOOD, b"", b"")
    assert report.is_parsed and report.seal == "n0" and report.has_failures
    assert report.status == {
        "t.py::a": TestStatus.PASSED,
        "t.py::b [x y]": TestStatus.FAILED,
        "t.py::c": TestStatus.SKIPPED,
        "t.py::d": TestStatus.ERROR,
    }


def test_output_streams_are_never_read() -> None:
    assert not lines.parse(None, GOOD, GOOD).is_parsed


def test_no_beginning_of_a_report_is_parsed() -> None:
    assert not any(lines.parse(GOOD[:length], b"", b"").is_parsed for length in range(len(GOOD)))


@pytest.mark.parametrize(
    "report",
    [
        b'{"end": 1}\n',
        b'{"id": "a", "status": "passed"}\n{"end": 0}\n',
        b'{"id": "a", "status": "passed"}\n{"end": true}\n',
        b'{"id": "a", "status": "passed"}\n{"end": 1.0}\n',
        b'{"id": "a", "status": "passed"}\n{"end": 1, "seal": 5}\n',
        b'{"id": "a", "status": "passed"}\n{"end": 1, "x": 5}\n',
        b'{"id": "a", "status": "PASSED"}\n{"end": 1}\n',
        b'{"id": "a", "status": ["passed"]}\n{"end": 1}\n',
        b'{"id": 1, "status": "passed"}\n{"end": 1}\n',
        b'{"status": "passed"}\n{"end": 1}\n',
        b'"passed"\n{"end": 1}\n',
        b"\n" + b'{"end": 1}\n',
        b'{"id": "a", "status": "passed"}\n{"id": "a", "status": "failed"}\n{"end": 2}\n',
        b'{"end": 1}\n{"id": "a", "status": "passed"}\n{"end": 1}\n',
        b'{"id": "a", "status": "passed"}\n{"end": 1}\n{"end": 1}\n',
        b'{"id": "a", "status": "passed"}\n{"end": 1}\nextra\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b"",
    ],
)
def test_anything_else_is_unparsed_and_raises_nothing(report: bytes) -> None:
    parsed = lines.parse(report, b"", b"")
    assert not parsed.is_parsed and parsed.problem


def test_an_empty_but_whole_report_holds_no_test() -> None:
    report = lines.parse(b'{"end": 0}\n', b"", b"")
    assert report.is_parsed and not report.status
