"""Several replicas behind one engine: sessions stay, faults move on, a replica without the policy gets nothing."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from swe_rl.errors import EngineError, EngineUnavailableError, PolicyError
from swe_rl.inference.engine import Completion, SamplingParams
from swe_rl.inference.replicas import ReplicatedEngine

PARAMS = SamplingParams(1.0, 4, ())
POLICY = Path("policy")


class Replica:
    """Answers with its own number as the token; `fault` is raised instead while it is set."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.version = -1
        self.fault: Exception | None = None
        self.num_faults = 10**6
        self.load_fault: Exception | None = None
        self.released: list[str] = []
        self.is_closed = False

    async def load(self, policy_dir: Path, version: int) -> None:
        if self.load_fault:
            raise self.load_fault
        self.version = version

    async def generate(self, session_id: str, token_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        await asyncio.sleep(0)
        if self.fault and self.num_faults:
            self.num_faults -= 1
            raise self.fault
        one = np.array([self.number], dtype=np.int32)
        return Completion(one, np.zeros(1, np.float32), np.full(1, self.version, np.int32), "stop")

    async def release(self, session_id: str) -> None:
        self.released.append(session_id)

    async def close(self) -> None:
        self.is_closed = True
        if self.fault:
            raise self.fault


@pytest.fixture
def replicas() -> list[Replica]:
    return [Replica(number) for number in range(3)]


@pytest.fixture
async def engine(replicas: list[Replica]) -> ReplicatedEngine:
    engine = ReplicatedEngine(replicas, rest_s=3600.0)
    await engine.load(POLICY, 0)
    return engine


async def replica_of(engine: ReplicatedEngine, session: str) -> int:
    return int((await engine.generate(session, [1], PARAMS)).token_ids[0])


async def test_a_session_stays_and_sessions_are_spread_evenly(engine) -> None:
    homes = {f"s{i}": await replica_of(engine, f"s{i}") for i in range(9)}
    assert sorted(homes.values()) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for _ in range(3):
        assert {session: await replica_of(engine, session) for session in homes} == homes


async def test_a_released_session_makes_room_on_its_replica_alone(engine, replicas) -> None:
    for session in "abc":
        await replica_of(engine, session)
    await engine.release("b")
    await engine.release("b")
    await engine.release("never seen")
    assert [replica.released for replica in replicas] == [[], ["b"], []]
    assert await replica_of(engine, "d") == 1


async def test_a_replica_that_does_not_answer_loses_no_request_and_rests(engine, replicas) -> None:
    assert await replica_of(engine, "a") == 0
    replicas[0].fault = EngineUnavailableError("gone")
    moved = await asyncio.gather(*(replica_of(engine, session) for session in ("a", "b", "c", "d")))
    assert 0 not in moved
    replicas[0].fault = None
    assert await replica_of(engine, "e") != 0


async def test_a_rested_replica_is_used_again(replicas) -> None:
    engine = ReplicatedEngine(replicas[:2], rest_s=0.0)
    await engine.load(POLICY, 0)
    replicas[0].fault = EngineUnavailableError("gone")
    assert await replica_of(engine, "a") == 1
    replicas[0].fault = None
    assert await replica_of(engine, "b") == 0


async def test_only_when_no_replica_answers_the_request_fails_and_the_next_is_tried_all_the_same(
    engine, replicas
) -> None:
    for replica in replicas:
        replica.fault = EngineUnavailableError(f"gone {replica.number}")
    with pytest.raises(EngineUnavailableError, match="none of 3 replicas answers; the last: gone"):
        await replica_of(engine, "a")
    replicas[2].fault = None
    assert await replica_of(engine, "a") == 2


async def test_one_replica_that_starts_again_loses_no_request(replicas) -> None:
    engine = ReplicatedEngine(replicas[:1], rest_s=3600.0)
    await engine.load(POLICY, 0)
    replicas[0].fault = EngineUnavailableError("gone")
    replicas[0].num_faults = 1
    assert await replica_of(engine, "a") == 0


async def test_a_refused_request_is_not_tried_elsewhere(engine, replicas) -> None:
    replicas[0].fault = EngineError("token 7 isn't in the vocabulary")
    with pytest.raises(EngineError, match="token 7"):
        await replica_of(engine, "a")


async def test_a_replica_that_missed_a_policy_gets_nothing_until_it_has_one(engine, replicas) -> None:
    homes = [await replica_of(engine, session) for session in "abc"]
    replicas[1].load_fault = EngineError("half loaded")
    await engine.load(POLICY, 1)
    for session in "abcdef":
        completion = await engine.generate(session, [1], PARAMS)
        assert (int(completion.policy_version[0]), int(completion.token_ids[0]) == 1) == (1, False)
    replicas[1].load_fault = None
    await engine.load(POLICY, 2)
    assert 1 in [await replica_of(engine, session) for session in ("g", "h", "i")]
    assert homes == [0, 1, 2]


async def test_when_all_fail_to_load_nothing_is_sampled(engine, replicas) -> None:
    for replica in replicas:
        replica.load_fault = EngineError(f"half loaded {replica.number}")
    with pytest.raises(EngineError, match="half loaded 0"):
        await engine.load(POLICY, 1)
    with pytest.raises(EngineError, match="none of 3 replicas has a policy"):
        await replica_of(engine, "a")


async def test_a_refused_policy_is_raised_and_the_old_one_still_serves(engine, replicas) -> None:
    for replica in replicas:
        replica.load_fault = PolicyError("of another shape")
    with pytest.raises(PolicyError, match="of another shape"):
        await engine.load(POLICY, 1)
    assert (await engine.generate("a", [1], PARAMS)).policy_version.tolist() == [0]


async def test_all_are_closed_though_one_fails(engine, replicas) -> None:
    replicas[0].fault = EngineError("can't be closed")
    with pytest.raises(EngineError, match="can't be closed"):
        await engine.close()
    assert all(replica.is_closed for replica in replicas)


async def test_before_a_policy_is_loaded_nothing_is_sampled(replicas) -> None:
    with pytest.raises(EngineError, match="none of 3 replicas has a policy"):
        await replica_of(ReplicatedEngine(replicas), "a")


def test_no_replicas_is_an_error() -> None:
    with pytest.raises(EngineError, match="expected at least 1"):
        ReplicatedEngine([])
