"""What an agent's episode does with the service, from the first call to the verdict."""

import asyncio

import httpx
import pytest

from swe_rl.errors import PathError, SandboxError, SessionNotFoundError, TaskError
from swe_rl.verdict import Outcome
from swe_rl.wire import ExecRequest

TOKEN = "the-service's-own-token"
FIXED = b"def clamp(x, low, high):\n    return min(max(x, low), high)\n"
WRONG = b"def clamp(x, low, high):\n    return high\n"


async def test_a_repaired_repository_is_resolved(live) -> None:
    client = live.client
    info = await client.create_session("clamp")
    assert info.files == ["src/clamp.py", "tests/test_visible.py"]
    assert info.workdir == "/workspace"
    assert (await client.run_tests(info.session_id)).exit_code == 1
    await client.write_file(info.session_id, "src/clamp.py", FIXED)
    assert await client.read_file(info.session_id, "src/clamp.py") == FIXED
    assert (await client.run_tests(info.session_id)).exit_code == 0
    body = await client.patch(info.session_id)
    assert body.num_files == 1
    assert "+    return min(max(x, low), high)" in body.patch
    verdict = await client.grade(info.session_id)
    assert (verdict.outcome, verdict.reward) == (Outcome.RESOLVED, 1.0)
    assert verdict.patch_sha256 == body.sha256
    await client.close_session(info.session_id)
    await client.close_session(info.session_id)
    with pytest.raises(SessionNotFoundError):
        await client.patch(info.session_id)


async def test_an_untouched_repository_has_an_empty_patch(live) -> None:
    info = await live.client.create_session("clamp")
    assert (await live.client.patch(info.session_id)).patch == ""
    verdict = await live.client.grade(info.session_id)
    assert (verdict.outcome, verdict.reward) == (Outcome.EMPTY_PATCH, 0.0)


async def test_a_wrong_repair_gets_nothing_and_learns_no_hidden_test(live) -> None:
    info = await live.client.create_session("clamp")
    await live.client.write_file(info.session_id, "src/clamp.py", WRONG)
    async with httpx.AsyncClient(base_url=live.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as http:
        seen = await http.post(f"/v1/sessions/{info.session_id}/grade")
    assert seen.json()["reward"] == 0.0
    assert b"secret" not in seen.content
    inside = await live.client.exec(
        info.session_id,
        ExecRequest(script="grep -rls 'upper_[s]ecret' /workspace /tmp /etc /home /opt /dev/shm; ls -R tests"),
    )
    assert inside.stdout == "tests:\ntest_visible.py\n"


async def test_a_verdict_stands_whatever_happens_to_the_session_later(live) -> None:
    info = await live.client.create_session("clamp")
    await live.client.write_file(info.session_id, "src/clamp.py", WRONG)
    first, same = await asyncio.gather(live.client.grade(info.session_id), live.client.grade(info.session_id))
    await live.client.write_file(info.session_id, "src/clamp.py", FIXED)
    assert first == same == await live.client.grade(info.session_id)
    assert first.outcome is Outcome.UNRESOLVED


async def test_a_working_directory_that_cannot_be_captured_is_the_agent_s_failure(live) -> None:
    info = await live.client.create_session("clamp")
    await live.client.exec(info.session_id, ExecRequest(script="touch $'bad\\377name'"))
    verdict = await live.client.grade(info.session_id)
    assert (verdict.outcome, verdict.reward) == (Outcome.PATCH_FAILED, 0.0)


@pytest.mark.parametrize(
    "hide",
    [
        "git update-index --skip-worktree src/clamp.py",
        "git update-index --assume-unchanged src/clamp.py",
        "echo '*' >.git/info-exclude; mkdir -p .git/info; echo '*' >.git/info/exclude; echo '*' >.gitignore",
        "git commit -qam hidden",
        "rm -rf .git",
        "git config core.fsmonitor /bin/false; git config diff.external /bin/true; git config core.worktree /tmp",
    ],
)
async def test_the_patch_does_not_depend_on_the_session_s_own_git(live, hide: str) -> None:
    info = await live.client.create_session("clamp")
    await live.client.write_file(info.session_id, "src/clamp.py", FIXED)
    await live.client.exec(info.session_id, ExecRequest(script=hide))
    assert "+    return min(max(x, low), high)" in (await live.client.patch(info.session_id)).patch
    assert (await live.client.grade(info.session_id)).outcome is Outcome.RESOLVED


async def test_a_command_s_result_comes_back_in_full(live) -> None:
    info = await live.client.create_session("clamp")
    request = ExecRequest(script="cat; echo $A; pwd; echo err >&2; exit 7", cwd="src", env={"A": "é"}, stdin="in\n")
    result = await live.client.exec(info.session_id, request)
    assert (result.stdout, result.stderr, result.exit_code) == ("in\né\n/workspace/src\n", "err\n", 7)
    late = await live.client.exec(info.session_id, ExecRequest(script="printf 'a\\377'; sleep 60", timeout_s=1))
    assert (late.timed_out, late.exit_code, late.stdout) == (True, None, "a�")
    killed = await live.client.exec(info.session_id, ExecRequest(argv=["bash", "-c", "kill -9 $$"]))
    assert (killed.exit_code, killed.signal) == (None, 9)


async def test_a_script_of_any_length_runs_and_its_input_is_left_to_it(live) -> None:
    info = await live.client.create_session("clamp")
    script = "echo start\n" + "# é" * 100_000 + "\ncat <<'X'\n" + "y" * 200_000 + "\nX\ncat\necho $# $0"
    request = ExecRequest(script=script, stdin="rest\n", output_limit_bytes=1 << 20)
    result = await live.client.exec(info.session_id, request)
    assert result.stderr == ""
    assert result.stdout == "start\n" + "y" * 200_000 + "\nrest\n0 bash\n"


async def test_paths_outside_are_refused_by_name(live) -> None:
    info = await live.client.create_session("clamp")
    await live.client.exec(info.session_id, ExecRequest(script="ln -s /etc/passwd l; ln -s / r"))
    for path in ("../x", "/etc/passwd", "l", "r/etc/passwd", "missing"):
        with pytest.raises(PathError):
            await live.client.read_file(info.session_id, path)
    for path in ("../x", "/etc/passwd", "l", "r/tmp/x", "src"):
        with pytest.raises(PathError):
            await live.client.write_file(info.session_id, path, b"x")
    with pytest.raises(PathError):
        await live.client.exec(info.session_id, ExecRequest(argv=["ls"], cwd=".."))


async def test_many_episodes_at_once_each_get_their_own_verdict(live) -> None:
    async def episode(number: int) -> Outcome:
        info = await live.client.create_session("clamp")
        await live.client.write_file(info.session_id, "src/clamp.py", FIXED if number % 2 else WRONG)
        verdict = await live.client.grade(info.session_id)
        await live.client.close_session(info.session_id)
        return verdict.outcome

    outcomes = await asyncio.gather(*(episode(number) for number in range(32)))
    assert outcomes == [Outcome.UNRESOLVED, Outcome.RESOLVED] * 16
    assert (await live.client.health()).num_sessions == 0


async def test_tasks_are_listed_without_their_secrets(live) -> None:
    [task] = await live.client.list_tasks("train")
    assert (task.task_id, task.split, task.language, task.labels) == ("clamp", "train", "python", {"kind": "bound"})
    assert "secret" not in task.model_dump_json()
    assert await live.client.list_tasks() == [task]
    with pytest.raises(TaskError, match="nowhere"):
        await live.client.list_tasks("nowhere")
    with pytest.raises(TaskError, match="unknown-task"):
        await live.client.create_session("unknown-task")
    with pytest.raises(SandboxError):
        await live.client.grade("s-unknown")
