"""Processes that run on their own, and commands whose caller goes away."""

import asyncio

import httpx
import pytest

from swe_rl.errors import ResourceNotFoundError, SandboxUnavailableError
from swe_rl.wire import ExecRequest

TOKEN = "the-service's-own-token"


async def test_a_process_is_started_polled_and_its_result_kept(live) -> None:
    client = live.client
    session = (await client.create_session("clamp")).session_id
    script = "echo out; echo err >&2; while [ ! -e go ]; do sleep 0.05; done; echo end; exit 3"
    info = await client.start(session, ExecRequest(script=script, timeout_s=300))
    assert (info.is_running, info.result) == (True, None)
    assert (await client.poll(session, info.process_id)).is_running
    assert (await client.exec(session, ExecRequest(argv=["touch", "go"]))).exit_code == 0
    done = await client.poll(session, info.process_id, wait_s=60)
    assert not done.is_running and done.result is not None
    assert (done.result.exit_code, done.result.stdout, done.result.stderr) == (3, "out\nend\n", "err\n")
    assert (await client.list_processes(session))[0].process_id == info.process_id
    output = await client.read_output(session, info.process_id, offset=4)
    assert (output.data, output.offset, output.is_end) == (b"end\n", 4, True)
    with pytest.raises(ResourceNotFoundError):
        await client.poll(session, "p-unknown")


async def test_a_killed_process_takes_its_children_along(live) -> None:
    client = live.client
    session = (await client.create_session("clamp")).session_id
    info = await client.start(session, ExecRequest(script="setsid sleep 1000 & sleep 1000", timeout_s=900))
    ended = await client.kill(session, info.process_id)
    assert ended.result is not None and (ended.result.exit_code, ended.result.signal) == (None, 9)
    assert await client.kill(session, info.process_id) == ended
    alive = await client.exec(session, ExecRequest(script="grep -l 'sleep' /proc/[0-9]*/comm | wc -l"))
    assert alive.stdout.strip() == "0"


async def test_a_process_obeys_its_own_time_limit(live) -> None:
    session = (await live.client.create_session("clamp")).session_id
    info = await live.client.start(session, ExecRequest(script="echo begun; sleep 1000", timeout_s=1))
    done = await live.client.poll(session, info.process_id, wait_s=60)
    assert done.result is not None and done.result.timed_out and done.result.stdout == "begun\n"


async def test_a_stream_gives_output_as_it_comes_and_splits_no_character(live) -> None:
    client = live.client
    session = (await client.create_session("clamp")).session_id
    script = "printf 'a\\303'; while [ ! -e go ]; do sleep 0.05; done; printf '\\251b'; printf x >&2; printf '\\377'"
    info = await client.start(session, ExecRequest(script=script, timeout_s=300))
    events = []
    async for event in client.stream(session, info.process_id):
        events.append(event)
        if event.text == "a":
            await client.exec(session, ExecRequest(argv=["touch", "go"]))
    text = "".join(event.text for event in events if event.stream == "stdout")
    assert text == "aéb�"
    assert "".join(event.text for event in events if event.stream == "stderr") == "x"
    assert events[-1].result is not None and events[-1].result.exit_code == 0


async def test_a_stream_ends_with_its_session(live) -> None:
    client = live.client
    session = (await client.create_session("clamp")).session_id
    info = await client.start(session, ExecRequest(script="echo begun; sleep 1000", timeout_s=900))
    with pytest.raises(SandboxUnavailableError, match=r"without a result|broke off"):
        async for event in client.stream(session, info.process_id):
            if event.text:
                await client.close_session(session)


async def test_a_command_is_ended_when_its_caller_has_gone(live, until) -> None:
    session = (await live.client.create_session("clamp")).session_id
    body = {"script": "touch begun; sleep 1000; touch survived", "timeout_s": 900}
    async with httpx.AsyncClient(base_url=live.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120) as http:
        calling = asyncio.create_task(http.post(f"/v1/sessions/{session}/exec", json=body))

        async def has_begun() -> bool:
            return (await live.client.exec(session, ExecRequest(script="test -e begun"))).exit_code == 0

        await until(has_begun)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

    async def is_over() -> bool:
        probe = ExecRequest(script="grep -l sleep /proc/[0-9]*/comm | wc -l")
        return (await live.client.exec(session, probe)).stdout.strip() == "0"

    await until(is_over)
    seen = await live.client.exec(session, ExecRequest(script="ls begun survived"))
    assert (seen.stdout, seen.exit_code) == ("begun\n", 2)
    assert live.service.sessions.find(session, None).num_calls == 0


async def test_a_process_goes_on_when_its_caller_has_gone(live) -> None:
    session = (await live.client.create_session("clamp")).session_id
    async with httpx.AsyncClient(base_url=live.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120) as http:
        answer = await http.post(f"/v1/sessions/{session}/processes", json={"script": "sleep 1; touch done"})
    done = await live.client.poll(session, answer.json()["process_id"], wait_s=60)
    assert done.result is not None and done.result.exit_code == 0
    assert await live.client.read_file(session, "done") == b""


async def test_the_number_of_processes_is_bounded_and_old_ones_give_way(live, monkeypatch) -> None:
    from swe_rl.errors import CapacityError
    from swe_rl.service import session as session_module

    monkeypatch.setattr(session_module, "MAX_PROCESSES", 2)
    session = (await live.client.create_session("clamp")).session_id
    long = ExecRequest(script="sleep 1000", timeout_s=900)
    first = await live.client.start(session, long)
    await live.client.start(session, long)
    with pytest.raises(CapacityError, match="2 processes"):
        await live.client.start(session, long)
    await live.client.kill(session, first.process_id)
    await live.client.start(session, long)
    with pytest.raises(ResourceNotFoundError):
        await live.client.poll(session, first.process_id)


async def test_closing_a_session_while_its_processes_run_leaves_none(live) -> None:
    session = (await live.client.create_session("clamp")).session_id
    script = ExecRequest(script="sleep 1000", timeout_s=900)
    await asyncio.gather(*(live.client.start(session, script) for _ in range(4)))
    await asyncio.gather(*(live.client.close_session(session) for _ in range(3)))
    assert (await live.client.health()).num_sessions == 0
