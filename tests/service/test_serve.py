"""The verb `serve sandbox` as its users start and stop it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]


def start(tasks_dir: Path, scratch: Path, token: str = "t", *more: str) -> subprocess.Popen[bytes]:
    arguments = ["serve", "sandbox", "--tasks", str(tasks_dir), "--languages", str(ROOT / "sandboxes")]
    return subprocess.Popen(
        [sys.executable, "-m", "swe_rl.cli.main", *arguments, "--scratch-dir", str(scratch), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "SWE_RL_SANDBOX_TOKEN": token},
    )


def test_it_prints_its_address_serves_and_ends_cleanly(tasks_dir: Path, tmp_path: Path) -> None:
    process = start(tasks_dir, tmp_path / "scratch")
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line and b"SandboxUnavailableError" in (seen := process.communicate()[1]):
            import pytest

            pytest.skip(seen.decode())
        url = json.loads(line)["url"]
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
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start(tasks_dir, tmp_path / "scratch", "t", "--port", str(taken.getsockname()[1]))
        _, err = process.communicate(timeout=60)
    if b"SandboxUnavailableError" not in err:
        assert process.returncode == 2
        assert b"can't be bound" in err
        assert list((tmp_path / "scratch").iterdir()) == []
