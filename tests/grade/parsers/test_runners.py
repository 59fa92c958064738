"""Our runners and the parsers together, on the host: what passes, what fails, and code that leaves with exit code 0."""

from collections.abc import Callable
from pathlib import Path

import pytest

from swe_rl.grade.parsers.report import ParsedReport, TestStatus
from swe_rl.task.language import read_languages

RunTests = Callable[[str, dict[str, str]], tuple[int, ParsedReport]]

ROOT = Path(__file__).resolve().parents[3]
LANGUAGES = read_languages(ROOT / "sandboxes")
TAP_H = next((ROOT / "tasks").rglob("tap.h")).read_text()
GO_MOD = "module example.com/m\n\ngo 1.19\n"
CARGO_TOML = '[package]\nname = "m"\nversion = "0.1.0"\nedition = "2021"\n'
PHP_HEAD = "<?php\nfinal class MTest extends PHPUnit\\Framework\\TestCase {\n"

# Per language: a repository with a test that passes and one that fails, and their ids.
MIXED: dict[str, tuple[dict[str, str], str, str]] = {
    "python": (
        {
            "m.py": "X = 2\n",
            "tests/test_m.py": "import m\ndef test_a(): assert m.X == 2\ndef test_b(): assert m.X == 3\n",
        },
        "tests/test_m.py::test_a",
        "tests/test_m.py::test_b",
    ),
    "javascript": (
        {"tests/m.test.js": "test('a', () => {}); test('b', async () => require('assert').equal(1, 2));"},
        "tests/m.test.js::a",
        "tests/m.test.js::b",
    ),
    "typescript": (
        {
            "src/m.ts": "export const x: number = 2;",
            "tests/m.test.ts": "import { x } from '../src/m';\n"
            "test('a', () => {}); test('b', () => { if (x !== 3) throw new Error('x'); });",
        },
        "tests/m.test.ts::a",
        "tests/m.test.ts::b",
    ),
    "rust": (
        {"Cargo.toml": CARGO_TOML, "src/lib.rs": "", "tests/m.rs": "#[test] fn a() {}\n#[test] fn b() { panic!() }\n"},
        "m::a",
        "m::b",
    ),
    "java": (
        {
            "src/M.java": "class M {}",
            "tests/MTest.java": "public class MTest { public void testA() {}"
            ' public void testB() { throw new AssertionError("x"); } }',
        },
        "tests/MTest.java::testA",
        "tests/MTest.java::testB",
    ),
    "c": (
        {
            "src/m.c": "int x = 2;\n",
            "tests/tap.h": TAP_H,
            "tests/test_m.c": '#include "tap.h"\nextern int x;\n'
            "TEST(a) { CHECK(x == 2); }\nTEST(b) { CHECK(x == 3); }\n",
        },
        "tests/test_m.c::a",
        "tests/test_m.c::b",
    ),
    "cpp": (
        {
            "src/m.cpp": "int x = 2;\n",
            "tests/tap.h": TAP_H,
            "tests/test_m.cpp": '#include "tap.h"\nextern int x;\nTEST(a) { CHECK(x == 2); }\nTEST(b) { throw x; }\n',
        },
        "tests/test_m.cpp::a",
        "tests/test_m.cpp::b",
    ),
    "go": (
        {
            "go.mod": GO_MOD,
            "m_test.go": 'package m\n\nimport "testing"\n\nfunc TestA(t *testing.T) {}\n'
            "func TestB(t *testing.T) { t.Fail() }\n",
        },
        "example.com/m::TestA",
        "example.com/m::TestB",
    ),
    "ruby": (
        {
            "tests/test_m.rb": 'require "minitest/autorun"\nclass M < Minitest::Test\n'
            "  def test_a = assert(true)\n  def test_b = raise('x')\nend\n"
        },
        "tests/test_m.rb::M#test_a",
        "tests/test_m.rb::M#test_b",
    ),
    "php": (
        {
            "tests/MTest.php": PHP_HEAD + "function testA() { $this->assertTrue(true); }\n"
            "function testB() { $this->assertTrue(false); } }\n"
        },
        "MTest::testA",
        "MTest::testB",
    ),
}
# Per language: the same repository, but the second test ends the process as if all were well.
LEAVE: dict[str, tuple[str, str, str]] = {
    "python": ("tests/test_m.py", "assert m.X == 3", "__import__('os')._exit(0)"),
    "javascript": ("tests/m.test.js", "require('assert').equal(1, 2)", "process.exit(0)"),
    "typescript": ("tests/m.test.ts", "throw new Error('x')", "process.reallyExit(0)"),
    "rust": ("tests/m.rs", "panic!()", "std::process::exit(0)"),
    "java": ("tests/MTest.java", 'throw new AssertionError("x")', "System.exit(0)"),
    "c": ("tests/test_m.c", "CHECK(x == 3)", "exit(0)"),
    "cpp": ("tests/test_m.cpp", "throw x", "exit(0)"),
    "go": ("m_test.go", "t.Fail()", "os.Exit(0)"),
    "ruby": ("tests/test_m.rb", "raise('x')", "exit!(0)"),
    "php": ("tests/MTest.php", "$this->assertTrue(false)", "exit(0)"),
}
EACH = pytest.mark.parametrize("name", sorted(MIXED))


@EACH
def test_a_pass_and_a_failure_are_told_apart_and_the_exit_code_is_honest(name: str, run_tests: RunTests) -> None:
    files, passing, failing = MIXED[name]
    exit_code, parsed = run_tests(name, files)
    assert exit_code != 0
    assert (parsed.is_parsed, parsed.problem) == (True, "")
    assert parsed.status[passing] is TestStatus.PASSED
    assert parsed.status[failing] in (TestStatus.FAILED, TestStatus.ERROR)


@EACH
def test_leaving_with_exit_code_0_is_no_success(name: str, run_tests: RunTests) -> None:
    files, _, failing = MIXED[name]
    path, before, after = LEAVE[name]
    assert before in files[path]
    text = files[path].replace(before, after)
    text = text.replace('import "testing"', 'import (\n\t"os"\n\t"testing"\n)')
    exit_code, parsed = run_tests(name, files | {path: text})
    assert exit_code != 0
    assert not parsed.is_parsed or parsed.status.get(failing) is not TestStatus.PASSED


@EACH
def test_a_repository_without_tests_is_no_success(name: str, run_tests: RunTests) -> None:
    files, _, _ = MIXED[name]
    exit_code, parsed = run_tests(
        name, {path: text for path, text in files.items() if "test" not in path} | {"README": ""}
    )
    assert exit_code != 0
    assert not parsed.is_parsed


def test_a_module_of_the_repository_does_not_shadow_the_standard_library(run_tests: RunTests) -> None:
    files = {"json.py": "raise SystemExit(0)\n", "tests/test_m.py": "import json\ndef test_a(): json.dumps(1)\n"}
    exit_code, parsed = run_tests("python", files)
    assert (exit_code, parsed.status) == (0, {"tests/test_m.py::test_a": TestStatus.PASSED})


def test_a_test_name_with_quotes_and_line_breaks_survives(run_tests: RunTests) -> None:
    exit_code, parsed = run_tests("javascript", {"tests/m.test.js": "test('a \"b\" \\n\\u2028 é ::', () => {});"})
    assert (exit_code, set(parsed.status)) == (0, {'tests/m.test.js::a "b" \n\u2028 é ::'})


def test_two_tests_of_one_name_are_an_error(run_tests: RunTests) -> None:
    exit_code, parsed = run_tests("javascript", {"tests/m.test.js": "test('a', () => {}); test('a', () => {});"})
    assert exit_code == 1
    assert parsed.status == {"tests/m.test.js": TestStatus.ERROR}


def test_a_cargo_configuration_of_the_repository_does_not_choose_the_runner(run_tests: RunTests) -> None:
    files, passing, failing = MIXED["rust"]
    evil = '[target."cfg(all())"]\nrunner = "/bin/true"\n'
    exit_code, parsed = run_tests("rust", files | {".cargo/config.toml": evil})
    assert exit_code != 0
    assert (parsed.status[passing], parsed.status[failing]) == (TestStatus.PASSED, TestStatus.FAILED)
