"""The laws of the house: imports only go down, the wings stay apart, files stay small."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "swe_rl").rglob("*.py"))


def test_the_import_contracts_hold() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_the_environment_and_the_agent_import_without_torch() -> None:
    modules = [
        "swe_rl.service.app", "swe_rl.grade.grader", "swe_rl.sandbox.backend", "swe_rl.task.taskset",
        "swe_rl.synth.family", "swe_rl.client", "swe_rl.agent.loop", "swe_rl.rollout.worker", "swe_rl.config",
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
