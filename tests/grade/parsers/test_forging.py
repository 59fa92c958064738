"""Code under test that tries to turn a failure into a pass inside the runner's own process, and its honest twin."""

from collections.abc import Callable

import pytest

from swe_rl.grade.parsers.report import ParsedReport, TestStatus

RunTests = Callable[[str, dict[str, str]], tuple[int, ParsedReport]]
PASSING = {
    "java": "tests/MTest.java::testA",
    "javascript": "tests/m.test.js::a",
    "python": "tests/test_m.py::test_a",
    "ruby": "tests/test_m.rb::M#test_a",
}
FAILING = {
    "java": "tests/MTest.java::testB",
    "javascript": "tests/m.test.js::b",
    "python": "tests/test_m.py::test_b",
    "ruby": "tests/test_m.rb::M#test_b",
}
# Writes the text to every descriptor that a pipe of the runner may have.
WRITE = """import os
for fd in range(3, 20):
    try: os.write(fd, b'%s')
    except OSError: pass
"""
RESULTS = "passed\\ttests/test_m.py::test_a\\t\\npassed\\ttests/test_m.py::test_b\\t\\n"
REPORT = """const fs = require('fs'), words = fs.readFileSync('/proc/self/cmdline', 'utf8').split('\\0');
const at = words.indexOf('--report'), line = (row) => JSON.stringify(row) + '\\n';
const row = (name) => line({ id: `tests/m.test.js::${name}`, status: 'passed' });
const rows = row('a') + row('b'), hash = (text) => require('crypto').createHash('sha256').update(text).digest('hex');
const write = (nonce) => fs.writeFileSync(words[at + 1], rows + line({ end: 2, seal: hash(nonce + '\\n' + rows) }));
"""
# Per case: a language, and what the repository's own module does when it is loaded to make the failing test pass.
CHEATS: dict[str, tuple[str, str]] = {
    "results on every descriptor": ("python", WRITE % RESULTS + "os._exit(0)\n"),
    "results with an end mark on every descriptor": ("python", WRITE % (RESULTS + "end\\t\\t\\n") + "os._exit(0)\n"),
    "results of the tests before they run": ("python", WRITE % RESULTS),
    "another runner in __main__": ("python", "import __main__\n__main__.attempt = lambda *a: None\n"),
    "another runner by way of its finder": (
        "python",
        "import sys\nsys.meta_path[0].find_spec.__func__.__globals__['attempt'] = lambda *a: None\n",
    ),
    "other built-in functions": ("python", "import builtins\nbuiltins.isinstance = builtins.exec = lambda *a: None\n"),
    "another outcome on the stack": (
        "python",
        "import sys\nframe = sys._getframe()\nwhile frame:\n"
        "    if 'outcome' in frame.f_globals: frame.f_globals['outcome'] = lambda *a: ('passed', '')\n"
        "    frame = frame.f_back\n",
    ),
    "another assert": ("javascript", "const a = require('assert'); a.equal = a.strictEqual = a.ok = () => {};"),
    "another test function": ("javascript", "const t = test; globalThis.test = (name) => t(name, () => {});"),
    "toJSON": ("javascript", "Object.prototype.toJSON = function () { return { ...this, status: 'passed' }; };"),
    "another push": (
        "javascript",
        "const push = Array.prototype.push;\nArray.prototype.push = function (x) {"
        " if (x && x.status) x.status = 'passed'; if (x && x.fn) x.fn = () => {}; return push.call(this, x); };",
    ),
    "other iterators": (
        "javascript",
        "const old = Array.prototype[Symbol.iterator];\nArray.prototype[Symbol.iterator] = function* () {"
        " for (let i = 0; i < this.length; i++)"
        " yield this[i] && this[i].fn ? { name: this[i].name, fn() {} } : this[i]; };",
    ),
    "other promises": (
        "javascript",
        "Promise.race = async () => {}; Promise.prototype.then = function (f) { f && f(); };",
    ),
    "an array whose places have setters": (
        "javascript",
        "for (const i of [0, 1, 2]) Object.defineProperty(Array.prototype, i,"
        " { set(x) { Object.defineProperty(this, i, { value: { ...x, fn() {} }, writable: true }); } });",
    ),
    "a report with the nonce's file, then leaving": (
        "javascript",
        REPORT + "write(fs.readFileSync(words[at + 2], 'utf8').trim()); process.reallyExit(0);",
    ),
    "a report with the nonce's file, in an exit handler": (
        "javascript",
        REPORT + "process.on('exit', () => write(fs.readFileSync(words[at + 2], 'utf8').trim()));",
    ),
    "a report with the nonce's place instead of the nonce": (
        "javascript",
        REPORT + "process.on('exit', () => write(words[at + 2]));",
    ),
    "another way to write": (
        "javascript",
        "const fs = require('fs'); for (const name of ['writeSync', 'writeFileSync']) { const write = fs[name];"
        " fs[name] = (to, text, ...rest) => write(to, String(text).replaceAll('failed', 'passed'), ...rest); }",
    ),
    "another StringBuilder": (
        "java",
        "final class StringBuilder {\n    private final java.lang.StringBuilder text = new java.lang.StringBuilder();\n"
        "    StringBuilder() {}\n    StringBuilder(Object start) { append(start); }\n"
        "    StringBuilder append(Object more) {\n"
        '        text.append(String.valueOf(more).replace("failed", "passed"));\n        return this;\n    }\n'
        "    public String toString() { return text.toString(); }\n}\n",
    ),
    "another assertion": (
        "ruby",
        "module Minitest::Assertions\n  def assert(*) = true\n  def assert_equal(*) = true\nend\n",
    ),
    "results on every pipe": (
        "ruby",
        'ObjectSpace.each_object(IO) { |io| io.puts(\'{"id": "tests/test_m.rb::M#test_a", "status": "passed"}\','
        " '{\"end\": true}') rescue nil }\nexit!(0)\n",
    ),
}
# The second test calls the module, which is loaded before any test is defined.
VICTIMS: dict[str, tuple[str, str, str]] = {
    "python": ("m.py", "tests/test_m.py", "import m\ndef test_a(): assert True\ndef test_b(): assert m.X == 3\n"),
    "javascript": (
        "m.js",
        "tests/m.test.js",
        "const assert = require('assert'); require('../m.js');\n"
        "test('a', () => {}); test('b', async () => assert.equal(1, 2));",
    ),
    "java": (
        "src/StringBuilder.java",
        "tests/MTest.java",
        "public class MTest {\n    public void testA() {}\n"
        '    public void testB() { throw new AssertionError("x"); }\n}\n',
    ),
    "ruby": (
        "lib/m.rb",
        "tests/test_m.rb",
        'require "minitest/autorun"\nrequire "m"\nclass M < Minitest::Test\n'
        "  def test_a = assert(true)\n  def test_b = assert_equal(1, 2)\nend\n",
    ),
}
HONEST = {
    "java": "",
    "javascript": "module.exports = 2;\n",
    "python": "X = 2\n",
    "ruby": "X = 2\n",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_code_under_test_can_not_turn_a_failure_into_a_pass(cheat: str, run_tests: RunTests) -> None:
    name, code = CHEATS[cheat]
    module, tests, text = VICTIMS[name]
    exit_code, parsed = run_tests(name, {module: HONEST[name] + code, tests: text})
    is_success = exit_code == 0 and parsed.is_parsed and not parsed.has_failures
    assert not is_success, parsed
    assert not (parsed.is_parsed and parsed.status.get(FAILING[name]) is TestStatus.PASSED)


@pytest.mark.parametrize("name", sorted(VICTIMS))
def test_the_same_tests_with_an_honest_module_are_reported_whole(name: str, run_tests: RunTests) -> None:
    module, tests, text = VICTIMS[name]
    _, parsed = run_tests(name, {module: HONEST[name], tests: text})
    assert parsed.is_parsed, parsed.problem
    assert parsed.status[PASSING[name]] is TestStatus.PASSED
    assert parsed.status[FAILING[name]] is TestStatus.FAILED


@pytest.mark.parametrize(
    ("name", "first", "code"),
    [
        (
            "python",
            "tests/test_a.py",
            "open('tests/test_m.py', 'w').write('def test_a(): pass\\ndef test_b(): pass\\n')\n",
        ),
        (
            "javascript",
            "tests/a.test.js",
            "require('fs').writeFileSync('tests/m.test.js', \"test('a', () => {}); test('b', () => {});\");\n",
        ),
    ],
)
def test_a_test_file_that_another_one_rewrites_gains_nothing(
    name: str, first: str, code: str, run_tests: RunTests
) -> None:
    module, tests, text = VICTIMS[name]
    exit_code, parsed = run_tests(name, {module: HONEST[name], tests: text, first: code})
    assert exit_code == 1
    assert parsed.status.get(FAILING[name]) is not TestStatus.PASSED
