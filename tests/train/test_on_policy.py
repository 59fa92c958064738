"""The trainer and the engine of one run, over many versions: on-policy steps are on-policy, and stay so."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from swe_rl.config import EngineConfig
from swe_rl.inference.engine import SamplingParams
from swe_rl.inference.local import LocalEngine
from swe_rl.train.batch import build_batch
from swe_rl.train.trainer import Trainer
from swe_rl.trajectory import Group, Segment, StopReason, Trajectory, Turn
from swe_rl.verdict import Outcome, Verdict

GROUP_SIZE, VOCAB = 4, 48


async def sample_group(engine: LocalEngine, index: int, version: int) -> Group:
    """Siblings of two turns with an observation between; half of them are rewarded."""
    prompt = np.random.default_rng(index).integers(0, VOCAB, 6).tolist()
    members = [await sample(engine, f"g{index}-{i}", prompt, version, reward=float(i % 2)) for i in range(GROUP_SIZE)]
    return Group(f"g{index}", "task", "train", index, version, tuple(members))


async def sample(engine: LocalEngine, name: str, prompt: list[int], version: int, reward: float) -> Trajectory:
    ids, logprobs = list(prompt), [np.nan] * len(prompt)
    turn, turns = [-1] * len(prompt), []
    for number in range(2):
        completion = await engine.generate(name, ids, SamplingParams(0.8, 8, ()))
        assert set(completion.policy_version.tolist()) == {version}
        turns.append(Turn(len(ids), len(ids) + len(completion.token_ids)))
        ids += [*completion.token_ids.tolist(), 1, 2, 3]
        logprobs += [*completion.logprobs.tolist(), np.nan, np.nan, np.nan]
        turn += [number] * (len(completion.token_ids) + 3)
    await engine.release(name)
    sampled = np.isfinite(logprobs)
    return Trajectory(
        trajectory_id=name,
        group_id=name.split("-")[0],
        task_id="task",
        split="train",
        token_ids=np.array(ids, np.int32),
        sampled=sampled,
        infer_logprobs=np.array(logprobs, np.float32),
        policy_version=np.where(sampled, version, -1).astype(np.int32),
        segment=np.where(sampled, Segment.TEXT, Segment.OBSERVATION).astype(np.uint8),
        turn=np.array(turn, np.int16),
        turns=tuple(turns),
        temperature=0.8,
        stop_reason=StopReason.SUBMITTED,
        verdict=Verdict(outcome=Outcome.RESOLVED if reward else Outcome.UNRESOLVED, reward=reward),
    )


def run_steps(config, num_steps: int, scratch: Path) -> list[dict[str, float]]:
    """Metrics of each step: the engine loads what the trainer exports, and samples the next step's groups."""

    async def run() -> list[dict[str, float]]:
        engine = LocalEngine(EngineConfig(dtype="float32", max_batch=8, max_context=128), seed=0)
        trainer = Trainer(config.policy.path, config, config.run.dir / "state")
        found = []
        for step in range(num_steps):
            policy = scratch / f"v{step}"
            trainer.export()(policy)
            await engine.load(policy, step)
            groups = [await sample_group(engine, 2 * step + i, step) for i in range(2)]
            batch = build_batch(groups, row_tokens=128, shared_prefix=config.train.shared_prefix)
            found.append(dict(trainer.update(batch).metrics))
        await engine.close()
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("shared_prefix", ["true", "false"])
def test_at_learning_rate_zero_the_gap_to_the_engine_is_flat_and_tiny_for_fifty_steps(
    make_config, tmp_path, shared_prefix
):
    config = make_config("train.lr=0", f"train.shared_prefix={shared_prefix}", "mask.phi=1e-6")
    steps = run_steps(config, 50, tmp_path)
    gaps = np.array([step["mismatch/mean_abs_logprob_diff"] for step in steps])
    assert gaps.max() < 1e-5
    assert gaps[25:].mean() < 2 * gaps[:25].mean() + 1e-7
    assert {step["mask/kept_fraction"] for step in steps} == {1.0}


def test_while_it_learns_each_step_is_on_policy_to_rounding(make_config, tmp_path):
    """A gap that grew with the versions would be a bug of the hand-over of weights."""
    steps = run_steps(make_config("train.lr=0.003", "mask.rule=none"), 12, tmp_path)
    assert max(step["mismatch/mean_abs_logprob_diff"] for step in steps) < 1e-5
    assert all(step["train/grad_norm"] > 0 and step["train/clip_fraction"] == 0 for step in steps)
    # at ratio exactly 1 the loss is minus the mean advantage of the tokens
    assert all(step["mismatch/max_ratio"] == pytest.approx(1.0, abs=1e-4) for step in steps)
