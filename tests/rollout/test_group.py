"""One group: G episodes of one task, and which of them are tried again."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from swe_rl.agent.render import Renderer
from swe_rl.client import SandboxClient
from swe_rl.config import Config
from swe_rl.errors import EngineError, SandboxUnavailableError
from swe_rl.inference.engine import Completion, SamplingParams
from swe_rl.inference.scripted import Reply, ScriptedEngine
from swe_rl.rollout.group import Collector, collect_group
from swe_rl.trajectory import StopReason

Settings = Callable[..., Config]


class FaultyEngine(ScriptedEngine):
    """Raises `error` for the sessions that `is_faulty` picks, and counts how many work at once."""

    def __init__(self, reply: Reply, policy_dir: Path, is_faulty: Callable[[str], bool], error: Exception) -> None:
        super().__init__(reply, policy_dir / "tokenizer.json")
        self._is_faulty, self._error = is_faulty, error
        self.seen: list[str] = []
        self.most_at_once = 0

    async def generate(self, session_id: str, token_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        self.seen.append(session_id)
        completion = await super().generate(session_id, token_ids, sampling)
        self.most_at_once = max(self.most_at_once, len(self.open_sessions))
        if self._is_faulty(session_id):
            raise self._error
        return completion


@pytest.fixture
def collector(client: SandboxClient, renderer: Renderer, settings: Settings) -> Callable[..., Collector]:
    def make(engine: ScriptedEngine, slots: int = 4, **rollout: Any) -> Collector:
        config = settings(**rollout)
        return Collector(client, engine, renderer, config, asyncio.Semaphore(slots), retry_delay_s=0.01)

    return make


async def test_a_group_holds_g_episodes_of_its_task(
    client: SandboxClient, collector: Callable[..., Collector], mend: Reply, policy_dir: Path
) -> None:
    engine = FaultyEngine(mend, policy_dir, lambda _: False, EngineError(""))
    await engine.load(policy_dir, 4)
    [task, *_] = await client.list_tasks("train")
    group = await collect_group(task, 7, 3, collector(engine, slots=2, group_size=5))
    assert (group.group_id, group.index, group.task_id, group.split) == ("g000007", 7, task.task_id, "train")
    assert group.policy_version == 3  # at dispatch; tokens tell their own
    assert {int(v) for t in group.trajectories for v in t.policy_version[t.sampled]} == {4}
    assert {t.temperature for t in group.trajectories} == {0.8}
    assert [t.trajectory_id for t in group.trajectories] == [f"g000007-m{m}a0" for m in range(5)]
    assert [t.reward for t in group.trajectories] == [1.0] * 5
    assert engine.most_at_once == 2
    assert (await client.health()).num_sessions == 0


async def test_an_episode_that_met_a_fault_is_tried_again(
    client: SandboxClient, collector: Callable[..., Collector], mend: Reply, policy_dir: Path
) -> None:
    engine = FaultyEngine(mend, policy_dir, lambda s: s.endswith("m1a0"), EngineError("engine: a hiccup"))
    await engine.load(policy_dir, 0)
    [task, *_] = await client.list_tasks("train")
    group = await collect_group(task, 0, 0, collector(engine, max_episode_retries=1))
    assert [t.trajectory_id for t in group.trajectories] == ["g000000-m0a0", "g000000-m1a1"]
    assert [t.reward for t in group.trajectories] == [1.0, 1.0]


async def test_a_fault_that_stays_is_a_member_without_a_reward(
    client: SandboxClient, collector: Callable[..., Collector], mend: Reply, policy_dir: Path
) -> None:
    engine = FaultyEngine(mend, policy_dir, lambda s: "m1" in s, EngineError("engine: broken"))
    await engine.load(policy_dir, 0)
    [task, *_] = await client.list_tasks("train")
    group = await collect_group(task, 0, 0, collector(engine, max_episode_retries=2))
    assert [t.reward for t in group.trajectories] == [1.0, None]
    assert group.trajectories[1].stop_reason is StopReason.ENGINE_ERROR
    assert [s for s in engine.seen if "m1" in s] == [f"g000000-m1a{attempt}" for attempt in range(3)]


async def test_an_episode_that_the_policy_failed_is_never_tried_again(
    client: SandboxClient, collector: Callable[..., Collector], policy_dir: Path
) -> None:
    engine = FaultyEngine(lambda *_: "I give up", policy_dir, lambda _: False, EngineError(""))
    await engine.load(policy_dir, 0)
    [task, *_] = await client.list_tasks("train")
    group = await collect_group(task, 0, 0, collector(engine, max_episode_retries=2))
    assert [t.reward for t in group.trajectories] == [0.0, 0.0]
    assert set(engine.seen) == {"g000000-m0a0", "g000000-m1a0"}


async def test_a_defect_in_one_episode_ends_the_group_and_its_sessions(
    client: SandboxClient, collector: Callable[..., Collector], mend: Reply, policy_dir: Path
) -> None:
    engine = FaultyEngine(mend, policy_dir, lambda s: "m1" in s, ZeroDivisionError("a defect"))
    await engine.load(policy_dir, 0)
    [task, *_] = await client.list_tasks("train")
    with pytest.raises(ZeroDivisionError):
        await collect_group(task, 0, 0, collector(engine, group_size=4))
    assert (await client.health()).num_sessions == 0 and engine.open_sessions == ()


async def test_a_member_that_can_not_begin_ends_the_group_with_the_services_error(
    renderer: Renderer, settings: Settings, mend: Reply, policy_dir: Path, client: SandboxClient
) -> None:
    [task, *_] = await client.list_tasks("train")
    engine = ScriptedEngine(mend, policy_dir / "tokenizer.json")
    async with SandboxClient("http://127.0.0.1:9", "token") as nobody:
        config = settings(max_episode_retries=0)
        lost = Collector(nobody, engine, renderer, config, asyncio.Semaphore(4), retry_delay_s=0.01)
        with pytest.raises(SandboxUnavailableError, match=r"127\.0\.0\.1:9"):
            await collect_group(task, 0, 0, lost)
