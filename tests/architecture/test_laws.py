"""The laws of the house: imports only go down, the wings stay apart, files stay small, tests have patience."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "swe_rl").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
CALLS = ("get", "post", "put", "patch", "delete", "request", "stream", "Client", "AsyncClient")
HTTP = {f"httpx.{name}" for name in CALLS}


def test_the_import_contracts_hold() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_the_environment_and_the_agent_import_without_torch() -> None:
    modules = [
        "swe_rl.service.app", "swe_rl.grade.grader", "swe_rl.sandbox.backend", "swe_rl.task.taskset",
        "swe_rl.synth.family", "swe_rl.client", "swe_rl.agent.loop", "swe_rl.rollout.worker", "swe_rl.config",
        "swe_rl.gateway.app", "swe_rl.redteam.run",
    ]  # fmt: skip
    block = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'vllm', 'safetensors.torch'):\n    sys.modules[name] = None\n"
        f"import importlib\nfor name in {modules!r}:\n    importlib.import_module(name)\n"
    )
    result = subprocess.run([sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_has_a_docstring_and_at_most_three_hundred_lines(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if not text.strip():
        return
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= 300


def test_no_test_fails_by_a_default_time_limit_of_a_library() -> None:
    """httpx gives up after 5 s and hypothesis after 0.2 s, which a loaded machine may take for anything."""
    hasty = [f"{path.relative_to(ROOT)}:{line}" for path in TESTS for line in _hasty_lines(path)]
    assert hasty == []


def _hasty_lines(path: Path) -> list[int]:
    text = path.read_text(encoding="utf-8")
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    lines = [call.lineno for call in calls if ast.unparse(call.func) in HTTP and "timeout" not in _keywords(call)]
    lines += [call.lineno for call in calls if ast.unparse(call.func) == "given" and "deadline=None" not in text]
    return lines


def _keywords(call: ast.Call) -> set[str | None]:
    return {keyword.arg for keyword in call.keywords}
