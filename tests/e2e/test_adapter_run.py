"""A short run with adapters: episodes in real sandboxes, a trainer that publishes, an engine that serves it."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swe_rl.agent.render import Renderer
from swe_rl.client import SandboxClient
from swe_rl.config import Config, load_config
from swe_rl.inference.local import LocalEngine
from swe_rl.model import load_model, token_logprobs
from swe_rl.rollout.worker import Worker
from swe_rl.store.policies import PolicyStore
from swe_rl.store.rollouts import RolloutStore
from swe_rl.train.loop import train_loop
from swe_rl.train.token_log import read_token_log
from swe_rl.trajectory import Trajectory

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "tiny-repair"
STEPS = 3
OVERRIDES = [
    f"policy.path={CHECKPOINT}",
    "engine.dtype=float32",
    "sampling.temperature=1.2",  # hot enough for groups whose members differ in reward
    "sampling.max_tokens_per_turn=48",
    "rollout.group_size=8",
    "rollout.groups_per_step=3",
    "rollout.max_staleness=0",
    "train.dtype=float32",
    "train.lora_rank=4",
    "train.lr=0.01",
    f"train.steps={STEPS}",
    "train.warmup_steps=0",
]


async def produce(config: Config, service: Any) -> None:
    engine = LocalEngine(config.engine, seed=5)
    client = SandboxClient(service.url, service.token)
    rollouts, policies = RolloutStore(config.run.dir), PolicyStore(config.run.dir)
    try:
        worker = Worker(
            await client.list_tasks("train"),
            client=client,
            engine=engine,
            renderer=Renderer.from_policy(CHECKPOINT),
            rollouts=rollouts,
            policies=policies,
            config=config,
            poll_s=0.05,
        )
        await worker.run(STEPS)
    finally:
        await engine.close()
        await client.aclose()
        rollouts.close()
        policies.close()


async def run(config: Config, service: Any) -> None:
    producer = asyncio.create_task(produce(config, service))
    assert await asyncio.to_thread(train_loop, config, group_timeout_s=300) == STEPS
    await producer


def gap(policy_dir: Path, trajectories: list[Trajectory]) -> float:
    """Mean |log p under the policy - log p of the engine| over what was sampled."""
    model, gaps = load_model(policy_dir, "float32"), []
    for t in trajectories:
        ids = torch.from_numpy(t.token_ids).long()
        with torch.no_grad():
            logprobs = token_logprobs(model, ids, torch.zeros_like(ids), torch.full(ids.shape, t.temperature), chunk=64)
        gaps.append(np.abs(logprobs.numpy() - t.infer_logprobs)[t.sampled])
    return float(np.concatenate(gaps).mean())


def test_the_engine_samples_from_the_adapter_of_each_published_version(service: object, tmp_path: Path) -> None:
    config = load_config("quickstart", [*OVERRIDES, f"run.dir={tmp_path}"])
    asyncio.run(run(config, service))
    policies, rollouts = PolicyStore(tmp_path), RolloutStore(tmp_path)
    groups = [rollouts.get(row.index) for row in rollouts.groups()]
    assert [group.policy_version for group in groups] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    of_trainer = []
    for step in range(STEPS):
        tokens = read_token_log(tmp_path, step)
        assert set(tokens.staleness.tolist()) <= {0}
        of_trainer += np.abs(tokens.train_logprobs - tokens.infer_logprobs).tolist()
        assert (policies.get(step + 1).path / "adapter" / "adapter_model.safetensors").is_file()
    last = [t for group in groups[-3:] for t in group.trajectories]
    own, of_base = (gap(policies.get(version).path, last) for version in (STEPS - 1, 0))
    print(f"mean gap to the engine: {np.mean(of_trainer):.1e} of the trainer, {own:.1e} of the policy that it served,")
    print(f"{of_base:.1e} of the one below its adapter")
    assert of_trainer and np.mean(of_trainer) < 1e-5
    assert own < 1e-5 and of_base > 100 * own
    rollouts.close()
    policies.close()
