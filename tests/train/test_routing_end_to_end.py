"""Experts from the engine that samples, over the store, to the trainer that replays them."""

import asyncio

import numpy as np
import pytest
import torch

from swe_rl.agent.record import Recording
from swe_rl.agent.render import ParsedCompletion, Rendered
from swe_rl.inference.engine import SamplingParams
from swe_rl.inference.local import LocalEngine
from swe_rl.metrics import read_metrics
from swe_rl.model import load_model, save_policy
from swe_rl.store.policies import PolicyStore
from swe_rl.store.rollouts import RolloutStore
from swe_rl.train.batch import build_batch
from swe_rl.train.loop import train_loop
from swe_rl.train.trainer import Trainer
from swe_rl.trajectory import Group, Segment, StopReason
from swe_rl.verdict import Outcome, Verdict

VOCAB, GROUP_SIZE = 48, 4
BOTH = ["engine.return_routed_experts=true", "train.replay_routing=true", "mask.rule=none", "train.row_tokens=256"]


async def sample_group(engine, index, version):
    prompt = np.random.default_rng(index).integers(0, VOCAB, 20).tolist()
    members = [sample(engine, f"g{index}-{i}", prompt, float(i % 2)) for i in range(GROUP_SIZE)]
    return Group(f"g{index}", "task", "train", index, version, tuple(await asyncio.gather(*members)))


async def sample(engine, name, prompt, reward):
    """Three turns with observations between, recorded as the agent records them."""
    recording = Recording()
    for observation in (prompt, [1, 2, 3], [4, 5]):
        recording.add_rendered(Rendered(observation, [int(Segment.OBSERVATION)] * len(observation)))
        params = SamplingParams(1.0, 16, (), recording.num_routed)
        completion = await engine.generate(name, recording.token_ids, params)
        segments = np.full(len(completion.token_ids), Segment.TEXT, np.uint8)
        recording.add_completion(completion, ParsedCompletion((), "", segments, ""))
    await engine.release(name)
    verdict = Verdict(outcome=Outcome.RESOLVED if reward else Outcome.UNRESOLVED, reward=reward)
    ids = (name, name.split("-")[0], "task", "train")
    return recording.to_trajectory(ids=ids, temperature=1.0, stop_reason=StopReason.SUBMITTED, verdict=verdict)


def sample_groups(config, policies_by_version, first=0):
    """Two groups of each version."""

    async def run():
        engine = LocalEngine(config.engine, seed=1)
        groups = []
        for version, policy in policies_by_version.items():
            await engine.load(policy, version)
            groups += [await sample_group(engine, first + 2 * version + i, version) for i in range(2)]
        await engine.close()
        return groups

    return asyncio.run(run())


def test_what_the_engine_records_is_stored_replayed_and_learned_from(make_config, moe_policy_dir):
    config = make_config(f"policy.path={moe_policy_dir}", *BOTH, "engine.max_context=128", "train.steps=1")
    store = RolloutStore(config.run.dir)
    for group in sample_groups(config, {0: moe_policy_dir}):
        store.append(group)
    assert store.get(0).trajectories[0].routed_experts.shape[1:] == (2, 2)
    assert train_loop(config) == 1
    policies = PolicyStore(config.run.dir)
    second = config.model_copy(update={"train": config.train.model_copy(update={"steps": 2})})
    for group in sample_groups(config, {1: policies.get(1).path}):
        store.append(group)
    assert train_loop(second) == 2
    rows = read_metrics(config.run.dir / "metrics.jsonl")
    for row in rows:
        # one policy in one precision: the routers agree, and the probabilities do
        assert row["mismatch/router_agreement"] > 0.99
        assert row["mismatch/mean_abs_logprob_diff"] < 1e-4
        assert row["train/grad_norm"] > 0
    assert len(rows) == 2 and len(policies.versions()) == 3
    store.close()
    policies.close()


@pytest.fixture
def near_ties_dir(moe_policy_dir, tmp_path):
    """The six experts are two threes whose routers' rows hardly differ, while what they compute does."""
    model = load_model(moe_policy_dir, torch.float32)
    with torch.no_grad():
        for layer in model.model.layers:
            rows = layer.mlp.gate.weight
            rows[:] = rows[[0, 0, 0, 3, 3, 3]] + 0.02 * rows
    save_policy(model, moe_policy_dir, tmp_path / "near_ties")
    return tmp_path / "near_ties"


def test_replay_lowers_the_gap_between_an_engine_in_bfloat16_and_a_trainer_in_float32(make_config, near_ties_dir):
    base = [f"policy.path={near_ties_dir}", *BOTH, "engine.dtype=bfloat16", "engine.max_context=128", "train.lr=0.0"]
    groups = sample_groups(make_config(*base), dict.fromkeys(range(4), near_ties_dir))
    found = {}
    for replays in ("true", "false"):
        config = make_config(*base, f"train.replay_routing={replays}", "rollout.max_staleness=99")
        trainer = Trainer(config.policy.path, config, config.run.dir / "state")
        found[replays] = trainer.update(build_batch(groups, row_tokens=256, replay_routing=replays == "true")).metrics
    gap = {replays: metrics["mismatch/mean_abs_logprob_diff"] for replays, metrics in found.items()}
    print(gap, {replays: metrics["mismatch/router_agreement"] for replays, metrics in found.items()})
    assert all(0.7 < metrics["mismatch/router_agreement"] < 0.97 for metrics in found.values())
    assert gap["true"] < 0.5 * gap["false"]
