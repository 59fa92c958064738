"""Back-fill: groups without a signal are replaced by the next ones, through the store alone, as far as they may."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swe_rl.agent.render import Renderer
from swe_rl.client import SandboxClient
from swe_rl.config import Config
from swe_rl.inference.scripted import Reply, ScriptedEngine
from swe_rl.returns import ReturnRule
from swe_rl.rollout.worker import Worker
from swe_rl.store.policies import PolicyStore
from swe_rl.store.rollouts import RolloutStore
from swe_rl.store.steps import StepRule

Settings = Callable[..., Config]
POLL_S = 0.02
SUBMIT = '<tool_call>\n{"name": "submit", "arguments": {}}\n</tool_call>'


class Run:
    """A worker over real stores; in the groups of `signals` one member mends its task, in the others none does."""

    def __init__(self, worker: Worker, rollouts: RolloutStore, policies: PolicyStore, config: Config) -> None:
        self.worker, self.rollouts, self.policies, self.config = worker, rollouts, policies, config
        self.step = StepRule.of(config.rollout, ReturnRule.of(config).has_signal)

    def publish(self, version: int, consumed: tuple[str, ...] = ()) -> None:
        self.policies.publish(lambda d: (d / "model.safetensors").write_bytes(b"w%d" % version), version, consumed)

    async def consume(self, version: int) -> list[int]:
        """As a trainer: the indices that made `version` + 1."""
        async with asyncio.timeout(120):
            while (groups := self.rollouts.take(self.step, version, self.config.rollout.max_staleness)) is None:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
        self.publish(version + 1, tuple(group.group_id for group in groups))
        return [group.index for group in groups]


@pytest.fixture
def start(
    client: SandboxClient, renderer: Renderer, settings: Settings, mend: Reply, policy_dir: Path, tmp_path: Path
) -> Iterator[Callable[..., Any]]:
    stores: list[Any] = []

    async def make(signals: Callable[[int], bool], **rollout: Any) -> Run:
        def reply(session_id: str, turn: int, context: str) -> str:
            is_first = "-m0" in session_id
            return mend(session_id, turn, context) if is_first and signals(int(session_id[1:7])) else SUBMIT

        stores[:0] = [RolloutStore(tmp_path), PolicyStore(tmp_path)]
        rollouts, policies = stores[:2]
        config = settings(**rollout)
        worker = Worker(
            await client.list_tasks("train"),
            client=client,
            engine=ScriptedEngine(reply, policy_dir / "tokenizer.json"),
            renderer=renderer,
            rollouts=rollouts,
            policies=policies,
            config=config,
            poll_s=POLL_S,
        )
        return Run(worker, rollouts, policies, config)

    yield make
    for store in stores:
        store.close()


async def test_a_group_without_a_signal_is_replaced_by_the_next_one(start: Callable[..., Any]) -> None:
    run = await start(lambda index: index not in (0, 3), max_backfill=1.0)
    run.publish(0)
    await run.worker.run(steps=1)
    assert [group.index for group in run.rollouts.groups()] == [0, 1, 2]
    assert [t.reward for t in run.rollouts.trajectories()] == [0.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    assert await run.consume(0) == [0, 1, 2]
    await run.worker.run(steps=2)
    assert await run.consume(1) == [3, 4, 5]


async def test_no_more_is_sampled_than_the_bound_lets(start: Callable[..., Any]) -> None:
    run = await start(lambda _: False, groups_per_step=2, max_backfill=1.5)
    run.publish(0)
    await run.worker.run(steps=1)
    assert await run.consume(0) == [0, 1, 2, 3, 4]
    assert run.rollouts.counts().written == 5


async def test_without_back_fill_groups_are_counted_whatever_they_carry(start: Callable[..., Any]) -> None:
    run = await start(lambda _: False)
    run.publish(0)
    await run.worker.run(steps=1)
    assert await run.consume(0) == [0, 1]


async def test_a_worker_that_starts_again_fills_gaps_and_then_what_lacks_a_signal(start: Callable[..., Any]) -> None:
    first = await start(lambda _: True, groups_per_step=4, concurrency=1, max_backfill=1.0)
    first.publish(0)
    await first.worker.run(steps=1)
    with first.rollouts._index.write() as connection:  # as a crash leaves it: index 1 was never stored
        for table in ("trajectories", "groups"):
            connection.exec_driver_sql(f"DELETE FROM {table} WHERE position = 1")
    second = await start(lambda index: index != 1, groups_per_step=4, max_backfill=1.0)
    await second.worker.run(steps=1)
    assert [group.index for group in second.rollouts.groups()] == [0, 1, 2, 3, 4]
    assert await second.consume(0) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("max_staleness", [0, 2])
async def test_worker_and_consumer_meet_in_the_store_alone_and_every_step_is_full(
    start: Callable[..., Any], max_staleness: int
) -> None:
    def has_signal(index: int) -> bool:
        return index % 3 != 0

    steps = 4
    run = await start(has_signal, max_backfill=2.0, max_staleness=max_staleness, concurrency=4)
    run.publish(0)
    sampling = asyncio.create_task(run.worker.run(steps, until_published=True))
    taken = [await run.consume(version) for version in range(steps)]
    await sampling
    assert [sum(map(has_signal, step)) for step in taken] == [2] * steps
    indices = [index for step in taken for index in step]
    counts = run.rollouts.counts()
    assert len(set(indices)) == len(indices) == counts.consumed
    rows = {group.index: group for group in run.rollouts.groups()}
    assert all(v - rows[i].policy_version <= max_staleness for v, step in enumerate(taken) for i in step)
    if max_staleness == 0:  # nothing was sampled in vain
        assert (counts.waiting, counts.dropped) == (0, 0)
