"""Deadlines: the whole tree of a command dies, and nothing else does."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from swe_rl.sandbox.base import Command, CommandResult, Sandbox

Run = Callable[..., Awaitable[CommandResult]]
Count = Callable[[str], Awaitable[int]]

TREES = {
    "a child": "sleep MARK",
    "a background child": "sleep MARK & wait",
    "a session of its own": "setsid sleep MARK & sleep 900",
    "a double fork": "(setsid sh -c 'sleep MARK & sleep MARK' &) ; sleep 900",
    "nohup": "nohup sleep MARK >/dev/null 2>&1 & sleep 900",
    "a trap on TERM": "trap '' TERM INT HUP QUIT; sleep MARK; sleep MARK",
    "a daemon without variables": "(env -i setsid sleep MARK &) ; sleep 900",
    "a daemon of python": """python3 -c 'import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 99)
        os.execvp("sleep", ["sleep", "MARK"])
    os._exit(0)
os.wait()
os.execvp("sleep", ["sleep", "900"])'""",
}


@pytest.mark.parametrize("tree", TREES)
async def test_the_deadline_kills(run: Run, count: Count, a_mark: str, tree: str) -> None:
    result = await run("echo partial; echo err >&2; " + TREES[tree].replace("MARK", a_mark), timeout_s=3.0)
    assert (result.timed_out, result.exit_code, result.signal) == (True, None, None)
    assert (result.stdout, result.stderr) == (b"partial\n", b"err\n")
    assert await count(a_mark) == 0
    assert (await run("cat README.md")).stdout == b"hello\n"


async def test_output_is_capped_on_the_way_to_the_deadline(run: Run) -> None:
    result = await run("yes | head -c 20000000; yes >&2 & sleep 900", timeout_s=4.0, output_limit_bytes=1000)
    assert result.timed_out
    assert 0 < len(result.stdout) <= 1000
    assert 0 < len(result.stderr) <= 1000


async def test_files_written_before_the_deadline_are_there(run: Run, sandbox: Sandbox) -> None:
    assert (await run("echo kept >kept; sync; sleep 900", timeout_s=2.0)).timed_out
    assert await sandbox.read_file("kept") == b"kept\n"


async def test_a_command_beside_one_that_is_late_goes_on(sandbox: Sandbox, run: Run) -> None:
    beside = asyncio.create_task(run("until [ -e go ]; do sleep 0.1; done; echo went"))
    await asyncio.sleep(0.5)
    assert (await run("sleep 900", timeout_s=1.5)).timed_out
    await sandbox.write_file("go", b"")
    assert (await beside).stdout == b"went\n"


async def test_a_cancelled_caller_ends_the_command(run: Run, count: Count, a_mark: str) -> None:
    task = asyncio.create_task(run(f"setsid sleep {a_mark} & sleep {a_mark}"))
    for _ in range(100):
        if await count(a_mark) == 2:
            break
        await asyncio.sleep(0.1)
    assert await count(a_mark) == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await count(a_mark) == 0


async def test_a_deadline_at_the_moment_of_the_end_is_one_or_the_other(run: Run, sandbox: Sandbox) -> None:
    for delay_s in (0.28, 0.3, 0.32):
        result = await sandbox.run(Command(("sleep", "0.3"), timeout_s=delay_s))
        assert result.timed_out == (result.exit_code is None)
    assert (await run("echo on")).stdout == b"on\n"


async def test_a_deadline_before_the_command_has_begun_is_one(sandbox: Sandbox, run: Run) -> None:
    assert (await sandbox.run(Command(("sleep", "900"), timeout_s=0.001))).timed_out
    assert (await run("echo on")).stdout == b"on\n"
