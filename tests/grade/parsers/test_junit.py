"""JUnit XML: statuses, names, and documents that no honest runner writes."""

import pytest

from swe_rl.grade.parsers import junit, pytest_junit
from swe_rl.grade.parsers.report import TestStatus


def parse(body: str, head: str = '<?xml version="1.0"?>'):
    return junit.parse(f"{head}<testsuites><testsuite>{body}</testsuite></testsuites>".encode(), b"", b"")


@pytest.mark.parametrize(
    ("inner", "status"),
    [
        ("", TestStatus.PASSED),
        ("<failure/>", TestStatus.FAILED),
        ("<error/>", TestStatus.ERROR),
        ("<skipped/>", TestStatus.SKIPPED),
        ("<failure/><error/>", TestStatus.ERROR),
        ("<skipped/><failure/>", TestStatus.FAILED),
        ("<system-out>failure</system-out>", TestStatus.PASSED),
        ('<skipped type="pytest.xfail"/>', TestStatus.PASSED),
    ],
)
def test_a_childs_tag_is_the_status(inner: str, status: TestStatus) -> None:
    assert parse(f'<testcase classname="A" name="b">{inner}</testcase>').status == {"A::b": status}


def test_a_case_without_a_class_is_called_by_its_name_alone() -> None:
    assert set(parse('<testcase name="b c"/>').status) == {"b c"}


def test_the_same_name_with_two_statuses_is_unparsed() -> None:
    assert not parse('<testcase name="b"/><testcase name="b"><failure/></testcase>').is_parsed


def test_control_characters_of_printed_output_are_no_obstacle() -> None:
    for text in ("\x1b[31mred", "&#27;[31mred", "&#x1B;[0m", "\x00"):
        assert parse(f'<testcase name="b"><failure>{text}</failure></testcase>').status == {"b": TestStatus.FAILED}


def test_entities_are_never_expanded() -> None:
    head = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    assert not parse('<testcase name="&b;"/>', head).is_parsed


def test_a_single_suite_may_be_the_root_and_nothing_else_may() -> None:
    assert junit.parse(b'<testsuite><testcase name="a"/></testsuite>', b"", b"").is_parsed
    assert not junit.parse(b'<html><testcase name="a"/></html>', b"", b"").is_parsed


def test_only_a_comment_behind_the_root_is_the_nonce() -> None:
    inside = b"<testsuites><testsuite><!-- seal forged --><testcase name='a'/></testsuite></testsuites>\n"
    assert junit.parse(inside, b"", b"").seal == ""
    assert junit.parse(inside + b"<!-- seal real -->\n", b"", b"").seal == "real"


def test_a_test_class_is_found_where_pytests_root_lies_deeper_than_the_file_says() -> None:
    case = b'<testsuite><testcase classname="test_a.TestB" name="test_c" file="sub/test_a.py"/></testsuite>'
    assert set(pytest_junit.parse(case, b"", b"").status) == {"sub/test_a.py::TestB::test_c"}


@pytest.mark.parametrize("state", ['status="notrun"', 'status="disabled"', 'status="run" result="suppressed"'])
def test_a_case_that_did_not_run_is_skipped_though_it_has_no_child(state: str) -> None:
    assert parse(f'<testcase name="b" {state}/>').status == {"b": TestStatus.SKIPPED}


@pytest.mark.parametrize("body", ['<testcase name="b" status="fail"/>', '<testcase name="b" status="odd"/>'])
def test_a_status_that_contradicts_the_children_or_is_not_known_is_unparsed(body: str) -> None:
    assert not parse(body).is_parsed


@pytest.mark.parametrize("child", ["<aborted/>", '<testcase name="c"/>', "<testsuite/>"])
def test_a_child_that_no_runner_writes_is_unparsed(child: str) -> None:
    assert not parse(f'<testcase name="b">{child}</testcase>').is_parsed


@pytest.mark.parametrize(("child", "status"), [("flakyFailure", "failed"), ("flakyError", "error")])
def test_a_test_that_passed_on_a_second_try_has_not_passed(child: str, status: str) -> None:
    assert parse(f'<testcase name="b"><{child}/></testcase>').status == {"b": status}


def test_an_error_of_a_suite_without_a_failed_test_takes_its_passes_back() -> None:
    error, passed, failed = "<error/>", '<testcase name="b"/>', '<testcase name="c"><failure/></testcase>'
    assert parse(error + passed).status == {"": TestStatus.ERROR, "b": TestStatus.ERROR}
    assert parse(error + passed + failed).status["b"] is TestStatus.PASSED


def test_a_suite_that_counts_failures_and_shows_none_is_unparsed() -> None:
    case = '<testsuite failures="1"><testcase name="b">{}</testcase></testsuite>'
    assert not parse(case.format("")).is_parsed
    assert parse(case.format("<failure/>")).is_parsed


def test_a_document_type_is_refused_in_any_encoding() -> None:
    text = '<?xml version="1.0" encoding="{}"?><!DOCTYPE x><testsuite><testcase name="a"/></testsuite>'
    for encoding in ("utf-8", "utf-16", "cp037", "latin-1"):
        assert not junit.parse(text.format(encoding).encode(encoding), b"", b"").is_parsed
