"""Stragglers: what a group does with its last episodes, by a clock that nobody waits for and with a real service."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from swe_rl.agent.cutoff import Cutoff
from swe_rl.agent.render import Renderer
from swe_rl.client import SandboxClient
from swe_rl.config import Config
from swe_rl.errors import EngineError
from swe_rl.inference.engine import Completion, SamplingParams
from swe_rl.inference.scripted import Reply, ScriptedEngine
from swe_rl.rollout.group import Collector, collect_group
from swe_rl.train.batch import build_batch
from swe_rl.trajectory import Group, StopReason
from swe_rl.wire import TaskInfo

Settings = Callable[..., Config]
SUBMIT = '<tool_call>\n{"name": "submit", "arguments": {}}\n</tool_call>'
SLEEP = '<tool_call>\n{"name": "bash", "arguments": {"command": "sleep 600"}}\n</tool_call>'


class FakeLoop(asyncio.SelectorEventLoop):
    """Its time jumps to the next timer whenever nothing is left to do; for code without input and output."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


async def _play(
    members: Sequence[tuple[int, int]], quorum: float, grace_s: float, deadline_s: float
) -> tuple[list[float], list[bool]]:
    """When each member (beginning, seconds of work) ended, and whether it ended by the group's limit."""
    cutoff = Cutoff(len(members), quorum, grace_s)
    clock = asyncio.get_running_loop().time

    async def work(begin: int, seconds: int) -> tuple[float, bool]:
        await asyncio.sleep(begin)
        is_cut = False
        try:
            async with asyncio.timeout_at(deadline := begin + deadline_s) as scope:
                with cutoff.over(scope):
                    await asyncio.sleep(seconds)
        except TimeoutError:
            is_cut = scope.when() != deadline
        cutoff.count_end()
        return clock(), is_cut

    ends = await asyncio.gather(*(work(*member) for member in members))
    return [end for end, _ in ends], [is_cut for _, is_cut in ends]


MEMBERS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 500)), min_size=1, max_size=8)


@settings(deadline=None, max_examples=300)
@given(MEMBERS, st.sampled_from([1e-12, 0.3, 0.5, 0.75, 0.9, 1.0]), st.sampled_from([0.25, 30.25, 1000.25]))
@example([(0, 10), (0, 100)], 1e-12, 30.25)
@example([(0, 10), (0, 12), (0, 500), (200, 20)], 0.5, 30.25)
def test_a_member_ends_by_its_work_its_deadline_or_the_grace_after_the_quorum_whichever_is_first(
    members: list[tuple[int, int]], quorum: float, grace_s: float
) -> None:
    deadline_s = 300.5
    loop = FakeLoop()
    try:
        ends, are_cut = loop.run_until_complete(_play(members, quorum, grace_s, deadline_s))
    finally:
        loop.close()
    natural = [begin + min(seconds, deadline_s) for begin, seconds in members]
    num_awaited = next(n for n in range(1, len(members) + 1) if n / len(members) >= quorum)
    since = sorted(natural)[num_awaited - 1]
    limits = [max(since, begin) + grace_s for begin, _ in members]
    # the quarter and the half keep work, deadline and limit from falling together
    assert ends == [min(one, limit) for one, limit in zip(natural, limits, strict=True)]
    assert are_cut == [limit < one for one, limit in zip(natural, limits, strict=True)]
    if quorum == 1.0:
        assert not any(are_cut)


class Fates(ScriptedEngine):
    """Each member's fate by its number: `mend` and `submit` end by themselves, the others as their names say."""

    def __init__(self, fates: Sequence[str], mend: Reply, policy_dir: Path) -> None:
        super().__init__(self._play, policy_dir / "tokenizer.json")
        self._fates, self._mend = fates, mend
        self.others_ended = asyncio.Event()

    def _play(self, session_id: str, turn: int, context: str) -> str:
        fate = self.fate(session_id)
        if fate == "submit":
            return SUBMIT
        return SLEEP if fate == "hang in a tool" and turn else self._mend(session_id, turn, context)

    def fate(self, session_id: str) -> str:
        return self._fates[int(session_id.partition("-m")[2].partition("a")[0])]

    async def generate(self, session_id: str, token_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        completion = await super().generate(session_id, token_ids, sampling)
        fate, is_first = self.fate(session_id), self._turns[session_id] == 1
        if fate == "fault":
            raise EngineError("engine: a fault")
        if fate == "hang" or (fate == "hang when mended" and not is_first):
            await asyncio.Event().wait()
        if fate == "wait for the others":
            await self.others_ended.wait()
        return completion

    async def release(self, session_id: str) -> None:
        await super().release(session_id)
        if all(self.fate(one) == "wait for the others" for one in self.open_sessions):
            self.others_ended.set()


@pytest.fixture
def collect(
    client: SandboxClient, renderer: Renderer, settings: Settings, mend: Reply, policy_dir: Path
) -> Callable[..., Any]:
    """Collects one group of the given fates; nothing may be left in the service or the engine."""

    async def run(fates: Sequence[str], **rollout: Any) -> Group:
        engine = Fates(fates, mend, policy_dir)
        await engine.load(policy_dir, 0)
        config = settings(group_size=len(fates), max_episode_retries=0, **rollout)
        config = config.model_copy(
            update={
                "agent": config.agent.model_copy(update={"episode_timeout_s": 600.0}),
                "sandbox": config.sandbox.model_copy(update={"exec_timeout_s": 600.0}),
            }
        )
        collector = Collector(client, engine, renderer, config, asyncio.Semaphore(8), retry_delay_s=0.01)
        task: TaskInfo = (await client.list_tasks("train"))[0]
        async with asyncio.timeout(120):
            group = await collect_group(task, 0, 0, collector)
        assert engine.open_sessions == () and (await client.health()).num_sessions == 0
        return group

    return run


ENDS = {
    "mend": (StopReason.SUBMITTED, 1.0),
    "submit": (StopReason.SUBMITTED, 0.0),
    "hang": (StopReason.GROUP_LIMIT, 0.0),
    "hang when mended": (StopReason.GROUP_LIMIT, 1.0),
    "hang in a tool": (StopReason.GROUP_LIMIT, 1.0),
    "fault": (StopReason.ENGINE_ERROR, None),
}
MENDED = st.lists(st.sampled_from(sorted(ENDS)), min_size=1, max_size=4).map(lambda fates: ["mend", *fates])


@settings(
    deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(fates=MENDED)
@example(fates=["mend", "hang", "hang when mended", "hang in a tool", "fault"])
async def test_a_group_has_all_its_members_each_with_its_true_end_and_stragglers_are_graded_as_they_stand(
    collect: Callable[..., Any], fates: list[str]
) -> None:
    num_honest = sum(fate in ("mend", "submit") for fate in fates)
    group = await collect(fates, group_quorum=num_honest / len(fates), group_grace_s=0.5)
    assert [t.trajectory_id for t in group.trajectories] == [f"g000000-m{m}a0" for m in range(len(fates))]
    ends = [(t.stop_reason, t.reward) for t in group.trajectories]
    for fate, (reason, reward) in zip(fates, ends, strict=True):
        # a straggler of little grace may be cut before its first turn has mended anything
        assert reason is ENDS[fate][0] and reward in {ENDS[fate][1], 0.0 if "hang" in fate else ENDS[fate][1]}
    share = sum(reason is StopReason.GROUP_LIMIT for reason, _ in ends) / len(fates)
    assert build_batch([group]).metrics["rollout/stop_group_limit"] == pytest.approx(share)


async def test_a_straggler_that_ends_within_the_grace_is_a_member_like_any_other(collect: Callable[..., Any]) -> None:
    group = await collect(["submit", "submit", "wait for the others"], group_quorum=0.6, group_grace_s=300.0)
    assert [t.stop_reason for t in group.trajectories] == [StopReason.SUBMITTED] * 3
    assert group.trajectories[2].reward == 1.0


async def test_faults_are_no_quorum(collect: Callable[..., Any]) -> None:
    fates = ["fault", "fault", "fault", "wait for the others"]
    group = await collect(fates, group_quorum=0.5, group_grace_s=0.0)
    assert group.trajectories[3].stop_reason is StopReason.SUBMITTED and group.trajectories[3].reward == 1.0
