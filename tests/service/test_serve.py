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
    arguments = ["serve", "sandbox", "--tasks", str(tasks_dir), "--languages", str(ROOT / "sandboxes")]
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
        assert httpx.get(f"{url}/health").json()["num_tasks"] == 1
        headers = {"Authorization": "Bearer t"}
        assert httpx.post(f"{url}/v1/sessions", json={"task_id": "clamp"}, headers=headers).status_code == 201
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
