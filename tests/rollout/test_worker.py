"""The producer loop, with the real stores, a real service and a scripted policy."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swe_rl.agent.render import Renderer
from swe_rl.client import SandboxClient
from swe_rl.config import Config
from swe_rl.errors import ChecksumError, EngineError, EngineUnavailableError, SandboxUnavailableError
from swe_rl.inference.engine import Completion, SamplingParams
from swe_rl.inference.scripted import Reply, ScriptedEngine
from swe_rl.rollout.sampler import Sampler
from swe_rl.rollout.worker import Worker
from swe_rl.store.policies import PolicyStore
from swe_rl.store.rollouts import RolloutStore
from swe_rl.store.steps import StepRule
from swe_rl.trajectory import Group

Settings = Callable[..., Config]
POLL_S = 0.02


@pytest.fixture
def rollouts(tmp_path: Path) -> Iterator[RolloutStore]:
    store = RolloutStore(tmp_path)
    yield store
    store.close()


@pytest.fixture
def policies(tmp_path: Path) -> Iterator[PolicyStore]:
    store = PolicyStore(tmp_path)
    yield store
    store.close()


class Recorder(ScriptedEngine):
    """Remembers the order of first calls; raises `error` if it has one."""

    def __init__(self, reply: Reply, policy_dir: Path, error: Exception | None = None) -> None:
        super().__init__(reply, policy_dir / "tokenizer.json")
        self.error = error
        self.started: list[str] = []
        self.loaded: list[int] = []
        self.most_at_once = 0

    async def load(self, policy_dir: Path, version: int) -> None:
        self.loaded.append(version)
        await super().load(policy_dir, version)

    async def generate(self, session_id: str, token_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        if session_id not in self.open_sessions:
            self.started.append(session_id)
        completion = await super().generate(session_id, token_ids, sampling)
        self.most_at_once = max(self.most_at_once, len(self.open_sessions))
        if self.error is not None:
            raise self.error
        return completion


@pytest.fixture
def worker(
    client: SandboxClient, renderer: Renderer, rollouts: RolloutStore, policies: PolicyStore, settings: Settings
) -> Callable[..., Any]:
    async def make(
        engine: ScriptedEngine, *, patience_s: float = 30.0, lost: SandboxClient | None = None, **rollout: Any
    ) -> Worker:
        return Worker(
            await client.list_tasks("train"),
            client=lost or client,
            engine=engine,
            renderer=renderer,
            rollouts=rollouts,
            policies=policies,
            config=settings(**rollout),
            patience_s=patience_s,
            poll_s=POLL_S,
        )

    return make


def publish(policies: PolicyStore, version: int, consumed: Sequence[str] = ()) -> None:
    policies.publish(lambda d: (d / "model.safetensors").write_bytes(b"w%d" % version), version, consumed)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - a store has no event to wait for
            await asyncio.sleep(POLL_S)


async def test_the_groups_of_a_step_are_stored_in_the_samplers_order(
    worker: Any, rollouts: RolloutStore, policies: PolicyStore, mend: Reply, policy_dir: Path, service: Any
) -> None:
    publish(policies, 0)
    engine = Recorder(mend, policy_dir)
    await (await worker(engine, groups_per_step=5, concurrency=3)).run(steps=1)
    sampler = Sampler([task.task_id for task in service.tasks], seed=0)
    assert [(g.index, g.task_id) for g in rollouts.groups()] == [(i, sampler.task(i)) for i in range(5)]
    assert {t.reward for t in rollouts.trajectories()} == {1.0} and len(rollouts.trajectories()) == 10
    assert engine.most_at_once <= 3 and engine.loaded == [0]


async def test_the_worker_waits_for_the_first_policy(
    worker: Any, rollouts: RolloutStore, policies: PolicyStore, mend: Reply, policy_dir: Path
) -> None:
    running = asyncio.create_task((await worker(Recorder(mend, policy_dir))).run(steps=1))
    await asyncio.sleep(5 * POLL_S)
    assert rollouts.num_groups() == 0 and not running.done()
    publish(policies, 0)
    await running
    assert rollouts.num_groups() == 2


async def test_without_staleness_no_group_begins_before_the_next_policy(
    worker: Any, rollouts: RolloutStore, policies: PolicyStore, mend: Reply, policy_dir: Path
) -> None:
    publish(policies, 0)
    engine = Recorder(mend, policy_dir)
    running = asyncio.create_task((await worker(engine, concurrency=64)).run(steps=2))
    await until(lambda: rollouts.num_groups() == 2)
    await asyncio.sleep(5 * POLL_S)
    assert len(engine.started) == 4 and not running.done()
    publish(policies, 1)
    await running
    assert engine.loaded == [0, 1]
    assert [group.policy_version for group in rollouts.groups()] == [0, 0, 1, 1]


class Held(Recorder):
    """Answers nothing until it is let go."""

    async def generate(self, session_id: str, token_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        await self.go.wait()
        return await super().generate(session_id, token_ids, sampling)

    @property
    def go(self) -> asyncio.Event:
        return self.__dict__.setdefault("_go", asyncio.Event())


async def test_a_group_is_stamped_with_the_policy_at_its_beginning_though_its_tokens_are_of_a_newer_one(
    worker: Any, rollouts: RolloutStore, policies: PolicyStore, mend: Reply, policy_dir: Path, client: SandboxClient
) -> None:
    publish(policies, 0)
    engine = Held(mend, policy_dir)
    running = asyncio.create_task((await worker(engine, groups_per_step=1)).run(steps=1))
    async with asyncio.timeout(60):
        while (await client.health()).num_sessions < 2:  # noqa: ASYNC110 - a service has no event to wait for
            await asyncio.sleep(POLL_S)
    publish(policies, 1)
    await until(lambda: engine.loaded == [0, 1])
    engine.go.set()
    await running
    group = rollouts.get(0)
    assert group.policy_version == 0
    assert {int(v) for t in group.trajectories for v in t.policy_version[t.sampled]} == {1}


async def test_a_worker_of_a_run_that_is_under_way_samples_with_its_newest_policy_and_nothing_is_too_stale(
    worker: Any, rollouts: RolloutStore, policies: PolicyStore, mend: Reply, policy_dir: Path
) -> None:
    for version in range(4):
        publish(policies, version)
    engine = Recorder(mend, policy_dir)
    await (await worker(engine, groups_per_step=1)).run(steps=4)
    assert engine.loaded == [3]
    delivered = rollouts.take(StepRule(4), version=3, max_staleness=0)
    assert [group.policy_version for group in delivered or []] == [3] * 4


async def test_weights_that_changed_after_they_were_published_are_never_sampled_from(
    worker: Any, rollouts: RolloutStore, policies: PolicyStore, mend: Reply, policy_dir: Path
) -> None:
    publish(policies, 0)
    (policies.get(0).path / "model.safetensors").write_bytes(b"x0")
    engine = Recorder(mend, policy_dir)
    with pytest.raises(ChecksumError, match="changed after they were published"):
        await (await worker(engine)).run(steps=1)
    assert engine.loaded == [] and rollouts.num_groups() == 0


async def test_a_worker_that_stays_replaces_what_the_trainer_drops_until_the_last_policy_is_published(
    worker: Any, rollouts: RolloutStore, policies: PolicyStore, mend: Reply, policy_dir: Path
) -> None:
    publish(policies, 0)
    running = asyncio.create_task((await worker(Recorder(mend, policy_dir))).run(steps=1, until_published=True))
    await until(lambda: rollouts.num_groups() == 2)
    assert rollouts.take(StepRule(2), 9, 0) is None  # far too stale: both are dropped
    await until(lambda: rollouts.num_groups() == 2)
    assert [group.index for group in rollouts.groups()] == [0, 1, 2, 3]
    assert not running.done()
    publish(policies, 1)
    await running


async def test_staleness_lets_the_worker_run_ahead_by_whole_steps(
    worker: Any, rollouts: RolloutStore, policies: PolicyStore, mend: Reply, policy_dir: Path
) -> None:
    publish(policies, 0)
    engine = Recorder(mend, policy_dir)
    running = asyncio.create_task((await worker(engine, max_staleness=1, concurrency=64)).run(steps=4))
    await until(lambda: rollouts.num_groups() == 4)
    await asyncio.sleep(5 * POLL_S)
    assert len(engine.started) == 8 and not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_gap_that_a_crash_left_is_filled_first(
    worker: Any, rollouts: RolloutStore, policies: PolicyStore, mend: Reply, policy_dir: Path, tmp_path: Path
) -> None:
    publish(policies, 0)
    await (await worker(Recorder(mend, policy_dir), groups_per_step=1)).run(steps=1)
    rollouts.append(_moved(rollouts.get(0), 2))
    engine = Recorder(mend, policy_dir)
    await (await worker(engine, groups_per_step=4, concurrency=1)).run(steps=1)
    assert rollouts.missing_indices(4) == []
    assert [session[:7] for session in engine.started[::2]] == ["g000001", "g000003"]
    assert len(engine.started) == 4


def _moved(group: Group, index: int) -> Group:
    group_id = f"g{index:06d}"
    moved = tuple(
        replace(t, group_id=group_id, trajectory_id=f"{group_id}-m{m}a0") for m, t in enumerate(group.trajectories)
    )
    return replace(group, group_id=group_id, index=index, trajectories=moved)


async def test_a_worker_that_has_nothing_to_do_returns_at_once(
    worker: Any, rollouts: RolloutStore, policies: PolicyStore, mend: Reply, policy_dir: Path
) -> None:
    await (await worker(Recorder(mend, policy_dir))).run(steps=0)
    assert rollouts.num_groups() == 0


async def test_a_defect_in_a_group_ends_the_worker(
    worker: Any, rollouts: RolloutStore, policies: PolicyStore, mend: Reply, policy_dir: Path, client: SandboxClient
) -> None:
    publish(policies, 0)
    engine = Recorder(mend, policy_dir, ZeroDivisionError("a defect"))
    with pytest.raises(ZeroDivisionError):
        await (await worker(engine)).run(steps=1)
    assert (await client.health()).num_sessions == 0 and rollouts.num_groups() == 0


async def test_a_dead_service_is_waited_for_and_then_named_in_one_line(
    worker: Any, rollouts: RolloutStore, policies: PolicyStore, mend: Reply, policy_dir: Path
) -> None:
    publish(policies, 0)
    async with SandboxClient("http://127.0.0.1:9", "token") as nobody:
        lost = await worker(Recorder(mend, policy_dir), lost=nobody, patience_s=1.5, max_episode_retries=0)
        with pytest.raises(SandboxUnavailableError, match=r"tried for 1.5 s: .*127\.0\.0\.1:9") as caught:
            await lost.run(steps=1)
    assert "\n" not in str(caught.value) and rollouts.num_groups() == 0


async def test_a_dead_engine_stores_no_groups_and_ends_the_worker(
    worker: Any, rollouts: RolloutStore, policies: PolicyStore, mend: Reply, policy_dir: Path
) -> None:
    publish(policies, 0)
    engine = Recorder(mend, policy_dir, EngineError("engine: gone"))
    with pytest.raises(EngineUnavailableError, match="failed all 2 episodes"):
        await (await worker(engine, patience_s=0.5, max_episode_retries=0)).run(steps=1)
    assert rollouts.num_groups() == 0


async def test_an_engine_that_comes_back_is_waited_for(
    worker: Any, rollouts: RolloutStore, policies: PolicyStore, mend: Reply, policy_dir: Path
) -> None:
    publish(policies, 0)
    engine = Recorder(mend, policy_dir, EngineError("engine: gone"))
    running = asyncio.create_task((await worker(engine, max_episode_retries=0)).run(steps=1))
    await until(lambda: len(engine.started) >= 4)
    engine.error = None
    await running
    assert {t.reward for t in rollouts.trajectories()} == {1.0}
