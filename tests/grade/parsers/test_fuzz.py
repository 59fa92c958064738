"""Damaged and hostile reports: no parser raises, hangs, names a test in a problem, or makes a pass of a failure.

A failure may be lost to damage, and a report be unparsed. But as long as the bytes that tell of a failed test are as
they were (its status, and all that its id is made of), nothing done to the rest of the report makes that test pass.
"""

import json
import random
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from xml.parsers import expat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.grade.parsers import PARSERS
from swe_rl.grade.parsers.report import ParsedReport, TestStatus

FIXTURES = Path(__file__).parent / "fixtures"
EXPECTED: dict[str, dict[str, str] | None] = {
    f"{path.parent.name}/{name}": statuses
    for path in sorted(FIXTURES.glob("*/expected.json"))
    for name, statuses in json.loads(path.read_text(encoding="utf-8")).items()
}
MIXED = sorted(name for name, statuses in EXPECTED.items() if statuses and "failed" in statuses.values())
FORMATS = sorted(PARSERS)
SLOW_MACHINE = settings(deadline=None, max_examples=50)
NUM_DAMAGED = 150
MANY = 1_000_000
Span = tuple[int, int]
TOKENS = (
    b"\n", b"\r", b"\x00", b"\xff", b"\x1b[2K", b"    ", b'"', b"<", b">", b"{", b"}", b"[", b"]", b",", b":", b"#",
    b"0", b"<!--", b"-->", b"<![CDATA[", b"]]>", b"</testcase>", b"<skipped/>", b"</testsuite>", b"<testsuite>", b"&a;",
    b"ok 1 - x\n", b"not ok 2 - x\n", b"1..1\n", b"  ---\n", b"  ...\n", b" # SKIP", b" # TODO", b"Bail out!\n",
    b"passed", b"failed", b"true", b"9" * 30, b"test x ... ok\n", b" ... ok", b"running 1 test\n",
    b"<!DOCTYPE x>", b"{}\n", b"null", b"\xe2\x80\xa8",
)  # fmt: skip


def damage(data: bytes, rng: random.Random, kept: list[Span]) -> bytes:
    """`data` with one piece flipped, cut, spliced in, doubled, inserted or swapped, none of it inside `kept`."""
    free = [span for span in _gaps(len(data), kept) if span[1] > span[0]]
    if not free:
        return data
    first, second = sorted(rng.choices(free, weights=[end - start for start, end in free], k=2))
    start, end = _piece(first, rng)
    kind = rng.choice(("flip", "cut", "splice", "double", "insert", "insert", "swap"))
    if kind == "flip":
        flipped = bytes(byte ^ (1 << rng.randrange(8)) for byte in data[start : min(end, start + 3)])
        return data[:start] + flipped + data[start + len(flipped) :]
    if kind == "cut":
        return data[:start] + data[end:]
    if kind == "double":
        return data[:end] + data[start:end] + data[end:]
    if kind == "insert":
        return data[:start] + rng.choice(TOKENS) + data[start:]
    if kind == "splice":
        source, length = rng.randrange(len(data)), rng.randrange(1, 200)
        return data[:start] + data[source : source + length] + data[start:]
    other, stop = _piece((max(end, second[0]), max(end, second[1])), rng)
    return data[:start] + data[other:stop] + data[end:other] + data[start:end] + data[stop:]


def _gaps(length: int, kept: list[Span]) -> list[Span]:
    edges = [0, *(edge for span in sorted(kept) for edge in span), length]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _piece(within: Span, rng: random.Random) -> Span:
    start, end = sorted(rng.randint(*within) for _ in range(2))
    return start, min(end, start + 400)


def own_bytes(report_format: str, data: bytes) -> list[Span]:
    """Where the report says which tests failed: status, and all that the ids are made of; in order, disjoint."""
    spans: list[Span] = []
    for start, end in sorted(_OWN[report_format](data)):
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def _lines(pattern: bytes) -> Callable[[bytes], list[Span]]:
    """Whole lines with the line breaks around them."""
    return lambda data: [match.span() for match in re.finditer(rb"(?m)^.*(?:" + pattern + rb").*\n?", data)]


def _with_breaks(find: Callable[[bytes], list[Span]]) -> Callable[[bytes], list[Span]]:
    return lambda data: [(max(0, start - 1), end) for start, end in find(data)]


def _failed_cases(data: bytes) -> list[Span]:
    """The elements of test cases that have failed."""
    text = re.sub(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]|&#27;|&#x1B;", lambda match: b"?" * len(match[0]), data)
    text = text.decode("utf-8", "replace").encode("ascii", "replace") if not _is_utf8(text) else text
    spans: list[Span] = []
    case = {"start": 0, "failed": False, "open": False}
    parser = expat.ParserCreate(encoding="utf-8")

    def start(tag: str, _: dict[str, str]) -> None:
        if tag == "testcase":
            case.update(start=parser.CurrentByteIndex, failed=False, open=True)
        elif tag in ("failure", "error", "flakyFailure", "flakyError"):
            # One outside of a case is its suite's.
            case.update(failed=True) if case["open"] else case.update(start=parser.CurrentByteIndex)

    def end(tag: str) -> None:
        is_of_suite = tag in ("failure", "error") and not case["open"]
        if is_of_suite or (tag == "testcase" and case["failed"]):
            spans.append((case["start"], text.index(b">", parser.CurrentByteIndex) + 1))
        if tag == "testcase":
            case.update(open=False)

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.Parse(text, True)
    return spans


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _objects(is_failed: Callable[[dict], bool]) -> Callable[[bytes], list[Span]]:
    """The smallest objects in a JSON document that tell of a failure."""

    def find(data: bytes) -> list[Span]:
        text, decoder, spans = data.decode("latin-1"), json.JSONDecoder(), []
        for match in re.finditer(r"\{", text):
            try:
                value, end = decoder.raw_decode(text, match.start())
            except ValueError:
                continue
            if isinstance(value, dict) and is_failed(value):
                spans.append((match.start(), end))
        return spans

    return find


def _events(data: bytes) -> list[Span]:
    """All events of the tests that have one of failure."""
    lines = [(match.span(), json.loads(match[0])) for match in re.finditer(rb"(?m)^\{.*\}\n", data)]
    failed = {
        (event["Package"], event["Test"]) for _, event in lines if event.get("Test") and event["Action"] == "fail"
    }
    return [span for span, event in lines if (event.get("Package"), event.get("Test")) in failed]


_OWN: dict[str, Callable[[bytes], list[Span]]] = {
    "alcotest_text": _with_breaks(_lines(rb"\[FAIL\]|\[31m|Testing ")),
    "cargo_text": _with_breaks(_lines(rb"\.\.\. FAILED|Running|Doc-tests")),
    "go_json": _with_breaks(_events),
    "gtest_json": _objects(lambda value: "classname" in value and bool(value.get("failures"))),
    "jest_json": lambda data: [
        *_objects(lambda value: value.get("status") == "failed" and "title" in value)(data),
        *(match.span() for match in re.finditer(rb'"name":"[^"]*"', data)),
    ],
    "junit": _failed_cases,
    "lines": _with_breaks(_lines(rb'"status": ?"(?:failed|error)"')),
    "mocha_json": _objects(lambda value: "fullTitle" in value and bool(value.get("err"))),
    "pytest_junit": _failed_cases,
    "rspec_json": _objects(lambda value: value.get("status") == "failed"),
    "tap": _with_breaks(_lines(rb"^ *not ok")),
    "unittest_text": _with_breaks(
        _lines(rb"\.\.\. (?:FAIL|ERROR|unexpected success)$|^(?:FAIL|ERROR|UNEXPECTED SUCCESS): ")
    ),
}


def parse(name: str, data: bytes | None, out: bytes = b"", err: bytes = b"") -> ParsedReport:
    """`name` is of a fixture or of a format. What holds for any input holds here."""
    parsed = PARSERS[name.split("/")[0]](data, out, err)
    assert isinstance(parsed, ParsedReport)
    assert parsed.is_parsed == (not parsed.problem)
    assert not parsed.is_parsed or parsed.status or parsed.seal  # our runners' report of no test is whole
    assert len(parsed.problem) < 300 and "\n" not in parsed.problem
    return parsed


def assert_no_failure_passes(name: str, parsed: ParsedReport) -> None:
    if not parsed.is_parsed:
        return
    for test_id, status in EXPECTED[name].items():
        if status == "failed":
            assert parsed.status.get(test_id) is not TestStatus.PASSED, test_id


def test_each_report_with_failures_has_bytes_that_tell_of_them() -> None:
    for name in MIXED:
        data = (FIXTURES / name).read_bytes()
        spans = own_bytes(name.split("/")[0], data)
        assert spans and sum(end - start for start, end in spans) < len(data), name


@pytest.mark.parametrize("name", MIXED)
def test_damage_elsewhere_makes_no_pass_of_a_failure(name: str) -> None:
    data = (FIXTURES / name).read_bytes()
    kept = own_bytes(name.split("/")[0], data)
    rng = random.Random(zlib.crc32(name.encode()))
    for _ in range(NUM_DAMAGED):
        damaged = damage(data, rng, kept)
        assert_no_failure_passes(name, parse(name, damaged))


@pytest.mark.parametrize("name", MIXED)
def test_a_passed_test_that_takes_a_failed_ones_name_makes_no_pass_of_it(name: str) -> None:
    data = (FIXTURES / name).read_bytes()
    kept = own_bytes(name.split("/")[0], data)
    last = {test_id: re.split(r"::| > |\.(?=test_)", test_id)[-1].encode() for test_id in EXPECTED[name]}
    failed = {last[test_id] for test_id, status in EXPECTED[name].items() if status == "failed"}
    passed = {last[test_id] for test_id, status in EXPECTED[name].items() if status == "passed"}
    for old in passed:
        for new in failed:
            parts = [data[start:end].replace(old, new) for start, end in _gaps(len(data), kept)]
            kept_parts = [*(data[start:end] for start, end in kept), b""]
            forged = b"".join(part for pair in zip(parts, kept_parts, strict=True) for part in pair)
            assert_no_failure_passes(name, parse(name, forged))


@pytest.mark.parametrize("name", [name for name in MIXED if "/hello-" not in name])
@SLOW_MACHINE
@given(data=st.data())
def test_chosen_damage_elsewhere_makes_no_pass_of_a_failure(name: str, data: st.DataObject) -> None:
    report = (FIXTURES / name).read_bytes()
    free = _gaps(len(report), own_bytes(name.split("/")[0], report))
    low, high = data.draw(st.sampled_from([span for span in free if span[0] < span[1]]))
    start = data.draw(st.integers(low, high))
    end = data.draw(st.integers(start, min(high, start + 200)))
    inserted = data.draw(st.one_of(st.sampled_from(TOKENS), st.binary(max_size=30)))
    assert_no_failure_passes(name, parse(name, report[:start] + inserted + report[end:]))


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_damage_anywhere_never_raises_and_no_problem_names_a_test(name: str) -> None:
    data, kin = (FIXTURES / name).read_bytes(), [*FORMATS, *[name] * 3]
    rng = random.Random(zlib.crc32(name.encode()))
    names = {part for test_id in EXPECTED[name] or () for part in re.split(r"::| > ", test_id) if len(part) > 12}
    for _ in range(NUM_DAMAGED):
        damaged = data
        for _ in range(rng.randrange(1, 8)):
            damaged = damage(damaged, rng, []) or data
        parsed = parse(rng.choice(kin), damaged)
        assert not any(part in parsed.problem for part in names)


@pytest.mark.parametrize("report_format", FORMATS)
@SLOW_MACHINE
@given(data=st.binary(max_size=300), out=st.binary(max_size=100), err=st.binary(max_size=100))
def test_no_bytes_make_a_parser_raise(report_format: str, data: bytes, out: bytes, err: bytes) -> None:
    parse(report_format, data, out, err)
    parse(report_format, None, out, err)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["passed", "failed"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize("name", [name for name in MIXED if name.split("/")[0].endswith("_json") and name[0] != "g"])
@SLOW_MACHINE
@given(data=st.data())
def test_a_value_of_another_kind_anywhere_in_a_json_report_never_raises(name: str, data: st.DataObject) -> None:
    root = json.loads((FIXTURES / name).read_bytes())
    at = root
    while True:
        key = data.draw(st.sampled_from(sorted(at)) if isinstance(at, dict) else st.integers(0, len(at) - 1))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(JSON_VALUES)
    parse(name, json.dumps(root).encode())


BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">' + b"".join(
    b'<!ENTITY %c "%s">' % (letter, b"&%c;" % (letter - 1) * 10) for letter in range(ord("b"), ord("k"))
)
HOSTILE: dict[str, bytes] = {
    "one line of fifty megabytes": b"a" * 50 * MANY,
    "one line that begins as a result": b"test a ... ok, " * (MANY // 15),
    "one line that begins as another result": b"  [OK]  a" + b" " * MANY,
    "one line of a unittest": b"a (b) ... skipped '" * (MANY // 19),
    "one line of a header": b"     Running " + b"(/" * (MANY // 2),
    "one line of TAP": b"ok 1 - a" + b" # " * (MANY // 3),
    "one line of white space": b"ok 1 -" + b" " * MANY,
    "line ends": b"\n" * MANY,
    "escapes": b"\x1b[" * (MANY // 2),
    "escapes without an end": b"\x1b]" + b"a" * MANY,
    "references": b"<testsuite>" + b"&#x0" * (MANY // 4),
    "braces": b"{" * MANY,
    "brackets": b"[" * MANY,
    "objects in objects": b'{"a":' * (MANY // 5),
    "elements in elements": b"<testsuite>" * (MANY // 11),
    "elements in elements with their ends": b"<testsuite>" * 100_000 + b"</testsuite>" * 100_000,
    "cases": b"<testsuite>" + b'<testcase name="a"/>' * 20_000 + b"</testsuite>",
    "log of skipped tests": b"<testsuite><system-out>" + b" W: Skip test a: " * 50_000 + b"</system-out></testsuite>",
    "subtests": b"".join(b" " * 4 * depth + b"ok 1 - a\n" for depth in range(500)),
    "digits": b'{"end": ' + b"9" * MANY + b"}\n",
    "entities": BOMB + b']><testsuite><testcase name="&j;"/></testsuite>',
    "entities in another encoding": (BOMB + b']><testsuite><testcase name="&j;"/></testsuite>')
    .decode()
    .encode("utf-16"),
    "entities in an encoding of old": b'<?xml version="1.0" encoding="cp037"?>'
    + (BOMB + b']><testsuite><testcase name="&j;"/></testsuite>').decode().encode("cp037"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_report_is_unparsed_by_every_parser_before_long(what: str) -> None:
    for report_format in FORMATS:
        parsed = parse(report_format, HOSTILE[what])
        assert not parsed.is_parsed or (what, report_format[:5]) in {("cases", "junit"), ("cases", "pytes")}
