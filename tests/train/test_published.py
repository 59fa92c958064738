"""What the engine samples from published weights, the trainer replays: version after version, while they move."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from swe_rl.config import Config, EngineConfig
from swe_rl.inference.engine import SamplingParams
from swe_rl.inference.local import LocalEngine
from swe_rl.store.policies import PolicyStore
from swe_rl.train.batch import TokenBatch, build_batch
from swe_rl.train.loop import publish_cold_start
from swe_rl.train.trainer import Trainer
from swe_rl.trajectory import Group, Segment, StopReason, Trajectory, Turn
from swe_rl.verdict import Outcome, Verdict

TEMPERATURE = 0.7
NUM_VERSIONS = 4


async def sample_batch(engine: LocalEngine, version: int, vocab: int = 48) -> TokenBatch:
    """Two groups of four, of random prompts, half of them rewarded."""
    groups = []
    for index in range(2):
        prompt = np.random.default_rng([version, index]).integers(0, vocab, 6).tolist()
        members = [await sample(engine, prompt, f"v{version}-g{index}", member) for member in range(4)]
        groups.append(Group(members[0].group_id, "task", "train", index, version, tuple(members)))
    return build_batch(groups)


async def sample(engine: LocalEngine, prompt: list[int], group_id: str, member: int) -> Trajectory:
    name = f"{group_id}-m{member}"
    completion = await engine.generate(name, prompt, SamplingParams(TEMPERATURE, 24, ()))
    num_prompt, num_sampled = len(prompt), len(completion.token_ids)
    resolved = Verdict(outcome=Outcome.RESOLVED, reward=1.0)
    return Trajectory(
        *(name, group_id, "task", "train"),
        token_ids=np.concatenate([np.array(prompt, np.int32), completion.token_ids]),
        sampled=np.arange(num_prompt + num_sampled) >= num_prompt,
        infer_logprobs=np.concatenate([np.full(num_prompt, np.nan, np.float32), completion.logprobs]),
        policy_version=np.concatenate([np.full(num_prompt, -1, np.int32), completion.policy_version]),
        segment=np.array([Segment.PROMPT] * num_prompt + [Segment.TEXT] * num_sampled, np.uint8),
        turn=np.array([-1] * num_prompt + [0] * num_sampled, np.int16),
        turns=(Turn(num_prompt, num_prompt + num_sampled),),
        temperature=TEMPERATURE,
        stop_reason=StopReason.SUBMITTED,
        verdict=resolved if member % 2 else Verdict(outcome=Outcome.UNRESOLVED, reward=0.0),
    )


@pytest.mark.parametrize("lr", ["1e-30", "0.01"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", [[], ["train.lora_rank=4"]], ids=["whole", "adapters"])
async def test_engine_and_trainer_never_drift_apart_over_published_versions(
    make_config: Callable[..., Config], tmp_path: Path, lr: str, dtype: str, options: list[str]
) -> None:
    config = make_config("mask.rule=none", f"train.lr={lr}", f"engine.dtype={dtype}", *options)
    policies = PolicyStore(config.run.dir)
    trainer = Trainer(publish_cold_start(config, policies).path, config, tmp_path / "state")
    engine = LocalEngine(EngineConfig(dtype=dtype, max_batch=4, max_context=64), seed=3)
    gaps, first = [], None
    for version in range(NUM_VERSIONS):
        await engine.load(policies.get(version).path, version)
        batch = await sample_batch(engine, version)
        first = first or batch
        tokens = trainer.update(batch).tokens
        assert set(tokens.staleness.tolist()) == {0}
        gaps.append(float(np.abs(tokens.train_logprobs - tokens.infer_logprobs).mean()))
        policies.publish(trainer.export(), trainer.version)
    await engine.close()
    policies.close()
    if dtype == "float32":
        assert max(gaps) < 1e-5
    else:
        assert max(gaps) < 2 * gaps[0] < 0.05
    if lr == "0.01":  # the weights did move: those of another version would have been seen
        late = trainer.update(first).metrics["mismatch/mean_abs_logprob_diff"]
        assert late > 10 * max(gaps)
