"""Snapshots, forks, and the leases of owners under which things are made."""

import asyncio
import threading

import pytest

from swe_rl.errors import CapacityError, PathError, ResourceNotFoundError, SandboxError, SessionNotFoundError
from swe_rl.sandbox import copying
from swe_rl.verdict import Outcome
from swe_rl.wire import ExecRequest

FIXED = b"def clamp(x, low, high):\n    return min(max(x, low), high)\n"


async def test_a_group_forks_one_prepared_session_and_every_member_goes_its_own_way(live) -> None:
    client = live.client
    prepared = await client.create_session("clamp")
    await client.exec(prepared.session_id, ExecRequest(script="mkdir built; echo made >built/a; touch /tmp/not-copied"))
    forks = await client.fork(prepared.session_id, 4)
    assert len({fork.session_id for fork in forks}) == 4
    assert all(fork.task == prepared.task and fork.files == prepared.files for fork in forks)
    await client.close_session(prepared.session_id)
    await client.write_file(forks[0].session_id, "src/clamp.py", FIXED)
    for fork in forks:
        assert await client.read_file(fork.session_id, "built/a") == b"made\n"
        assert (await client.exec(fork.session_id, ExecRequest(argv=["test", "-e", "/tmp/not-copied"]))).exit_code == 1
    assert b"max(x, low)\n" in await client.read_file(forks[1].session_id, "src/clamp.py")
    patch = (await client.patch(forks[0].session_id)).patch
    assert "src/clamp.py" in patch and "built/a" in patch  # against the task's base, not against the fork's beginning
    assert (await client.grade(forks[0].session_id)).outcome is Outcome.RESOLVED


async def test_a_snapshot_outlives_its_session_and_is_forked_until_it_is_deleted(live) -> None:
    client = live.client
    session = await client.create_session("clamp")
    await client.write_file(session.session_id, "new/file", b"1")
    snapshot = await client.create_snapshot(session.session_id)
    await client.write_file(session.session_id, "new/file", b"2")
    await client.close_session(session.session_id)
    assert [s.snapshot_id for s in await client.list_snapshots()] == [snapshot.snapshot_id]
    [fork] = await client.fork_snapshot(snapshot.snapshot_id)
    assert await client.read_file(fork.session_id, "new/file") == b"1"
    await client.delete_snapshot(snapshot.snapshot_id)
    with pytest.raises(ResourceNotFoundError):
        await client.fork_snapshot(snapshot.snapshot_id)
    assert await client.read_file(fork.session_id, "new/file") == b"1"
    assert list((live.service._scratch.path / "snapshots").iterdir()) == []


async def test_a_snapshot_that_nobody_forks_goes(live, until) -> None:
    session = await live.client.create_session("clamp")
    await live.client.create_snapshot(session.session_id, ttl_s=0.2)

    async def is_gone() -> bool:
        # It's no longer listed before its files are removed.
        return await live.client.list_snapshots() == [] and not list(folder.iterdir())

    folder = live.service._scratch.path / "snapshots"
    await until(is_gone)


async def test_a_fork_is_made_whole_or_not_at_all(start) -> None:
    live = await start(max_sessions=4)
    session = await live.client.create_session("clamp")
    with pytest.raises(CapacityError, match="wanted 4 more"):
        await live.client.fork(session.session_id, 4)
    assert (await live.client.health()).num_sessions == 1
    assert len(await live.client.fork(session.session_id, 3)) == 3
    assert list((live.service._scratch.path / "snapshots").iterdir()) == []


async def test_a_session_closed_while_it_is_forked_leaves_no_half_made_fork(live) -> None:
    session = await live.client.create_session("clamp")
    results = await asyncio.gather(
        *(live.client.fork(session.session_id, 2) for _ in range(4)),
        live.client.close_session(session.session_id),
        return_exceptions=True,
    )
    made = [fork for result in results if isinstance(result, list) for fork in result]
    faults = [result for result in results if isinstance(result, BaseException)]
    assert all(isinstance(fault, SandboxError | PathError) for fault in faults)
    assert (await live.client.health()).num_sessions == len(made)
    for fork in made:
        assert (await live.client.patch(fork.session_id)).patch == ""
    assert list((live.service._scratch.path / "snapshots").iterdir()) == []


async def test_a_deleted_snapshot_is_not_pulled_from_under_its_forks(live) -> None:
    session = await live.client.create_session("clamp")
    snapshot = await live.client.create_snapshot(session.session_id)
    forking = [asyncio.create_task(live.client.fork_snapshot(snapshot.snapshot_id, 2)) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.gather(live.client.delete_snapshot(snapshot.snapshot_id), *forking, return_exceptions=True)
    for forks in (task.result() for task in forking if task.exception() is None):
        for fork in forks:
            assert (await live.client.patch(fork.session_id)).patch == ""


async def test_what_was_made_under_a_lease_ends_with_it(live, until) -> None:
    client = live.client
    lease = await client.create_lease(ttl_s=60)
    mine = await client.create_session("clamp", lease_id=lease.lease_id)
    [fork] = await client.fork(mine.session_id, lease_id=lease.lease_id)
    await client.create_snapshot(mine.session_id, lease_id=lease.lease_id)
    other = await client.create_session("clamp")
    renewed = await client.renew_lease(lease.lease_id)
    assert (renewed.num_sessions, renewed.num_snapshots) == (2, 1)
    await client.end_lease(lease.lease_id)
    for session_id in (mine.session_id, fork.session_id):
        with pytest.raises(SessionNotFoundError, match="lease"):
            await client.get_session(session_id)
    assert [s.session_id for s in await client.list_sessions()] == [other.session_id]
    assert await client.list_snapshots() == []
    with pytest.raises(ResourceNotFoundError):
        await client.renew_lease(lease.lease_id)
    with pytest.raises(ResourceNotFoundError):
        await client.create_session("clamp", lease_id=lease.lease_id)


async def test_an_owner_that_stops_renewing_loses_everything_even_while_a_command_runs(live, until) -> None:
    client = live.client
    lease = await client.create_lease(ttl_s=1.0)
    session = await client.create_session("clamp", lease_id=lease.lease_id)
    running = asyncio.create_task(client.exec(session.session_id, ExecRequest(script="sleep 600", timeout_s=900)))
    with pytest.raises(SandboxError):
        await running
    with pytest.raises(SessionNotFoundError):
        await client.get_session(session.session_id)


@pytest.fixture
def slow_copy(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Copies stop at their first file until the event is set."""
    go_on, copy_bytes = threading.Event(), copying._copy_bytes

    def wait(*arguments: int) -> None:
        assert go_on.wait(60)
        copy_bytes(*arguments)

    monkeypatch.setattr(copying, "_copy_bytes", wait)
    return go_on


async def test_a_snapshot_that_nobody_waits_for_any_more_leaves_nothing(live, slow_copy, until) -> None:
    session = await live.client.create_session("clamp")
    taking = asyncio.create_task(
        live.service.snapshots.take(live.service.sessions.find(session.session_id, None), 60.0, None)
    )
    snapshots = live.service._scratch.path / "snapshots"

    async def has_begun() -> bool:
        return list(snapshots.iterdir()) != []

    await until(has_begun)
    taking.cancel()
    await asyncio.sleep(0.2)
    slow_copy.set()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert list(snapshots.iterdir()) == []
    assert len(live.service.snapshots) == 0


async def test_a_snapshot_whose_lease_ends_while_it_is_made_ends_too(live, slow_copy, until) -> None:
    client = live.client
    session = await client.create_session("clamp")
    lease = await client.create_lease(30)
    taking = asyncio.create_task(client.create_snapshot(session.session_id, lease_id=lease.lease_id))
    snapshots = live.service._scratch.path / "snapshots"

    async def has_begun() -> bool:
        return list(snapshots.iterdir()) != []

    await until(has_begun)
    await client.end_lease(lease.lease_id)
    slow_copy.set()
    await taking

    async def is_gone() -> bool:
        return list(snapshots.iterdir()) == []

    await until(is_gone)


async def test_no_snapshot_is_taken_while_the_disk_is_full(live) -> None:
    session = await live.client.create_session("clamp")
    live.service._disk_problem = "the disk is full"
    with pytest.raises(CapacityError, match="the disk is full"):
        await live.service.snapshots.take(live.service.sessions.find(session.session_id, None), 60.0, None)


async def test_a_fork_of_a_session_without_its_repository_gets_none_and_nothing_is_kept_of_it(live) -> None:
    client = live.client
    session = await client.create_session("clamp")
    await client.exec(session.session_id, ExecRequest(script="rm -rf .git; echo new >new"))
    cache = getattr(live.service.backend, "_workspaces", None)
    num_templates = len(cache._by_key) if cache else 0
    for _ in range(2):
        [fork] = await client.fork(session.session_id, 1)
        assert (await client.exec(fork.session_id, ExecRequest(script="ls -A"))).stdout.split() == [
            "new",
            "src",
            "tests",
        ]
    assert (len(cache._by_key) if cache else 0) == num_templates
