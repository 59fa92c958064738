"""What an operator sees: metrics, readiness, structured logs, the journal."""

import asyncio
import json
import logging
import os
import re
import socket
import sqlite3
from pathlib import Path

import httpx
import pytest

from swe_rl.client import SandboxClient
from swe_rl.errors import AuthError, ConfigError, SandboxError
from swe_rl.sandbox.instance import new_instance_id
from swe_rl.service.journal import INSTANCES, SESSIONS, Journal
from swe_rl.service.logs import SESSION_ID, JsonFormatter
from swe_rl.service.metrics import ServiceMetrics
from swe_rl.service.service import ServiceOptions
from swe_rl.wire import ExecRequest

TOKEN = "the-service's-own-token"


async def test_metrics_count_by_verb_and_outcome_and_name_nobody(live) -> None:
    client = live.client
    session = (await client.create_session("clamp")).session_id
    for script in ("true", "exit 1", "kill -9 $$"):
        await client.exec(session, ExecRequest(script=script))
    await client.exec(session, ExecRequest(script="sleep 9", timeout_s=0.2))
    await client.grade(session)
    with pytest.raises(SandboxError):
        await client.read_file(session, "missing")
    await client.close_session(session)
    text = await client.metrics()
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    assert samples['swe_rl_calls_total{outcome="200",verb="run_command"}'] == "4.0"
    assert samples['swe_rl_calls_total{outcome="422",verb="read_file"}'] == "1.0"
    assert samples['swe_rl_call_seconds_count{verb="create_session"}'] == "1.0"
    for outcome in ("ok", "failed", "signal", "timeout"):
        assert samples[f'swe_rl_commands_total{{outcome="{outcome}"}}'] == "1.0"
    assert samples['swe_rl_grades_total{outcome="empty_patch"}'] == "1.0"
    assert samples['swe_rl_sessions_ended_total{reason="closed"}'] == "1.0"
    assert samples["swe_rl_sessions"] == "0.0"
    assert "swe_rl_leaks_found_total" in samples
    assert session not in text and "clamp" not in text and "default" not in text


async def test_leftovers_of_a_dead_service_are_counted_at_the_start(start) -> None:
    first = await start()
    dead = first.scratch / "bubblewrap-abandoned"
    dead.mkdir()
    (dead / "lock").touch()
    second = await start()
    assert not dead.exists()
    assert second.service.backend is not first.service.backend


async def test_a_service_is_ready_until_it_is_full_or_shuts_down(start) -> None:
    live = await start(max_sessions=1)
    assert (await live.client.ready()).is_ready
    session = await live.client.create_session("clamp")
    assert (await live.client.ready()).problems == ["all 1 sessions are in use"]
    await live.client.close_session(session.session_id)
    live.service.begin_drain()
    assert (await live.client.ready()).problems == ["shutting down: no new sessions"]
    assert (await live.client.health()).status == "ok"


async def test_every_answer_has_the_id_of_its_request(live) -> None:
    async with httpx.AsyncClient(base_url=live.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120) as http:
        answer = await http.get("/v1/sessions/s-0", headers={"X-Request-Id": "mine-1"})
        assert (answer.headers["x-request-id"], answer.json()["request_id"]) == ("mine-1", "mine-1")
        forged = await http.get("/v1/sessions/s-0", headers={"X-Request-Id": 'a" evil'})
        assert re.fullmatch(r"[0-9a-f]{16}", forged.headers["x-request-id"])
        assert (await http.get("/v1/sessions", headers={"Authorization": "Bearer no"})).headers["x-request-id"]


async def test_lines_of_the_log_are_json_with_the_ids_of_their_call(live) -> None:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler, root = Keep(), logging.getLogger("swe_rl.service")
    handler.setFormatter(JsonFormatter())
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        session = (await live.client.create_session("clamp")).session_id
        await live.client.exec(session, ExecRequest(argv=["true"]))
        await live.client.close_session(session)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    parsed = [json.loads(line) for line in lines]
    access = [line for line in parsed if line.get("verb") == "run_command"]
    assert [(line["session_id"], line["status"], line["caller"]) for line in access] == [(session, 200, "default")]
    assert access[0]["request_id"] and access[0]["duration_ms"] > 0
    assert any(line.get("reason") == "closed" and line["session_id"] == session for line in parsed)
    assert TOKEN not in "".join(lines)


def test_a_line_with_an_exception_stays_one_line() -> None:
    SESSION_ID.set("s-1")
    try:
        raise ValueError("a\nb")
    except ValueError as error:
        record = logging.LogRecord("n", logging.ERROR, "f", 1, "went %s", ("wrong\n",), (ValueError, error, None))
    text = JsonFormatter().format(record)
    SESSION_ID.set("")
    assert "\n" not in text
    parsed = json.loads(text)
    assert (parsed["message"], parsed["session_id"]) == ("went wrong\n", "s-1") and "ValueError" in parsed["exception"]


def rows(file: Path, query: str) -> list[tuple]:
    with sqlite3.connect(file) as connection:
        return connection.execute(query).fetchall()


async def test_the_journal_has_every_session_with_its_end_and_every_verdict(start, tmp_path: Path, until) -> None:
    file = tmp_path / "journal.sqlite"
    live = await start(options=ServiceOptions(journal_url=f"sqlite:///{file}"))
    first = (await live.client.create_session("clamp")).session_id
    second = (await live.client.create_session(language="python", ttl_s=0.2)).session_id
    await live.client.grade(first)
    await live.client.grade_patch("clamp", "")
    await live.client.close_session(first)

    async def is_written() -> bool:
        found = await asyncio.to_thread(rows, file, "SELECT session_id, task_id, reason FROM service_sessions")
        return sorted(found) == sorted([(first, "clamp", "closed"), (second, None, "expired")])

    await until(is_written)
    verdicts = rows(file, "SELECT session_id, task_id, outcome, reward FROM service_verdicts ORDER BY session_id")
    assert verdicts == [(None, "clamp", "empty_patch", 0.0), (first, "clamp", "empty_patch", 0.0)]
    assert b"secret" not in file.read_bytes()


async def test_sessions_of_a_service_that_died_are_lost_in_the_journal(start, tmp_path: Path, monkeypatch) -> None:
    from swe_rl.service import journal as module

    file = tmp_path / "journal.sqlite"
    url = f"sqlite:///{file}"
    dead = Journal(url, "dead", ServiceMetrics())
    await dead.open()
    live = await start()
    session = await live.client.create_session("clamp")
    dead.began(live.service.sessions.find(session.session_id, None))
    await asyncio.to_thread(dead._write)
    assert dead._task is not None
    dead._task.cancel()
    monkeypatch.setattr(module, "DEAD_AFTER_S", -1.0)
    after = Journal(url, "after", ServiceMetrics())
    await after.open()
    assert rows(file, "SELECT session_id, reason FROM service_sessions") == [(session.session_id, "lost")]
    await after.close()


async def test_sessions_of_a_killed_service_of_this_machine_are_lost_at_once_whatever_its_clock_said(
    start, tmp_path: Path, monkeypatch
) -> None:
    from swe_rl.service import journal as module

    file = tmp_path / "journal.sqlite"
    url = f"sqlite:///{file}"
    killed = Journal(url, f"{socket.gethostname()}:{os.getpid()}:1:0", ServiceMetrics())  # our number, another's start
    with monkeypatch.context() as patch:
        patch.setattr(module.time, "time", lambda: 4e9)
        await killed.open()
    live = await start()
    session = await live.client.create_session("clamp")
    killed.began(live.service.sessions.find(session.session_id, None))
    await asyncio.to_thread(killed._write)
    assert killed._task is not None
    killed._task.cancel()
    after = Journal(url, new_instance_id(), ServiceMetrics())
    await after.open()
    assert rows(file, "SELECT session_id, reason FROM service_sessions") == [(session.session_id, "lost")]
    await after.close()


async def test_a_journal_that_fails_holds_its_notes_and_makes_the_service_unready(start, tmp_path: Path, until) -> None:
    file = tmp_path / "journal.sqlite"
    live = await start(options=ServiceOptions(journal_url=f"sqlite:///{file}"))
    await asyncio.to_thread(rows, file, "ALTER TABLE service_sessions RENAME TO away")
    session = (await live.client.create_session("clamp")).session_id

    async def is_unready() -> bool:
        return any("doesn't take notes" in problem for problem in (await live.client.ready()).problems)

    await until(is_unready)
    await asyncio.to_thread(rows, file, "ALTER TABLE away RENAME TO service_sessions")

    async def is_ready() -> bool:
        return (await live.client.ready()).is_ready

    await until(is_ready)
    assert rows(file, "SELECT session_id FROM service_sessions") == [(session,)]


async def test_a_note_that_the_database_refuses_does_not_hold_up_the_others(start, tmp_path: Path, until) -> None:
    file = tmp_path / "journal.sqlite"
    live = await start(options=ServiceOptions(journal_url=f"sqlite:///{file}"))
    first = (await live.client.create_session("clamp")).session_id
    live.service.journal.began(live.service.sessions.find(first, None))  # as if a commit's answer had been lost
    second = (await live.client.create_session("clamp")).session_id

    async def both_are_there() -> bool:
        return {row[0] for row in rows(file, "SELECT session_id FROM service_sessions")} == {first, second}

    await until(both_are_there)
    assert (await live.client.ready()).is_ready


async def test_a_journal_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="journal"):
        Journal("nonsense", "i", ServiceMetrics())
    with pytest.raises(ConfigError, match="can't be used"):
        await Journal(f"sqlite:///{tmp_path}/missing/j.sqlite", "i", ServiceMetrics()).open()


async def test_a_bare_patch_is_graded_without_a_session(live) -> None:
    patch = (
        "diff --git a/src/clamp.py b/src/clamp.py\n--- a/src/clamp.py\n+++ b/src/clamp.py\n@@ -1,2 +1,2 @@\n"
        " def clamp(x, low, high):\n-    return max(x, low)\n+    return min(max(x, low), high)\n"
    )
    assert (await live.client.grade_patch("clamp", patch)).reward == 1.0
    assert (await live.client.grade_patch("clamp", patch.replace("min(", "max("))).reward == 0.0
    assert (await live.client.grade_patch("clamp", patch, "strict")).signals["num_runs"] == 2
    assert (await live.client.grade_patch("clamp", "nonsense")).outcome.value == "patch_failed"
    async with SandboxClient(live.url, "t") as other:
        with pytest.raises(AuthError):
            await other.grade_patch("clamp", patch)


def test_the_journal_has_room_for_an_instance_of_the_longest_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 64)
    longest = len(new_instance_id()) + 10  # process ids and start times grow
    for table in (INSTANCES, SESSIONS):
        assert table.c.instance_id.type.length >= longest
