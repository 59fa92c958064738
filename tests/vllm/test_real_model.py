"""A model that somebody else trained takes two steps of RL on a real task, through real vLLM, sandbox and trainer.

SWE_RL_REAL_POLICY names its directory; `make smoke` fetches SmolLM2-135M-Instruct. It solves nothing, so its rewards
are made up: what is shown is that nothing depends on the toy policy.
"""

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from swe_rl.config import Config, EngineConfig
from swe_rl.inference.vllm import VllmEngine
from swe_rl.trajectory import Group, Segment
from swe_rl.verdict import Outcome, Verdict

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).parents[2]
TASK_ID = "python-ledger-rounding"
GROUP_SIZE = 4


@pytest.fixture(scope="module")
def policy_dir() -> Path:
    path = os.environ.get("SWE_RL_REAL_POLICY", "")
    if not path:
        pytest.skip("SWE_RL_REAL_POLICY names no policy: run `make smoke`")
    return Path(path).resolve()


@pytest.fixture(scope="module")
def config(policy_dir: Path, engine_config: EngineConfig, tmp_path_factory: pytest.TempPathFactory) -> Config:
    engine = engine_config.model_copy(update={"dtype": "bfloat16", "max_context": 2560, "max_batch": 4})
    sections: dict[str, Any] = {
        "run": {"dir": tmp_path_factory.mktemp("run")},
        "policy": {"path": policy_dir},
        "engine": engine,
        "sampling": {"max_tokens_per_turn": 64},
        "agent": {"max_turns": 2},
        "rollout": {"group_size": GROUP_SIZE, "groups_per_step": 1},
        "train": {"steps": 2, "lr": 1e-5, "dtype": "bfloat16", "row_tokens": 4096},
    }
    return Config.model_validate(sections)


@pytest_asyncio.fixture(loop_scope="module")
async def collect(config: Config) -> AsyncIterator[Any]:
    """collect(index, version) -> a group of episodes on the task; the engine serves the policy as version 0."""
    import asyncio

    from swe_rl.agent.render import Renderer
    from swe_rl.client import SandboxClient
    from swe_rl.errors import SandboxUnavailableError
    from swe_rl.rollout.group import Collector, collect_group
    from swe_rl.sandbox.backend import open_backend
    from swe_rl.service.app import create_app
    from swe_rl.service.server import running
    from swe_rl.task.language import read_languages
    from swe_rl.task.taskset import TaskSet

    languages = read_languages(ROOT / "sandboxes")
    try:
        backend = await open_backend("auto", languages, config.run.dir / "scratch")
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    app = create_app(
        backend=backend, languages=languages, tasks=TaskSet.load([ROOT / "tasks"]), token="t", grade_concurrency=2
    )
    engine = VllmEngine(config.engine, config.run.dir / "inference", seed=1)
    try:
        async with running(app) as url, SandboxClient(url, "t") as client:
            await engine.load(config.policy.path, 0)
            (task,) = [task for task in await client.list_tasks("dev") if task.task_id == TASK_ID]
            renderer = Renderer.from_policy(config.policy.path, config.agent.dialect)
            collector = Collector(client, engine, renderer, config, asyncio.Semaphore(4))

            async def run(index: int, version: int) -> Group:
                return await collect_group(task, index, version, collector)

            yield engine, run
    finally:
        await engine.close()
        await backend.close()


async def test_a_real_model_takes_two_steps_on_a_real_task(config: Config, collect: Any, score: Any) -> None:
    from swe_rl.train.batch import build_batch
    from swe_rl.train.trainer import Trainer

    engine, run = collect
    trainer = Trainer(config.policy.path, config, config.run.dir / "state")
    policy = config.policy.path
    for step in range(2):
        group = await run(step, step)
        assert len(group.trajectories) == GROUP_SIZE
        for trajectory in group.trajectories:
            assert trajectory.verdict is not None and trajectory.sampled.any()
            assert set(trajectory.policy_version[trajectory.sampled].tolist()) == {step}
            assert Segment.PROMPT in trajectory.segment
        one = group.trajectories[0]
        first = one.turns[0]
        ids = one.token_ids[: first.end].tolist()
        exact = score(policy, ids[: first.start], ids[first.start :], 1.0)
        assert 1e-6 < np.abs(exact - one.infer_logprobs[first.start : first.end]).mean() < 0.1

        result = trainer.update(build_batch([_rewarded(group)], row_tokens=config.train.row_tokens))
        assert result.metrics["train/num_tokens"] > 1000
        assert result.metrics["mask/kept_fraction"] > 0.9
        assert 0 < result.metrics["train/grad_norm"] < float("inf")
        assert 0 < result.metrics["mismatch/mean_abs_logprob_diff"] < 0.1
        policy = config.run.dir / f"policy{step + 1}"
        trainer.export()(policy)
        await engine.load(policy, step + 1)


def _rewarded(group: Group) -> Group:
    """Every other episode is called solved."""
    verdicts = (Verdict(Outcome.RESOLVED, 1.0), Verdict(Outcome.UNRESOLVED, 0.0))
    members = tuple(replace(t, verdict=verdicts[i % 2]) for i, t in enumerate(group.trajectories))
    return replace(group, trajectories=members)
