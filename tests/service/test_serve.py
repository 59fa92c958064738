"""The verb `serve sandbox` as its users start and stop it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

ROOT = Path(__file__).parents[2]


def start(tasks_dir: Path, scratch: Path, token: str = "t", *more: str) -> subprocess.Popen[bytes]:
    arguments = ["serve", "sandbox", "--tasks", str(tasks_dir), "--languages", str(ROOT / "sandboxes"), "--drain-s"]
    arguments += ["1"]
    return subprocess.Popen(
        [sys.executable, "-m", "swe_rl.cli.main", *arguments, "--scratch-dir", str(scratch), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "SWE_RL_SANDBOX_TOKEN": token},
    )


def address(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line and b"SandboxUnavailableError" in (seen := process.communicate()[1]):
        pytest.skip(seen.decode())
    return str(json.loads(line)["url"])


def is_alive(mark: str) -> bool:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_prints_its_address_serves_and_ends_cleanly(tasks_dir: Path, tmp_path: Path) -> None:
    process = start(tasks_dir, tmp_path / "scratch")
    try:
        url = address(process)
        assert httpx.get(f"{url}/health", timeout=120).json()["num_tasks"] == 1
        headers = {"Authorization": "Bearer t"}
        made = httpx.post(f"{url}/v1/sessions", json={"task_id": "clamp"}, headers=headers, timeout=120)
        assert made.status_code == 201
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, b"", b"")
    assert list((tmp_path / "scratch").iterdir()) == []


def test_without_a_token_it_is_bad_usage(tasks_dir: Path, tmp_path: Path) -> None:
    process = start(tasks_dir, tmp_path / "scratch", "")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, b"")
    assert b"SWE_RL_SANDBOX_TOKEN" in err


def test_a_port_in_use_is_bad_usage_and_leaves_nothing(tasks_dir: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start(tasks_dir, tmp_path / "scratch", "t", "--port", str(taken.getsockname()[1]))
        _, err = process.communicate(timeout=60)
    if b"SandboxUnavailableError" not in err:
        assert process.returncode == 2
        assert b"can't be bound" in err
        assert list((tmp_path / "scratch").iterdir()) == []


def test_a_killed_service_takes_its_commands_along_and_the_next_one_cleans_up(tasks_dir: Path, tmp_path: Path) -> None:
    scratch, headers, mark = tmp_path / "scratch", {"Authorization": "Bearer t"}, str(uuid4().int % 10**9 + 10**9)
    process = start(tasks_dir, scratch)
    try:
        url = address(process)
        made = httpx.post(f"{url}/v1/sessions", json={"task_id": "clamp"}, headers=headers, timeout=60).json()

        def run_long() -> None:
            body = {"script": f"setsid sleep {mark} & sleep {mark}", "timeout_s": 600}
            with pytest.raises(httpx.TransportError):
                httpx.post(f"{url}/v1/sessions/{made['session_id']}/exec", json=body, headers=headers, timeout=600)

        caller = threading.Thread(target=run_long)
        caller.start()
        until(lambda: is_alive(mark))
    finally:
        process.kill()
        process.communicate()
    caller.join(60)
    until(lambda: not is_alive(mark))
    left = set(scratch.iterdir())
    assert len(left) == 2
    second = start(tasks_dir, scratch)
    try:
        address(second)
        assert not left & set(scratch.iterdir())
        second.send_signal(signal.SIGTERM)
        second.communicate(timeout=60)
    finally:
        second.kill()
    assert list(scratch.iterdir()) == []


def call(url: str, method: str, path: str, **parts: object) -> httpx.Response:
    return httpx.request(method, url + path, headers={"Authorization": "Bearer t"}, timeout=120, **parts)  # type: ignore[arg-type]


def begin(url: str) -> str:
    answer = call(url, "POST", "/v1/sessions", json={"task_id": "clamp"})
    assert answer.status_code == 201
    return str(answer.json()["session_id"])


def has_begun(url: str, session: str) -> bool:
    return call(url, "GET", f"/v1/sessions/{session}/files?path=begun").status_code == 200


def test_a_draining_service_finishes_what_lives_and_takes_nothing_new(tasks_dir: Path, tmp_path: Path) -> None:
    process = start(tasks_dir, tmp_path / "scratch", "t", "--drain-s", "120")
    answers: list[httpx.Response] = []
    try:
        url = address(process)
        session = begin(url)
        body = {"script": "touch begun; while [ ! -e go ]; do sleep 0.05; done; echo ended", "timeout_s": 300}
        path = f"/v1/sessions/{session}"
        caller = threading.Thread(target=lambda: answers.append(call(url, "POST", f"{path}/exec", json=body)))
        caller.start()
        until(lambda: has_begun(url, session))
        process.send_signal(signal.SIGTERM)
        until(lambda: call(url, "GET", "/ready").status_code == 503)
        refused = call(url, "POST", "/v1/sessions", json={"task_id": "clamp"})
        assert (refused.status_code, refused.json()["error"]) == (503, "SandboxUnavailableError")
        assert int(refused.headers["retry-after"]) > 0
        assert call(url, "POST", f"{path}/fork", json={}).status_code == 503
        assert call(url, "PUT", f"{path}/files?path=go", content=b"").status_code == 204
        caller.join(60)
        assert answers[0].json()["stdout"] == "ended\n"
        assert call(url, "POST", f"{path}/grade").json()["reward"] == 0.0
        assert call(url, "DELETE", path).status_code == 204
        process.communicate(timeout=60)  # it ends when nothing lives, long before the deadline
    finally:
        process.kill()
    assert process.returncode == 0
    assert list((tmp_path / "scratch").iterdir()) == []


def test_what_does_not_end_is_ended_at_the_deadline_with_a_typed_answer(tasks_dir: Path, tmp_path: Path) -> None:
    process = start(tasks_dir, tmp_path / "scratch")
    answers: list[httpx.Response | Exception] = []
    try:
        url = address(process)
        session = begin(url)

        def run_long() -> None:
            body = {"script": "touch begun; sleep 900", "timeout_s": 900}
            try:
                answers.append(call(url, "POST", f"/v1/sessions/{session}/exec", json=body))
            except httpx.TransportError as error:
                answers.append(error)

        caller = threading.Thread(target=run_long)
        caller.start()
        until(lambda: has_begun(url, session))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
        caller.join(60)
    finally:
        process.kill()
    assert process.returncode == 0
    [answer] = answers
    assert isinstance(answer, httpx.Response) and answer.json()["error"] == "SessionNotFoundError"
    assert "drained" in answer.json()["message"]
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_second_signal_ends_it_at_once(tasks_dir: Path, tmp_path: Path) -> None:
    process = start(tasks_dir, tmp_path / "scratch", "t", "--drain-s", "3000")
    try:
        url = address(process)
        begin(url)
        process.send_signal(signal.SIGTERM)
        until(lambda: call(url, "GET", "/ready").status_code == 503)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0
    assert list((tmp_path / "scratch").iterdir()) == []


def test_tokens_come_from_a_file_the_log_is_json_and_the_journal_has_the_end(tasks_dir: Path, tmp_path: Path) -> None:
    import sqlite3

    file, journal = tmp_path / "tokens.toml", tmp_path / "journal.sqlite"
    file.write_text('[tokens.trainer]\nsecret = "a-secret-of-the-trainer"\n')
    arguments = ["serve", "sandbox", "--tasks", str(tasks_dir), "--languages", str(ROOT / "sandboxes")]
    arguments += ["--tokens", str(file), "--log-format", "json", "--journal", f"sqlite:///{journal}"]
    arguments += ["--scratch-dir", str(tmp_path / "scratch"), "--drain-s", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "swe_rl.cli.main", "--log-level", "INFO", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        url = address(process)
        headers = {"Authorization": "Bearer a-secret-of-the-trainer"}
        made = httpx.post(f"{url}/v1/sessions", json={"task_id": "clamp"}, headers=headers, timeout=60)
        assert made.status_code == 201
        assert call(url, "GET", "/v1/sessions").status_code == 401
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    lines = [json.loads(line) for line in err.decode().splitlines()]
    session = made.json()["session_id"]
    assert any(line.get("session_id") == session and line.get("caller") == "trainer" for line in lines)
    assert "a-secret-of-the-trainer" not in err.decode()
    with sqlite3.connect(journal) as connection:
        assert connection.execute("SELECT owner, reason FROM service_sessions").fetchall() == [("trainer", "drained")]
