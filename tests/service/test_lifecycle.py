"""Idempotency, quotas, ends with reasons, room on disk, and races."""

import asyncio
import sqlite3

import httpx
import pytest

from swe_rl.errors import (
    CapacityError,
    ConfigError,
    RateLimitError,
    SandboxError,
    SandboxUnavailableError,
    SessionNotFoundError,
    TaskError,
)
from swe_rl.service.service import ServiceOptions
from swe_rl.wire import ExecRequest, SessionLimits

TOKEN = "the-service's-own-token"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


async def test_a_key_with_another_request_is_refused(live) -> None:
    await live.client.create_session("clamp", idempotency_key="k")
    with pytest.raises(ConfigError, match="another request"):
        await live.client.create_session("clamp", ttl_s=1.5, idempotency_key="k")


async def test_a_fork_with_a_key_is_made_once_however_often_it_is_sent(live) -> None:
    session = await live.client.create_session("clamp")
    body = {"count": 3, "idempotency_key": "k"}
    async with httpx.AsyncClient(base_url=live.url, headers=HEADERS, timeout=60) as http:
        path = f"/v1/sessions/{session.session_id}/fork"
        answers = await asyncio.gather(*(http.post(path, json=body) for _ in range(5)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({tuple(info["session_id"] for info in answer.json()) for answer in answers}) == 1
    assert (await live.client.health()).num_sessions == 4


async def test_a_creation_whose_caller_goes_away_is_found_again_by_its_key(live) -> None:
    body = {"task_id": "clamp", "idempotency_key": "k"}
    async with httpx.AsyncClient(base_url=live.url, headers=HEADERS, timeout=120) as http:
        for _ in range(3):
            with pytest.raises(httpx.ReadTimeout):
                await http.post("/v1/sessions", json=body, timeout=httpx.Timeout(5, read=1e-6))
    info = await live.client.create_session(task_id="clamp", idempotency_key="k2")
    async with httpx.AsyncClient(base_url=live.url, headers=HEADERS, timeout=60) as http:
        again = (await http.post("/v1/sessions", json=body)).json()
    assert {s.session_id for s in await live.client.list_sessions()} == {info.session_id, again["session_id"]}


async def test_a_failed_creation_does_not_stick_to_its_key(start) -> None:
    live = await start(max_sessions=1)
    first = await live.client.create_session("clamp", idempotency_key="a")
    with pytest.raises(CapacityError):
        await live.client.create_session("clamp", idempotency_key="b")
    await live.client.close_session(first.session_id)
    await live.client.create_session("clamp", idempotency_key="b")


async def test_a_session_of_a_language_alone_runs_and_has_no_verdict(live) -> None:
    session = await live.client.create_session(language="python", env={"A": "1"})
    assert (session.task, session.files, session.language) == (None, [], "python")
    result = await live.client.exec(session.session_id, ExecRequest(script="python3 -c 'print(2)'; echo $A"))
    assert result.stdout == "2\n1\n"
    await live.client.write_file(session.session_id, "a.py", b"x\n")
    assert "a.py" in (await live.client.patch(session.session_id)).patch
    with pytest.raises(TaskError, match="language alone"):
        await live.client.grade(session.session_id)
    with pytest.raises(TaskError, match="language alone"):
        await live.client.run_tests(session.session_id)
    with pytest.raises(ConfigError, match="klingon"):
        await live.client.create_session(language="klingon")


async def test_limits_can_be_lowered_and_never_raised(live) -> None:
    low = await live.client.create_session("clamp", limits=SessionLimits(memory_mb=64))
    high = await live.client.create_session("clamp", limits=SessionLimits(memory_mb=10**6, num_pids=10**6))
    language = live.service.languages["python"]
    for info, memory_mb in ((low, 64), (high, language.memory_mb)):
        limits = live.service.sessions.find(info.session_id, None).blueprint.spec.limits
        assert (limits.memory_mb, limits.num_pids) == (memory_mb, language.num_pids)


async def test_a_session_that_is_too_old_ends_even_while_a_command_runs(live) -> None:
    session = await live.client.create_session("clamp", max_age_s=1.0)
    with pytest.raises(SandboxError):
        await live.client.exec(session.session_id, ExecRequest(script="sleep 600", timeout_s=900))
    with pytest.raises(SessionNotFoundError, match="max_age"):
        await live.client.get_session(session.session_id)


async def test_a_session_whose_sandbox_died_ends_as_lost(live, until) -> None:
    session = await live.client.create_session("clamp")
    await live.service.sessions.find(session.session_id, None).sandbox.close()
    with pytest.raises(SandboxError):
        await live.client.exec(session.session_id, ExecRequest(argv=["true"]))

    async def is_gone() -> bool:
        return (await live.client.health()).num_sessions == 0

    await until(is_gone)
    with pytest.raises(SessionNotFoundError, match="lost"):
        await live.client.exec(session.session_id, ExecRequest(argv=["true"]))
    assert live.service.metrics.registry.get_sample_value("swe_rl_sessions_ended_total", {"reason": "lost"}) == 1


async def test_a_call_that_was_wrong_does_not_cost_the_session(live) -> None:
    session = await live.client.create_session("clamp")
    with pytest.raises(SandboxError):
        await live.client.read_file(session.session_id, "../../etc/passwd")
    assert (await live.client.exec(session.session_id, ExecRequest(argv=["true"]))).exit_code == 0


async def test_without_room_on_the_disk_no_session_begins_and_the_service_says_so(start, until) -> None:
    live = await start(options=ServiceOptions(min_free_mb=2**40))
    with pytest.raises(CapacityError, match="MB are free"):
        await live.client.create_session("clamp")
    ready = await live.client.ready()
    assert not ready.is_ready and "MB are free" in ready.problems[0]
    async with httpx.AsyncClient(base_url=live.url, headers=HEADERS, timeout=120) as http:
        assert (await http.get("/ready")).status_code == 503
        answer = await http.post("/v1/sessions", json={"task_id": "clamp"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


async def test_more_commands_than_may_run_at_once_are_told_to_wait_and_then_run(start, until) -> None:
    live = await start(options=ServiceOptions(max_commands=1))
    session = (await live.client.create_session("clamp")).session_id
    slow = asyncio.create_task(live.client.exec(session, ExecRequest(script="while [ ! -e go ]; do sleep 0.05; done")))

    async def runs() -> bool:
        return live.service._num_commands == 1

    await until(runs)
    async with httpx.AsyncClient(base_url=live.url, headers=HEADERS, timeout=120) as http:
        answer = await http.post(f"/v1/sessions/{session}/exec", json={"argv": ["true"]})
    assert (answer.status_code, answer.json()["error"]) == (429, RateLimitError.__name__)
    assert int(answer.headers["retry-after"]) >= 1
    patient = asyncio.create_task(live.client.exec(session, ExecRequest(argv=["echo", "ran"])))
    await live.client.write_file(session, "go", b"")
    assert (await slow).exit_code == 0
    assert (await patient).stdout == "ran\n"


async def test_whoever_closes_a_session_waits_until_it_is_gone(live) -> None:
    session = await live.client.create_session("clamp")
    commands = [
        asyncio.create_task(live.client.exec(session.session_id, ExecRequest(script="sleep 600", timeout_s=900)))
        for _ in range(3)
    ]
    await asyncio.sleep(0.5)
    await asyncio.gather(*(live.client.close_session(session.session_id) for _ in range(5)))
    assert all(isinstance(e, SandboxError) for e in await asyncio.gather(*commands, return_exceptions=True))
    assert len(live.service.sessions._closing) == 0
    [home] = live.scratch.glob("bubblewrap-*")
    assert list((home / "sessions").iterdir()) == []


async def test_calls_that_race_with_the_end_of_a_session_get_a_typed_answer(live) -> None:
    for _ in range(3):
        session = (await live.client.create_session("clamp")).session_id
        results = await asyncio.gather(
            live.client.exec(session, ExecRequest(argv=["true"])),
            live.client.write_file(session, "a", b"1"),
            live.client.read_file(session, "src/clamp.py"),
            live.client.patch(session),
            live.client.fork(session, 2),
            live.client.grade(session),
            live.client.close_session(session),
            live.client.start(session, ExecRequest(argv=["sleep", "5"])),
            return_exceptions=True,
        )
        faults = [result for result in results if isinstance(result, BaseException)]
        assert all(isinstance(fault, SandboxError) for fault in faults), faults
        for other in await live.client.list_sessions():
            await live.client.close_session(other.session_id)
    assert (await live.client.health()).num_sessions == 0


async def test_a_grading_whose_session_ends_is_told_how_it_ended(live, until) -> None:
    session = (await live.client.create_session("clamp")).session_id
    await live.client.write_file(session, "src/clamp.py", b"import time\ntime.sleep(60)\n")
    async with httpx.AsyncClient(base_url=live.url, headers=HEADERS, timeout=60) as http:
        grading = asyncio.create_task(http.post(f"/v1/sessions/{session}/grade"))

        async def is_graded() -> bool:
            return live.service.sessions.find(session, None).grading is not None

        await until(is_graded)
        await live.client.close_session(session)
        answer = await grading
    assert (answer.status_code, answer.json()["error"]) == (404, SessionNotFoundError.__name__)
    assert "closed" in answer.json()["message"]


async def test_the_end_waits_for_a_session_that_is_just_being_made_and_ends_it(live) -> None:
    creating = asyncio.create_task(live.client.create_session("clamp"))
    while not live.service.sessions._num_pending.total():  # noqa: ASYNC110  (nothing tells of it)
        await asyncio.sleep(0)
    await live.service.sessions.close_all()
    assert (len(live.service.sessions), live.service.sessions._num_pending.total()) == (0, 0)
    [home] = live.scratch.glob("bubblewrap-*")
    assert list((home / "sessions").iterdir()) == []
    with pytest.raises(SandboxUnavailableError, match="shutting down"):
        await creating


async def test_a_backend_that_cannot_end_keeps_neither_the_journal_nor_the_scratch_directory(start, tmp_path) -> None:
    live = await start(options=ServiceOptions(journal_url=f"sqlite:///{tmp_path}/journal.sqlite"))
    await live.client.create_session("clamp")
    backend = live.service.backend

    class Failing:
        async def close(self) -> None:
            await backend.close()
            raise SandboxUnavailableError("the engine is away")

    live.service.backend = Failing()
    with pytest.raises(SandboxUnavailableError):
        await live.service.close()
    live.service.backend = backend
    with sqlite3.connect(tmp_path / "journal.sqlite") as journal:
        assert journal.execute("select reason from service_sessions").fetchall() == [("drained",)]
    assert list(live.scratch.iterdir()) == []
