"""`swe-rl inspect` over a run with two groups."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from swe_rl.agent.render import Message, Renderer
from swe_rl.cli.main import main
from swe_rl.metrics import MetricsWriter
from swe_rl.store.policies import PolicyStore
from swe_rl.store.rollouts import RolloutStore
from swe_rl.train.token_log import COLUMN_DTYPES, TokenColumns, write_token_log
from swe_rl.trajectory import Group, StopReason, Trajectory, Turn
from swe_rl.verdict import Outcome, Verdict


def make_group(renderer: Renderer, index: int) -> Group:
    prompt = renderer.prompt([Message("user", "The sum is wrong.")])
    completion = renderer.completion([("view", {"path": "src/app.py"})], prose="I look.")
    start, total = len(prompt.token_ids), len(prompt.token_ids) + len(completion)
    sampled = np.arange(total) >= start
    trajectory = Trajectory(
        trajectory_id=f"g{index}-m0",
        group_id=f"g{index}",
        task_id="sum-1",
        split="train",
        token_ids=np.array([*prompt.token_ids, *completion], np.int32),
        sampled=sampled,
        infer_logprobs=np.where(sampled, -0.25, np.nan).astype(np.float32),
        policy_version=np.where(sampled, 0, -1).astype(np.int32),
        segment=np.array([*prompt.segments, *renderer.parse(completion).segments], np.uint8),
        turn=np.where(sampled, 0, -1).astype(np.int16),
        turns=(Turn(start, total),),
        temperature=1.0,
        stop_reason=StopReason.SUBMITTED,
        verdict=Verdict(Outcome.RESOLVED, 1.0),
    )
    return Group(f"g{index}", "sum-1", "train", index, 0, (trajectory,))


@pytest.fixture
def run_dir(policy_dir: Path, tmp_path: Path) -> Path:
    def write(directory: Path) -> None:
        shutil.copy(policy_dir / "tokenizer.json", directory)
        (directory / "model.safetensors").write_bytes(b"weights")

    rollouts, policies, renderer = RolloutStore(tmp_path), PolicyStore(tmp_path), Renderer.from_policy(policy_dir)
    for index in (0, 2):
        rollouts.append(make_group(renderer, index))
    policies.publish(write, 0)
    policies.publish(write, 1, ["g0"])
    MetricsWriter(tmp_path / "metrics.jsonl").write(0, {"reward/mean": 0.5})
    return tmp_path


def test_the_state_of_a_run_is_counted(run_dir, capsys):
    assert main(["inspect", str(run_dir), "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    groups = {name: state[f"groups_{name}"] for name in ("written", "waiting", "consumed", "dropped")}
    assert groups == {"written": 2, "waiting": 1, "consumed": 1, "dropped": 0}
    assert (state["latest_version"], state["num_versions"], state["num_steps"]) == (1, 2, 1)
    assert (state["missing_indices"], state["splits_consumed"]) == ([1], ["train"])


def test_the_state_is_shown_to_people(run_dir, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["inspect", str(run_dir)]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("g0-m0", "in v1", "waiting", "resolved", "sum-1", "0.5"))


def test_the_id_of_a_trajectory_is_whole_on_a_narrow_terminal(run_dir, policy_dir, capsys, monkeypatch):
    name = "g000003-m11a0"
    group = make_group(Renderer.from_policy(policy_dir), 3)
    RolloutStore(run_dir).append(replace(group, trajectories=(replace(group.trajectories[0], trajectory_id=name),)))
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["inspect", str(run_dir)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(name in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_run_that_has_sampled_nothing_yet_is_told_apart(tmp_path, capsys):
    (tmp_path / "policies").mkdir()
    (tmp_path / "config.json").write_text("{}")
    assert main(["inspect", str(tmp_path)]) == 2
    assert "sampled nothing yet" in capsys.readouterr().err


def test_a_trajectory_is_spelled_out(run_dir, capsys):
    assert main(["inspect", str(run_dir), "--trajectory", "g2-m0"]) == 0
    shown = capsys.readouterr().out
    assert "The sum is wrong." in shown
    assert '{"name": "view", "arguments": {"path": "src/app.py"}}' in shown
    assert "reward 1.0" in shown


def test_log_probabilities_come_one_sampled_token_a_line(run_dir, capsys):
    assert main(["inspect", str(run_dir), "--trajectory", "g2-m0", "--logprobs"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " turn " in line and "-0.2500" in line]
    assert len(lines) == RolloutStore(run_dir).find("g2-m0").num_sampled
    assert "tool_name" in "".join(lines)


def test_the_trainers_log_probabilities_stand_beside_the_engines_where_it_has_logged_them(run_dir, capsys):
    t = RolloutStore(run_dir).find("g2-m0")
    [trained] = np.flatnonzero(t.sampled)[2:3]
    values = {name: np.zeros(1, dtype) for name, dtype in COLUMN_DTYPES.items()}
    values |= {"position": np.array([trained], np.int32), "train_logprobs": np.array([-1.5], np.float32)}
    write_token_log(run_dir, 0, TokenColumns(**values, trajectory_ids=np.array(["g2-m0"])))
    assert main(["inspect", str(run_dir), "--trajectory", "g2-m0", "--logprobs"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " turn " in line and "-0.2500" in line]
    assert [line.split()[0] for line in lines if "-1.5000" in line] == [str(trained)]
    assert sum(" - " in line for line in lines) == t.num_sampled - 1


def test_what_is_not_there_is_one_line(run_dir, tmp_path, capsys):
    assert main(["inspect", str(run_dir), "--trajectory", "nobody"]) == 1
    assert "no trajectory 'nobody'" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path / "policies")]) == 2
    assert "expected the directory of a run" in capsys.readouterr().err
    assert main(["inspect", str(run_dir), "--logprobs"]) == 2
    assert "--trajectory ID" in capsys.readouterr().err


def test_the_report_of_a_run_that_hasn_t_ended_is_written(run_dir, capsys):
    assert main(["inspect", str(run_dir), "--report"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == str(run_dir / "report")
    assert json.loads((run_dir / "report/summary.json").read_text())["num_steps"] == 1


def test_a_table_that_is_piped_is_wide_enough_for_its_words(run_dir, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    main(["inspect", str(run_dir)])
    assert "sum-1" in capsys.readouterr().out
