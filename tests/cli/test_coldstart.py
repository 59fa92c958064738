"""The recipe of the shipped checkpoint runs: the expert works in a real sandbox, a fresh policy learns from it."""

import difflib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from swe_rl.model import load_model
from swe_rl.synth.drills import make_drill

ROOT = Path(__file__).parents[2]
SMALL = {
    "coldstart.num_demonstrations": 20,
    "coldstart.num_documents": 20,
    "coldstart.num_drills": 20,
    "coldstart.examples_per_step": 4,
    "coldstart.steps": 30,
}


def make(out: Path) -> subprocess.CompletedProcess[str]:
    settings = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]
    arguments = ["--log-level", "INFO", "coldstart", "--config", "quickstart", "--out", str(out), *settings]
    command = [sys.executable, "-m", "swe_rl.cli.main", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)


def test_the_recipe_makes_a_policy_that_has_begun_to_learn(tmp_path: Path) -> None:
    if not (shutil.which("bwrap") and shutil.which("node")):
        pytest.skip("the expert's Python and JavaScript episodes need bubblewrap and node")
    out = tmp_path / "policy"
    result = make(out)
    assert result.returncode == 0, result.stderr[-2000:]
    losses = [float(first) for first in re.findall(r"losses \[([0-9.]+)", result.stderr)]
    assert len(losses) == 30
    assert losses[-1] < losses[0] / 2
    assert load_model(out, "float32").config.model_type == "qwen3"
    again = make(out)
    assert again.returncode == 1
    assert "isn't empty" in again.stderr


def test_the_shipped_checkpoint_has_the_shape_that_the_recipe_makes() -> None:
    checkpoint = ROOT / "checkpoints" / "tiny-repair"
    from swe_rl.train.tiny import init_policy

    shipped = load_model(checkpoint, "float32").state_dict()
    fresh = init_policy(0).state_dict()
    assert {name: value.shape for name, value in shipped.items()} == {n: v.shape for n, v in fresh.items()}
    assert sum(file.stat().st_size for file in checkpoint.iterdir()) < 8 * 2**20


@pytest.mark.parametrize("seed", range(20))
def test_a_drill_copies_one_line_and_changes_one_piece_of_it(seed: int) -> None:
    import random

    drill = make_drill(random.Random(seed))
    arguments = json.loads(drill.call.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))["arguments"]
    assert f"\n{arguments['old']}\n" in drill.context
    assert f'"name": "view", "arguments": {{"path": "{arguments["path"]}"}}' in drill.context
    old, new = arguments["old"], arguments["new"]
    assert old != new
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    changes = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    assert changes[-1][2] - changes[0][1] <= len("toUpperCase")  # all within one piece
