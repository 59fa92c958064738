"""`swe-rl serve gateway` as a process: a real engine, a recorded conversation, and an end when it is told to stop."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
TOKEN, VARIABLE = "operator", "SWE_RL_GATEWAY_TOKEN"
ENTRY = [sys.executable, "-m", "swe_rl.cli.main", "serve", "gateway"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [*ENTRY, "--policy", str(ROOT / "checkpoints/tiny-repair"), "--set", f"run.dir={tmp_path}"],
        env={**os.environ, VARIABLE: TOKEN},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield process, json.loads(process.stdout.readline())["url"]
    process.kill()
    process.wait()


def test_a_served_policy_is_recorded_and_the_process_ends_when_told(served) -> None:
    process, url = served
    operator = {"Authorization": f"Bearer {TOKEN}"}
    key = httpx.post(f"{url}/sessions", json={"trajectory_id": "t"}, headers=operator).json()["key"]
    body = {"messages": [{"role": "user", "content": "Mend it."}], "max_tokens": 20}
    answer = httpx.post(
        f"{url}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=120
    )
    assert answer.status_code == 200, answer.text
    (columns,) = httpx.delete(f"{url}/sessions/t", headers=operator).json()["trajectories"]
    logprobs = [value for value in columns["logprobs"] if value is not None]
    assert len(logprobs) == answer.json()["usage"]["completion_tokens"] > 0
    assert all(value <= 0 for value in logprobs)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in (0, -signal.SIGTERM)


def test_without_an_operator_s_secret_nothing_is_served() -> None:
    env = {key: value for key, value in os.environ.items() if key != VARIABLE}
    done = subprocess.run(ENTRY, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, f"{VARIABLE} is empty" in done.stderr) == (2, True)
