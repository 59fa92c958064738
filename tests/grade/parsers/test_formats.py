"""Every format on real output of the real tool, whole and damaged. The files are as the tools wrote them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.grade.parsers import PARSERS
from swe_rl.grade.parsers.report import ParsedReport, TestStatus

REPORTS = Path(__file__).resolve().parents[2] / "data" / "reports"
PASSED, FAILED, ERROR, SKIPPED = TestStatus.PASSED, TestStatus.FAILED, TestStatus.ERROR, TestStatus.SKIPPED

CARGO_BASE = {
    "ledger::tests::unit": PASSED,
    "basic::one": PASSED,
    "basic::three": SKIPPED,
    "basic::four": PASSED,
    "doc:ledger::src/lib.rs - tests2::d (line 5)": PASSED,
}
GO_RING = {
    "example.com/gt/ok::TestOk": PASSED,
    "example.com/gt/ring::TestOne": PASSED,
    "example.com/gt/ring::TestTwo": FAILED,
    "example.com/gt/ring::TestTwo/sub_name/with_slash": FAILED,
    "example.com/gt/ring::TestTwo/good": PASSED,
    "example.com/gt/ring::TestSkip": SKIPPED,
}
PYTEST = {
    "tests/test_broken.py": ERROR,
    "tests/test_ring.py::test_plain": PASSED,
    "tests/test_ring.py::test_bad": FAILED,
    "tests/test_ring.py::test_odd[a b]": PASSED,
    "tests/test_ring.py::test_odd[[1-2]]": PASSED,
    "tests/test_ring.py::test_odd[\\xe9]": PASSED,
    "tests/test_ring.py::test_odd[x/y::z]": PASSED,
    "tests/test_ring.py::test_odd[3]": FAILED,
    "tests/test_ring.py::test_error": ERROR,
    "tests/test_ring.py::test_teardown": ERROR,
    "tests/test_ring.py::test_skip": SKIPPED,
    "tests/test_ring.py::test_xfail": PASSED,
    "tests/test_ring.py::test_xpass": PASSED,
    "tests/test_ring.py::test_xpass_strict": FAILED,
    "tests/test_ring.py::TestRing::test_push": PASSED,
    "tests/test_ring.py::TestRing::TestInner::test_deep": FAILED,
    "tests/test_ring.py::Old::test_old": PASSED,
}
EXPECTED: dict[str, tuple[str, dict[str, TestStatus]]] = {
    "cargo_text_pass.txt": ("cargo_text", CARGO_BASE),
    "cargo_text_ansi.txt": ("cargo_text", CARGO_BASE),
    "cargo_text_mixed.txt": ("cargo_text", CARGO_BASE | {"basic::two": FAILED}),
    "go_json_pass.jsonl": ("go_json", {"example.com/gt/ok::TestOk": PASSED}),
    "go_json_mixed.jsonl": ("go_json", GO_RING),
    "go_json_died.jsonl": (
        "go_json",
        GO_RING | {"example.com/gt/dies::TestA": PASSED, "example.com/gt/dies::TestB": ERROR},
    ),
    "go_json_panic.jsonl": (
        "go_json",
        GO_RING | {"example.com/gt/dies::TestA": PASSED, "example.com/gt/dies::TestB": FAILED},
    ),
    "junit_phpunit_mixed.xml": (
        "junit",
        {
            "CalcTest::testOne": PASSED,
            "CalcTest::testTwo": FAILED,
            "CalcTest::testBoom": ERROR,
            "CalcTest::testSkip": SKIPPED,
            'CalcTest::testSums with data set "odd "name" <x>"': PASSED,
            "CalcTest::testSums with data set #0": FAILED,
        },
    ),
    "pytest_xunit1.xml": ("pytest_junit", PYTEST),
    "pytest_xunit2.xml": ("pytest_junit", PYTEST),
    "tap_c_pass.tap": ("tap", {"tests/test_a.c": PASSED, "tests/test_a.c::one": PASSED}),
    "tap_c_mixed.tap": (
        "tap",
        {
            "tests/test_a.c": FAILED,
            "tests/test_a.c::one": PASSED,
            "tests/test_a.c::two": FAILED,
            "tests/test_a.c::crash": FAILED,
            "tests/test_a.c::leaves": FAILED,
        },
    ),
    "tap_node_mixed.tap": (
        "tap",
        {
            "adds": PASSED,
            "odd # name \\ here": FAILED,
            "group": FAILED,
            "group::inner one": PASSED,
            "group::inner two": FAILED,
            "skips": SKIPPED,
            "later": PASSED,
        },
    ),
}
WHOLE = pytest.mark.parametrize("name", sorted(EXPECTED))
FORMAT = pytest.mark.parametrize("report_format", sorted(PARSERS))


def parse(report_format: str, data: bytes | None) -> ParsedReport:
    return PARSERS[report_format](data, b"", b"")


@WHOLE
def test_every_test_of_a_real_report_has_its_status(name: str) -> None:
    report_format, expected = EXPECTED[name]
    parsed = parse(report_format, (REPORTS / name).read_bytes())
    assert (parsed.is_parsed, parsed.problem) == (True, "")
    assert parsed.status == expected


@WHOLE
def test_line_ends_of_windows_change_nothing(name: str) -> None:
    report_format, expected = EXPECTED[name]
    data = (REPORTS / name).read_bytes().replace(b"\n", b"\r\n")
    assert parse(report_format, data).status == expected


@WHOLE
def test_a_report_that_was_cut_never_gains_a_pass(name: str) -> None:
    report_format, expected = EXPECTED[name]
    data = (REPORTS / name).read_bytes()
    for end in range(0, len(data) - 1, 7):
        parsed = parse(report_format, data[:end])
        if parsed.is_parsed:
            gained = {test for test, status in parsed.status.items() if status is PASSED} - {
                test for test, status in expected.items() if status is PASSED
            }
            assert not gained, f"cut at byte {end}"


@pytest.mark.parametrize(
    "name", [name for name, (kind, _) in sorted(EXPECTED.items()) if kind not in ("go_json", "tap")]
)
def test_a_report_cut_before_its_last_test_is_unparsed(name: str) -> None:
    report_format, _ = EXPECTED[name]
    data = (REPORTS / name).read_bytes()
    assert not parse(report_format, data[: len(data) // 2]).is_parsed


@WHOLE
def test_bytes_that_are_not_utf8_are_no_error(name: str) -> None:
    report_format, _ = EXPECTED[name]
    data = (REPORTS / name).read_bytes()
    parsed = parse(report_format, data.replace(b"\n", b"\n\xff\xfe\x80\n", 3))
    assert isinstance(parsed, ParsedReport)


@FORMAT
@pytest.mark.parametrize("data", [b"", b"\n", b"\x00", b"\xff" * 50, b"<", b"{", b"[]", b"null", b"1..0\n", b"1..3\n"])
def test_nothing_of_a_report_is_unparsed(report_format: str, data: bytes) -> None:
    parsed = parse(report_format, data)
    assert not parsed.is_parsed
    assert parsed.problem


@FORMAT
def test_no_report_and_no_output_is_unparsed(report_format: str) -> None:
    assert not parse(report_format, None).is_parsed


@FORMAT
def test_another_formats_report_is_unparsed(report_format: str) -> None:
    for name, (other, _) in EXPECTED.items():
        if {other, report_format} == {"junit", "pytest_junit"} or other == report_format:
            continue
        assert not parse(report_format, (REPORTS / name).read_bytes()).is_parsed, name


@FORMAT
@given(data=st.binary(max_size=300), out=st.binary(max_size=100), err=st.binary(max_size=100))
def test_no_bytes_make_a_parser_raise(report_format: str, data: bytes, out: bytes, err: bytes) -> None:
    assert isinstance(PARSERS[report_format](data, out, err), ParsedReport)
    assert isinstance(PARSERS[report_format](None, out, err), ParsedReport)


@pytest.mark.parametrize("name", sorted(EXPECTED))
@given(data=st.data())
def test_damaged_real_reports_never_make_a_parser_raise(name: str, data: st.DataObject) -> None:
    report_format, _ = EXPECTED[name]
    report = (REPORTS / name).read_bytes()
    start = data.draw(st.integers(0, len(report)))
    end = data.draw(st.integers(start, min(len(report), start + 80)))
    damaged = report[:start] + data.draw(st.binary(max_size=20)) + report[end:]
    assert isinstance(parse(report_format, damaged), ParsedReport)


@pytest.mark.parametrize(
    "name",
    ["go_json_mixed.jsonl", "junit_phpunit_mixed.xml", "tap_c_mixed.tap", "tap_c_pass.tap", "go_json_died.jsonl"],
)
def test_the_nonce_of_our_runners_is_read(name: str) -> None:
    report_format, _ = EXPECTED[name]
    assert parse(report_format, (REPORTS / name).read_bytes()).nonce == "nonce-1"
