"""Whole evaluations: a scripted policy, a real sandbox service."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swe_rl.agent.render import Renderer
from swe_rl.client import SandboxClient
from swe_rl.config import Config
from swe_rl.errors import ConfigError, EngineError, EngineUnavailableError, SplitError, TaskError
from swe_rl.eval.evaluate import evaluate
from swe_rl.eval.result import EvalResult, read_result
from swe_rl.inference.engine import Completion, SamplingParams
from swe_rl.inference.scripted import ScriptedEngine
from swe_rl.store.policies import PolicyStore

Evaluate = Callable[..., Any]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class CountingEngine(ScriptedEngine):
    """Counts its episodes, and fails those whose id holds one of `broken` the first `num_failures` times."""

    def __init__(self, reply: Any, tokenizer_json: Path, broken: str = "-", num_failures: int = 0) -> None:
        super().__init__(reply, tokenizer_json)
        self.episodes: list[str] = []
        self.temperatures: set[float] = set()
        self.loaded: list[tuple[Path, int]] = []
        self.broken, self.num_failures = broken, num_failures

    async def load(self, policy_dir: Path, version: int) -> None:
        self.loaded.append((policy_dir, version))
        await super().load(policy_dir, version)

    async def generate(self, session_id: str, token_ids: Any, sampling: SamplingParams) -> Completion:
        if session_id not in self.open_sessions:
            self.episodes.append(session_id)
            self.temperatures.add(sampling.temperature)
        if self.broken in session_id and self.num_failures > 0:
            self.num_failures -= 1
            raise EngineError("engine: out of order")
        return await super().generate(session_id, token_ids, sampling)


@pytest.fixture
def renderer(policy_dir: Path) -> Renderer:
    return Renderer.from_policy(policy_dir)


@pytest.fixture
def policy(policy_dir: Path, tmp_path: Path) -> Path:
    """Version 0 of a run, with weights that nobody loads."""

    def write(directory: Path) -> None:
        shutil.copy(policy_dir / "tokenizer.json", directory)
        (directory / "model.safetensors").write_bytes(b"weights")

    return PolicyStore(tmp_path / "other").publish(write, 0, splits=["dev"]).path


def settings(run_dir: Path, **evaluation: Any) -> Config:
    return Config.model_validate(
        {
            "run": {"dir": run_dir},
            "agent": {"prompt": "compact", "max_turns": 3},
            "engine": {"max_context": 4096},
            "sampling": {"max_tokens_per_turn": 512},
            "rollout": {"concurrency": 2, "max_episode_retries": 1},
            "eval": {"split": "train", "samples_per_task": 2, "ks": [1, 2]} | evaluation,
        }
    )


@pytest.fixture
def half_right(service: Any) -> Callable[[str, int, str], str]:
    """Mends the first task always, the second in its first sample only, the third never."""

    def reply(session_id: str, turn: int, context: str) -> str:
        first, second, _ = service.tasks
        if turn == 1:
            return call("submit")
        if first.task_id in session_id:
            return call("edit", path=first.source_path, old=first.broken_line, new=first.fixed_line)
        if second.task_id in session_id and "-s0-" in session_id:
            return call("edit", path=second.source_path, old=second.broken_line, new=second.fixed_line)
        return "no call"

    return reply


@pytest.fixture
def run(client: SandboxClient, renderer: Renderer, policy: Path, tmp_path: Path) -> Evaluate:
    async def run_one(engine: ScriptedEngine, policy_dir: Path = policy, **options: Any) -> EvalResult:
        fields = {
            key: options.pop(key) for key in ("num_runs", "ks", "num_tasks", "samples_per_task") if key in options
        }
        config = settings(tmp_path / "run", **fields)
        return await evaluate(config, policy_dir, client, engine, renderer, name="before", retry_delay_s=0.0, **options)

    return run_one


@pytest.fixture
def engine(half_right: Any, policy_dir: Path) -> CountingEngine:
    return CountingEngine(half_right, policy_dir / "tokenizer.json")


async def test_rates_and_tables_follow_from_what_the_policy_did(run, engine, service, tmp_path, policy):
    seen = []
    result = await run(engine, is_greedy=True, on_episode=lambda row, done, total: seen.append((done, total)))
    assert result.pass_rate.value == pytest.approx((1 + 0.5 + 0) / 3)
    assert result.pass_at_k["2"].value == pytest.approx(2 / 3)
    assert result.greedy is not None
    assert result.greedy.value == pytest.approx(1 / 3)
    assert (result.num_tasks, result.num_episodes, result.num_faults) == (3, 9, 0)
    assert result.by_label["language"]["python"].num_tasks == 3
    assert result.outcomes["resolved"] == 3
    assert sum(result.outcomes.values()) == 6
    assert 0 < result.malformed_rate < 1
    assert engine.temperatures == {0.0, 1.0}
    assert engine.loaded == [(policy, 0)]
    assert sorted(seen) == [(n, 9) for n in range(1, 10)]
    assert read_result(tmp_path / "run", "before") == result
    assert (await run(engine, is_greedy=False)).greedy is None


async def test_a_finished_evaluation_is_reused_until_something_changes(run, engine, policy):
    first = await run(engine, is_greedy=False)
    assert await run(engine, is_greedy=False) == first
    assert len(engine.episodes) == 6
    await run(engine, is_greedy=False, num_runs=2)
    assert len(engine.episodes) == 6 + 12
    (policy / "model.safetensors").write_bytes(b"other weights")
    await run(engine, is_greedy=False, num_runs=2)
    assert len(engine.episodes) == 6 + 12 + 12


async def test_a_killed_evaluation_goes_on_where_it_was(run, engine, tmp_path):
    full = await run(engine, is_greedy=False)
    (tmp_path / "run" / "eval" / "before.json").unlink()
    log = tmp_path / "run" / "eval" / "before.episodes.jsonl"
    lines = log.read_text().splitlines()
    log.write_text("\n".join(lines[:5]) + "\n" + lines[5][:20])
    again = await run(engine, is_greedy=False)
    assert len(engine.episodes) == 6 + 2
    untimed = {"wall_s": 0.0}
    assert dataclasses.replace(again, **untimed) == dataclasses.replace(full, **untimed)


async def test_a_fault_is_tried_again_and_counted(run, half_right, policy_dir, service):
    broken = CountingEngine(half_right, policy_dir / "tokenizer.json", f"{service.tasks[0].task_id}-r0-s0", 1)
    result = await run(broken, is_greedy=False)
    assert (result.num_faults, result.num_retries) == (0, 1)
    assert result.pass_rate.value == pytest.approx(0.5)


async def test_a_fault_that_stays_is_not_resolved_and_stays_in_the_denominator(run, half_right, policy_dir, service):
    broken = CountingEngine(half_right, policy_dir / "tokenizer.json", f"{service.tasks[0].task_id}-r0-s0", 99)
    result = await run(broken, is_greedy=False)
    assert (result.num_faults, result.num_episodes) == (1, 6)
    assert result.pass_rate.value == pytest.approx((0.5 + 0.5 + 0) / 3)
    assert result.stop_reasons["engine_error"] == 1


async def test_a_dead_engine_is_an_error_and_not_a_pass_rate_of_zero(run, half_right, policy_dir, tmp_path):
    dead = CountingEngine(half_right, policy_dir / "tokenizer.json", "eval-", 999)
    with pytest.raises(EngineUnavailableError, match="all 6 episodes"):
        await run(dead, is_greedy=False)
    assert read_result(tmp_path / "run", "before") is None
    dead.num_failures = 0
    assert (await run(dead, is_greedy=False)).num_faults == 0


async def test_a_policy_that_was_trained_on_the_split_is_refused_before_it_runs(run, engine, policy_dir, tmp_path):
    def write(directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(b"weights")

    trained = PolicyStore(tmp_path / "other").publish(write, 1, splits=["train"])
    with pytest.raises(SplitError, match="trained on split 'train'"):
        await run(engine, trained.path)
    assert engine.episodes == []


async def test_what_cannot_be_measured_is_refused(run, engine):
    with pytest.raises(TaskError, match="nowhere"):
        await run(engine, split="nowhere")
    with pytest.raises(ConfigError, match=r"eval\.ks"):
        await run(engine, ks=[3])
    with pytest.raises(ConfigError, match="has 3 tasks"):
        await run(engine, num_tasks=4)


async def test_a_sample_of_the_tasks_is_the_same_each_time(run, engine):
    first = await run(engine, is_greedy=False, num_tasks=2, samples_per_task=1, ks=[1])
    assert first.num_tasks == 2
    assert len({episode.split("-r0")[0] for episode in engine.episodes}) == 2
    assert await run(engine, is_greedy=False, num_tasks=2, samples_per_task=1, ks=[1]) == first
