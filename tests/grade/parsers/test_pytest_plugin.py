"""The runner of repositories whose tests need pytest: the statuses it records, and what may not configure it."""

import subprocess
import sys
from pathlib import Path

import pytest

from swe_rl.grade.parsers import lines
from swe_rl.grade.parsers.report import ParsedReport, TestStatus
from swe_rl.grade.seal import seal

RUNNER = Path(__file__).resolve().parents[3] / "sandboxes" / "python" / "run_pytest.py"
PASSED, FAILED, ERROR, SKIPPED = TestStatus.PASSED, TestStatus.FAILED, TestStatus.ERROR, TestStatus.SKIPPED
TESTS = """
import pytest
@pytest.fixture
def broken(): raise RuntimeError
@pytest.fixture
def broken_later():
    yield
    raise RuntimeError
@pytest.mark.parametrize("x", ["a b", "[1]"])
def test_pass(x): pass
def test_fail(): assert 0
def test_error(broken): pass
def test_late(broken_later): pass
@pytest.mark.skip
def test_skip(): pass
@pytest.mark.xfail
def test_xfail(): assert 0
@pytest.mark.xfail(strict=True)
def test_xpass(): pass
class TestA:
    def test_b(self): pass
"""


def run(folder: Path, files: dict[str, str]) -> tuple[int, ParsedReport]:
    for name, text in files.items():
        (folder / name).write_text(text)
    report, nonce = folder / "report", folder / "nonce"
    nonce.write_text("n0nce\n")
    argv = [sys.executable, "-I", RUNNER, "--report", report, nonce]
    code = subprocess.run(argv, cwd=folder, capture_output=True, timeout=120, check=False).returncode
    assert not nonce.exists()
    data = report.read_bytes() if report.exists() else None
    parsed = lines.parse(data, b"", b"")
    assert not parsed.is_parsed or parsed.seal == seal("n0nce", data or b"")
    return code, parsed


def test_each_stage_of_a_test_counts(tmp_path: Path) -> None:
    code, parsed = run(tmp_path, {"test_m.py": TESTS, "test_n.py": "raise ImportError\n"})
    assert (code, parsed.is_parsed) == (1, True)
    assert parsed.status == {
        "test_m.py::test_pass[a b]": PASSED,
        "test_m.py::test_pass[[1]]": PASSED,
        "test_m.py::test_fail": FAILED,
        "test_m.py::test_error": ERROR,
        "test_m.py::test_late": ERROR,
        "test_m.py::test_skip": SKIPPED,
        "test_m.py::test_xfail": PASSED,
        "test_m.py::test_xpass": FAILED,
        "test_m.py::TestA::test_b": PASSED,
        "test_n.py": ERROR,
    }


@pytest.mark.parametrize("leave", ["import os; os._exit(0)", "raise SystemExit(0)"])
def test_a_process_that_leaves_has_no_pass(leave: str, tmp_path: Path) -> None:
    _, parsed = run(tmp_path, {"test_m.py": f"def test_a(): pass\ndef test_b():\n    {leave}\n"})
    assert not parsed.is_parsed or parsed.status["test_m.py::test_b"] is not PASSED


def test_configuration_of_the_repository_has_no_say(tmp_path: Path) -> None:
    files = {
        "test_m.py": "def test_a(): pass\ndef test_b(): assert 0\n",
        "pytest.ini": "[pytest]\naddopts = -k test_a\n",
    }
    code, parsed = run(tmp_path, files)
    assert code == 1
    assert parsed.status == {"test_m.py::test_a": PASSED, "test_m.py::test_b": FAILED}
