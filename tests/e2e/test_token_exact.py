"""The trainer prices exactly what the engine sampled: stored episodes, replayed with the engine's weights."""

import asyncio
from pathlib import Path

import numpy as np
import torch

from swe_rl.agent.loop import run_episode
from swe_rl.agent.render import Renderer
from swe_rl.client import SandboxClient
from swe_rl.config import load_config
from swe_rl.inference.local import LocalEngine
from swe_rl.model import load_model, token_logprobs
from swe_rl.store.rollouts import RolloutStore
from swe_rl.store.steps import StepRule
from swe_rl.trajectory import Group, StopReason, Trajectory

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "tiny-repair"
NUM_EPISODES = 32
OVERRIDES = [
    "engine.dtype=float32",
    "engine.max_batch=16",
    "sampling.temperature=1.5",  # hot enough for malformed calls
    "sampling.max_tokens_per_turn=64",  # and short enough for truncated turns
    "agent.max_malformed=3",
]


async def sample_episodes(service: object) -> list[Trajectory]:
    config = load_config("quickstart", OVERRIDES)
    engine = LocalEngine(config.engine, seed=5)
    client = SandboxClient(service.url, service.token)  # type: ignore[attr-defined]
    try:
        await engine.load(CHECKPOINT, 7)
        renderer = Renderer.from_policy(CHECKPOINT)
        tasks = await client.list_tasks("train")
        return list(
            await asyncio.gather(
                *(
                    run_episode(
                        tasks[index % len(tasks)],
                        client=client,
                        engine=engine,
                        renderer=renderer,
                        config=config,
                        trajectory_id=f"t{index}",
                        group_id=f"g{index}",
                        temperature=config.sampling.temperature,
                    )
                    for index in range(NUM_EPISODES)
                )
            )
        )
    finally:
        await engine.close()
        await client.aclose()


def replay(trajectory: Trajectory) -> np.ndarray:
    model = load_model(CHECKPOINT, torch.float32)
    token_ids = torch.tensor(trajectory.token_ids, dtype=torch.long)
    with torch.no_grad():
        logprobs = token_logprobs(
            model,
            token_ids,
            torch.zeros_like(token_ids),
            torch.full(token_ids.shape, trajectory.temperature),
            chunk=64,
        )
    return logprobs.numpy()


def test_replayed_log_probabilities_equal_the_engines_for_every_sampled_token(service: object, tmp_path: Path) -> None:
    episodes = asyncio.run(sample_episodes(service))
    store = RolloutStore(tmp_path)
    for index, t in enumerate(episodes):
        store.append(Group(t.group_id, t.task_id, t.split, index, 7, (t,)))
    stored = [t for group in store.take(StepRule(len(episodes)), 7, 0) or [] for t in group.trajectories]
    store.close()
    assert len(stored) == NUM_EPISODES
    assert sum(len(t.turns) > 1 for t in stored) >= 20
    turns = [turn for t in stored for turn in t.turns]
    assert any(turn.calls for turn in turns)
    assert any(turn.is_malformed for turn in turns)
    assert any(turn.end - turn.start == 64 for turn in turns), "no truncated turn"
    worst = 0.0
    for trajectory in stored:
        assert trajectory.stop_reason not in (StopReason.ENGINE_ERROR, StopReason.SANDBOX_ERROR)
        assert set(trajectory.policy_version[trajectory.sampled].tolist()) == {7}
        gap = np.abs(replay(trajectory) - trajectory.infer_logprobs)[trajectory.sampled]
        worst = max(worst, float(gap.max()))
    print(f"{sum(t.num_sampled for t in stored)} sampled tokens, largest gap {worst:.2e}")
    assert worst < 1e-4
