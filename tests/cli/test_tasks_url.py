"""`swe-rl tasks check --url`: tasks are proved inside a running service, by its public API alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from swe_rl.synth.write import write_task

ROOT = Path(__file__).parents[2]


def check(service, tasks: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "swe_rl.cli.main", "tasks", "check", "--url", service.url, "--tasks", str(tasks)]
    return subprocess.run(
        [*command, "--languages", str(ROOT / "sandboxes"), *more],
        capture_output=True,
        text=True,
        env={"SWE_RL_SANDBOX_TOKEN": service.token, "PATH": "/usr/bin:/bin"},
        timeout=300,
    )


@pytest.fixture
def tasks(service, tmp_path: Path) -> Path:
    for task in service.tasks:
        write_task(task, tmp_path)
    return tmp_path


def test_a_served_task_is_proved_from_outside(service, tasks: Path) -> None:
    result = check(service, tasks)
    assert (result.returncode, result.stderr) == (0, "3 ok, 0 failed, 0 flaky, 0 skipped of 3\n")


def test_a_task_that_differs_from_the_served_one_is_refused(service, tasks: Path) -> None:
    [first, *_] = sorted(tasks.glob("train/*"))
    (first / "instruction.md").write_text("something else\n")
    result = check(service, tasks)
    assert result.returncode == 1
    assert "serve the same folder" in result.stderr


def test_a_wrong_solution_fails_the_check(service, tasks: Path) -> None:
    from swe_rl.cli.remote_grader import NO_CHANGE
    from swe_rl.client import SyncSandboxClient
    from swe_rl.task.taskset import TaskSet

    [task, *_] = TaskSet.load([tasks])
    with SyncSandboxClient(service.url, service.token) as client:
        assert client.grade_patch(task.task_id, task.solution_patch).is_resolved
        unchanged = client.grade_patch(task.task_id, NO_CHANGE)
    assert unchanged.outcome.value == "unresolved"
    assert unchanged.fail_to_pass.passed == 0 and unchanged.pass_to_pass.passed == unchanged.pass_to_pass.total
