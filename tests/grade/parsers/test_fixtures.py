"""Every format on what the real runners wrote: whole, cut, with the line ends of Windows, and with foreign output.

A test's name in a fixture says how it should end, so the expectations don't rest on the parsers alone.
"""

import json
import re
import tomllib
from pathlib import Path

import pytest

from swe_rl.grade.parsers import PARSERS
from swe_rl.grade.parsers.report import ParsedReport, TestStatus

FIXTURES = Path(__file__).parent / "fixtures"
SANDBOXES = Path(__file__).resolve().parents[3] / "sandboxes"
EXPECTED: dict[str, dict[str, str] | None] = {
    f"{path.parent.name}/{name}": statuses
    for path in sorted(FIXTURES.glob("*/expected.json"))
    for name, statuses in json.loads(path.read_text(encoding="utf-8")).items()
}
WHOLE = sorted(name for name, statuses in EXPECTED.items() if statuses is not None)
BROKEN = sorted(EXPECTED.keys() - set(WHOLE))
PASSED = TestStatus.PASSED.value
WORDS = {
    "passes": {PASSED},
    "fails": {TestStatus.FAILED.value, TestStatus.ERROR.value},
    "breaks": {TestStatus.FAILED.value, TestStatus.ERROR.value},
    "skips": {TestStatus.SKIPPED.value},
}
# Formats that runners write to a file of their own: what tests print can't reach them.
OF_A_FILE = sorted(PARSERS.keys() - {"alcotest_text", "cargo_text", "go_json", "tap", "unittest_text"})
LANGUAGES = sorted(path.parent.name for path in SANDBOXES.glob("*/sandbox.toml"))


def read(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()


def parse(name: str, data: bytes | None, out: bytes = b"", err: bytes = b"") -> ParsedReport:
    """`name` is of a fixture or of a format."""
    return PARSERS[name.split("/")[0]](data, out, err)


def passes(statuses: dict) -> set[str]:
    return {test_id for test_id, status in statuses.items() if status == PASSED}


def test_each_format_has_a_report_with_passes_and_failures_and_each_report_an_expectation() -> None:
    for report_format in PARSERS:
        folder = FIXTURES / report_format
        files = {path.name for path in folder.iterdir() if path.is_file()} - {"README.md", "expected.json"}
        assert files == {name.split("/")[1] for name in EXPECTED if name.startswith(f"{report_format}/")}
        assert all(f"`{name}`" in (folder / "README.md").read_text() for name in files), report_format
        said = {status for name in WHOLE if name.startswith(f"{report_format}/") for status in EXPECTED[name].values()}
        assert {PASSED, TestStatus.FAILED.value} <= said, report_format


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_report_format_of_each_language_has_a_parser_and_a_report_of_its_own_runner(language: str) -> None:
    settings = tomllib.loads((SANDBOXES / language / "sandbox.toml").read_text(encoding="utf-8"))
    report_format, hello = settings["test"]["report_format"], settings["hello"]
    assert report_format in PARSERS
    parsed = parse(report_format, next((FIXTURES / report_format).glob(f"hello-{language}.*")).read_bytes())
    assert (parsed.is_parsed, parsed.seal) == (True, "n0nce")
    assert parsed.status[hello["kept"]] is TestStatus.PASSED
    assert parsed.status[hello["fixed"]] in (TestStatus.FAILED, TestStatus.ERROR)


@pytest.mark.parametrize("name", WHOLE)
def test_every_test_of_a_real_report_has_its_status(name: str) -> None:
    parsed = parse(name, read(name))
    assert (parsed.is_parsed, parsed.problem) == (True, "")
    assert parsed.status == EXPECTED[name]


@pytest.mark.parametrize("name", [name for name in WHOLE if not re.search("-(broken|leaves|filtered)", name)])
def test_a_status_is_what_the_tests_name_says(name: str) -> None:
    for test_id, status in parse(name, read(name)).status.items():
        # A parameter or a nested name says more than the group's.
        words = re.findall("|".join(WORDS), test_id.lower())
        assert not words or status.value in WORDS[words[0]], test_id


@pytest.mark.parametrize("name", BROKEN)
def test_a_real_report_that_is_not_whole_is_unparsed(name: str) -> None:
    parsed = parse(name, read(name))
    assert not parsed.is_parsed
    assert parsed.problem


@pytest.mark.parametrize("name", WHOLE)
def test_line_ends_of_windows_change_nothing(name: str) -> None:
    data = read(name).replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    assert parse(name, data).status == EXPECTED[name]


@pytest.mark.parametrize("name", WHOLE)
def test_a_report_that_was_cut_never_gains_a_pass(name: str) -> None:
    data, expected = read(name), passes(EXPECTED[name])
    for end in range(0, len(data) - 1, max(7, len(data) // 300)):
        parsed = parse(name, data[:end])
        assert not parsed.is_parsed or passes(parsed.status) <= expected, f"cut at byte {end}"


@pytest.mark.parametrize("name", [name for name in WHOLE if not name.startswith(("go_json/", "tap/"))])
def test_a_report_cut_in_the_middle_is_unparsed(name: str) -> None:
    data = read(name)
    assert not parse(name, data[: len(data) // 2]).is_parsed


@pytest.mark.parametrize("name", WHOLE)
def test_lines_that_are_not_utf8_never_gain_a_pass(name: str) -> None:
    parsed = parse(name, read(name).replace(b"\n", b"\n\xff\xfe\x80\n", 3))
    assert not parsed.is_parsed or passes(parsed.status) <= passes(EXPECTED[name])


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_what_is_printed_changes_nothing_where_there_is_a_report(name: str) -> None:
    data = read(name)
    for other in WHOLE[:: max(1, len(WHOLE) // 20)]:
        assert parse(name, data, read(other), read(other)) == parse(name, data)


@pytest.mark.parametrize("report_format", OF_A_FILE)
def test_what_is_printed_is_never_a_report_where_the_runner_writes_a_file(report_format: str) -> None:
    for name in WHOLE:
        assert not parse(report_format, None, read(name), read(name)).is_parsed


@pytest.mark.parametrize("report_format", sorted(PARSERS))
def test_another_formats_report_is_unparsed(report_format: str) -> None:
    kin = {"junit", "pytest_junit"}
    for name in WHOLE:
        other = name.split("/")[0]
        if other != report_format and {other, report_format} != kin:
            assert not parse(report_format, read(name)).is_parsed, name


@pytest.mark.parametrize("report_format", sorted(PARSERS))
@pytest.mark.parametrize("data", [b"", b"\n", b"\x00", b"\xff" * 50, b"<", b"{", b"[]", b"null", b"1..0\n", b"1..3\n"])
def test_nothing_of_a_report_is_unparsed(report_format: str, data: bytes) -> None:
    parsed = parse(report_format, data)
    assert not parsed.is_parsed
    assert parsed.problem
    assert not parse(report_format, None).is_parsed
