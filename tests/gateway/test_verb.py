"""`swe-rl serve gateway` as a process: a real engine, a recorded conversation, and an end when it is told to stop."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from swe_rl.agent.render import Message, Renderer

POLICY = Path(__file__).parents[2] / "checkpoints/tiny-repair"
DIALECT = "hermes-thinking"  # not what the policy's files say
TOKEN, VARIABLE = "operator", "SWE_RL_GATEWAY_TOKEN"
ENTRY = [sys.executable, "-m", "swe_rl.cli.main", "serve", "gateway"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [*ENTRY, "--policy", str(POLICY), "--set", f"run.dir={tmp_path}", "--set", f"agent.dialect={DIALECT}"],
        env={**os.environ, VARIABLE: TOKEN},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield process, json.loads(process.stdout.readline())["url"]
    process.kill()
    process.wait()


def test_a_served_policy_is_recorded_and_the_process_ends_in_order_when_told(served) -> None:
    process, url = served
    operator = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=url, timeout=120) as http:
        key = http.post("/sessions", json={"trajectory_id": "t"}, headers=operator).json()["key"]
        body = {"messages": [{"role": "user", "content": "Mend it."}], "max_tokens": 20}
        answer = http.post("/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == 200, answer.text
        (columns,) = http.delete("/sessions/t", headers=operator).json()["trajectories"]
    logprobs = [value for value in columns["logprobs"] if value is not None]
    assert len(logprobs) == answer.json()["usage"]["completion_tokens"] > 0
    assert all(value <= 0 for value in logprobs)
    prompt = Renderer.from_policy(POLICY, DIALECT).prompt([Message("user", "Mend it.")]).token_ids
    assert columns["token_ids"][: len(prompt)] == prompt
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0


def test_an_address_that_is_taken_is_a_usage_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [*ENTRY, "--policy", str(POLICY), "--port", str(taken.getsockname()[1])]
        env = {**os.environ, VARIABLE: TOKEN}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "can't be bound" in done.stderr) == (2, True), done.stderr


def test_without_an_operator_s_secret_nothing_is_served() -> None:
    env = {key: value for key, value in os.environ.items() if key != VARIABLE}
    done = subprocess.run(ENTRY, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, f"{VARIABLE} is empty" in done.stderr) == (2, True)
