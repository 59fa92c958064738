"""Leases, keys, room and the end of a service."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import httpx
import pytest

from swe_rl.errors import CapacityError, SandboxUnavailableError, SessionNotFoundError
from swe_rl.wire import ExecRequest

TOKEN = "the-service's-own-token"


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + 60
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def test_one_key_makes_one_session(live) -> None:
    infos = await asyncio.gather(*(live.client.create_session("clamp", idempotency_key="k") for _ in range(8)))
    assert len({info.session_id for info in infos}) == 1
    assert (await live.client.health()).num_sessions == 1
    await live.client.close_session(infos[0].session_id)
    assert (await live.client.create_session("clamp", idempotency_key="k")).session_id != infos[0].session_id


async def test_a_full_service_says_so_and_has_room_again_later(start) -> None:
    live = await start(max_sessions=2)
    first = await live.client.create_session("clamp")
    results = await asyncio.gather(*(live.client.create_session("clamp") for _ in range(4)), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["CapacityError"] * 3 + ["SessionInfo"]
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120) as http:
        answer = await http.post(f"{live.url}/v1/sessions", json={"task_id": "clamp"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    with pytest.raises(CapacityError):
        await live.client.create_session("clamp")
    await live.client.close_session(first.session_id)
    await live.client.create_session("clamp")


async def test_a_session_that_nobody_calls_expires_and_leaves_nothing(live) -> None:
    info = await live.client.create_session("clamp", ttl_s=0.3)

    async def is_gone() -> bool:
        return (await live.client.health()).num_sessions == 0

    await until(is_gone)
    with pytest.raises(SessionNotFoundError):
        await live.client.exec(info.session_id, ExecRequest(argv=["true"]))
    [home] = live.scratch.glob("bubblewrap-*")

    async def is_clean() -> bool:
        return list((home / "sessions").iterdir()) == []

    await until(is_clean)


async def test_a_session_does_not_expire_while_a_command_runs(live) -> None:
    info = await live.client.create_session("clamp", ttl_s=0.3)
    result = await live.client.exec(info.session_id, ExecRequest(script="sleep 3; echo end"))
    assert result.stdout == "end\n"


async def test_closing_a_session_ends_its_running_command(live) -> None:
    info = await live.client.create_session("clamp")
    running = asyncio.create_task(
        live.client.exec(info.session_id, ExecRequest(script="touch go; sleep 600", timeout_s=900))
    )

    async def has_begun() -> bool:
        return (await live.client.exec(info.session_id, ExecRequest(argv=["test", "-e", "go"]))).exit_code == 0

    await until(has_begun)
    await live.client.close_session(info.session_id)
    with pytest.raises(Exception, match="ended: closed"):
        await running


async def test_an_ending_service_closes_every_session(tasks_dir, tmp_path) -> None:
    from pathlib import Path

    from swe_rl.client import SandboxClient
    from swe_rl.sandbox.backend import open_backend
    from swe_rl.service.app import create_app
    from swe_rl.service.server import running
    from swe_rl.task.language import read_languages
    from swe_rl.task.taskset import TaskSet

    languages = read_languages(Path(__file__).parents[2] / "sandboxes")
    scratch = tmp_path / "scratch"
    try:
        backend = await open_backend("bubblewrap", languages, scratch)
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    app = create_app(backend=backend, languages=languages, tasks=TaskSet.load([tasks_dir]), token=TOKEN)
    async with running(app) as url, SandboxClient(url, TOKEN) as client:
        for _ in range(3):
            await client.create_session("clamp")
        assert list(scratch.iterdir()) != []
    assert list(scratch.iterdir()) == []


def test_tasks_of_an_unknown_language_are_refused_at_the_start(tasks_dir, tmp_path) -> None:
    from swe_rl.errors import ConfigError
    from swe_rl.sandbox.bubblewrap import BubblewrapBackend
    from swe_rl.service.app import create_app
    from swe_rl.task.taskset import TaskSet

    backend = BubblewrapBackend({}, tmp_path)
    with pytest.raises(ConfigError, match="tasks of python"):
        create_app(backend=backend, languages={}, tasks=TaskSet.load([tasks_dir]), token=TOKEN)
    with pytest.raises(ConfigError, match="SWE_RL_SANDBOX_TOKEN"):
        create_app(backend=backend, languages={}, tasks=TaskSet.load([tasks_dir]), token="")
