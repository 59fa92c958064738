"""The trainers that the benchmark compares do the same work, or the comparison means nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "trainer.py"
SMALL = "--tokens=600 --vocab=300 --hidden=32 --group-size=4 --prompt=20 --tail=60 --row-tokens=200 --threads=1"


def test_ours_and_the_padded_batch_have_one_loss_and_one_gradient():
    options = [*SMALL.split(), "--shared-prompt=30", "--only", "padded", "shared"]
    done = subprocess.run([sys.executable, str(BENCHMARK), "--json", *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    runs, ratios = result["runs"], result["ratios"]
    for one, two in (("ours", "padded"), ("shared", "not_shared")):
        assert runs[one]["num_tokens"] == runs[two]["num_tokens"] > 0
        for name in ("loss", "grad_norm"):
            assert runs[one][name] == pytest.approx(runs[two][name], rel=1e-4, abs=1e-6)
    assert runs["shared"]["computed_tokens"] < runs["not_shared"]["computed_tokens"]
    assert {"memory_vs_padded_full_logits", "tokens_per_s_vs_padded_full_logits"} <= ratios.keys()
    assert result["shares"]["mask_and_metrics"] > 0


def test_an_interpreter_without_trl_is_named_and_the_rest_goes_on(tmp_path):
    lone = tmp_path / "python"
    lone.write_text("#!/bin/sh\nexit 1\n")
    lone.chmod(0o755)
    options = [*SMALL.split(), "--only", "trl", "--trl-python", str(lone)]
    done = subprocess.run([sys.executable, str(BENCHMARK), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"trl left out: {lone} has no trl" in done.stdout and "| ours |" in done.stdout
