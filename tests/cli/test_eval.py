"""`swe-rl eval` with a real engine, a policy of random weights and the real service."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from swe_rl.cli.main import main
from swe_rl.store.policies import PolicyStore

torch = pytest.importorskip("torch")


@pytest.fixture(scope="session")
def model_dir(policy_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from swe_rl.model import save_policy

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=420,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    out_dir = tmp_path_factory.mktemp("model")
    save_policy(Qwen3ForCausalLM(config), policy_dir, out_dir)
    return out_dir


@pytest.fixture
def arguments(model_dir: Path, service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("SWE_RL_SANDBOX_TOKEN", service.token)
    pairs = {
        "run.dir": tmp_path / "run",
        "policy.path": model_dir,
        "sandbox.url": service.url,
        "eval.split": "train",
        "eval.num_tasks": 2,
        "eval.samples_per_task": 2,
        "sampling.max_tokens_per_turn": 8,
        "agent.max_turns": 1,
        "agent.prompt": "compact",
        "engine.max_context": 2000,
        "engine.dtype": "float32",
    }
    return ["eval", *(part for key, value in pairs.items() for part in ("--set", f"{key}={value}"))]


def test_a_policy_is_evaluated_and_the_result_printed(arguments, tmp_path, capsys):
    assert main([*arguments, "--json", "--greedy", "--name", "first"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["num_tasks"], result["num_episodes"], result["num_faults"]) == (2, 6, 0)
    assert result["pass_rate"]["value"] == 0.0
    assert result["pass_rate"]["ci95"][1] > 0.5  # two tasks that failed prove little
    assert json.loads((tmp_path / "run" / "eval" / "first.json").read_text()) == result
    assert main([*arguments, "--greedy", "--name", "first"]) == 0
    assert "pass@1" in capsys.readouterr().out


def test_a_policy_trained_on_the_split_is_one_line_and_exit_1(arguments, model_dir, tmp_path, capsys):
    def write(directory: Path) -> None:
        shutil.copytree(model_dir, directory, dirs_exist_ok=True)

    PolicyStore(tmp_path / "run").publish(write, 0, splits=["train"])
    assert main(arguments) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("swe-rl: SplitError: policy ")


def test_a_missing_policy_is_one_line_and_exit_1(arguments, tmp_path, capsys):
    assert main([*arguments, "--policy", str(tmp_path / "nowhere")]) == 1
    assert "name one with --policy" in capsys.readouterr().err
