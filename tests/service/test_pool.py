"""The warm pool: what it hands out is alive and fresh, and it keeps to its bounds."""

import asyncio

from swe_rl.service.service import ServiceOptions
from swe_rl.wire import ExecRequest, SessionLimits


def counted(live, name: str, **labels: str) -> float:
    return live.service.metrics.registry.get_sample_value(name, labels) or 0.0


async def warm(live, until, count: int) -> None:
    async def is_warm() -> bool:
        return live.service.pool.num_warm() == count

    await until(is_warm)


async def test_a_prefetched_sandbox_is_handed_out_once_and_refilled(start, until) -> None:
    live = await start(options=ServiceOptions(pool_size=3))
    info = await live.client.prefetch("clamp", 2)
    assert (info.capacity, info.num_wanted) == (3, 2)
    await warm(live, until, 2)
    first, second = await asyncio.gather(*(live.client.create_session("clamp") for _ in range(2)))
    assert counted(live, "swe_rl_pool_total", result="hit") == 2
    await live.client.write_file(first.session_id, "mark", b"x")
    result = await live.client.exec(second.session_id, ExecRequest(argv=["test", "-e", "mark"]))
    assert result.exit_code == 1
    await live.client.close_session(first.session_id)
    await warm(live, until, 2)
    third = await live.client.create_session("clamp")
    assert (await live.client.patch(third.session_id)).patch == ""  # a used sandbox never comes back


async def test_a_sandbox_that_died_in_the_pool_is_not_handed_out(start, until) -> None:
    live = await start(options=ServiceOptions(pool_size=2))
    await live.client.prefetch("clamp", 2)
    await warm(live, until, 2)
    [shelf] = live.service.pool._shelves.values()
    dead = list(shelf.warm)
    for sandbox in dead:
        await sandbox.close()
    session = await live.client.create_session("clamp")
    assert (await live.client.exec(session.session_id, ExecRequest(argv=["true"]))).exit_code == 0
    assert live.service.sessions.find(session.session_id, None).sandbox not in dead
    assert counted(live, "swe_rl_pool_total", result="dead") == 2
    assert counted(live, "swe_rl_pool_total", result="miss") == 1


async def test_an_environment_with_other_limits_or_variables_is_another_one(start, until) -> None:
    live = await start(options=ServiceOptions(pool_size=4))
    await live.client.prefetch("clamp", 1)
    await warm(live, until, 1)
    await live.client.create_session("clamp", env={"A": "1"})
    await live.client.create_session("clamp", limits=SessionLimits(memory_mb=64))
    assert counted(live, "swe_rl_pool_total", result="hit") == 0
    assert counted(live, "swe_rl_pool_total", result="miss") == 2


async def test_the_pool_keeps_to_its_capacity_and_the_oldest_environment_gives_way(start, until) -> None:
    live = await start(options=ServiceOptions(pool_size=3))
    pool, blueprints = live.service.pool, live.service.blueprints
    old, new = await blueprints.of_task("clamp"), await blueprints.of_language("python", None, {})
    assert pool.want(old, 100) == 3
    await warm(live, until, 3)
    assert pool.want(new, 2) == 2

    async def is_settled() -> bool:
        return (pool.num_warm(old.key), pool.num_warm(new.key)) == (1, 2)

    await until(is_settled)
    assert pool.want(new, 0) == 0
    assert pool.want(old, 0) == 0
    await warm(live, until, 0)


async def test_a_pool_that_ends_while_it_makes_sandboxes_leaves_none(start) -> None:
    live = await start(options=ServiceOptions(pool_size=8))
    await live.client.prefetch("clamp", 8)  # the fixture fails where anything is left
