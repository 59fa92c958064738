"""Deadlines and limits: what a command does to excess ends with it, and is told apart from a fault."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import pytest

from swe_rl.errors import SandboxError
from swe_rl.sandbox.base import Backend, Command, CommandResult, Sandbox, SandboxSpec

Run = Callable[..., Awaitable[CommandResult]]
IsAlive = Callable[[str], bool]


def a_mark() -> str:
    """Seconds to sleep that no other process sleeps."""
    return str(uuid4().int % 10**9 + 10**9)


async def until(condition: Callable[[], bool]) -> None:
    """Fails where the condition doesn't come true within a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_the_deadline_keeps_what_was_written_and_kills_every_descendant(
    sandbox: Sandbox, run: Run, is_alive: IsAlive
) -> None:
    mark = a_mark()
    script = """echo partial; echo err >&2
        sleep MARK & setsid sleep MARK & (setsid sh -c 'sleep MARK & sleep MARK' &)
        trap '' TERM HUP INT
        python3 -c 'import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(MARK)'
        sleep MARK"""
    result = await run(script.replace("MARK", mark), timeout_s=2.0)
    assert (result.timed_out, result.exit_code, result.signal) == (True, None, None)
    assert result.stdout == b"partial\n"
    assert result.stderr == b"err\n"
    assert not is_alive(mark)
    assert (await run("cat README.md")).stdout == b"hello\n"


async def test_what_a_finished_command_left_running_lives_until_the_sandbox_closes(
    sandbox: Sandbox, run: Run, is_alive: IsAlive
) -> None:
    mark = a_mark()
    result = await run(f"setsid sleep {mark} >/dev/null 2>&1 & (setsid sleep {mark} &) ; echo done")
    assert (result.stdout, result.exit_code) == (b"done\n", 0)
    assert is_alive(mark)
    await sandbox.close()
    assert not is_alive(mark)


async def test_a_descendant_that_holds_the_output_open_does_not_delay_the_end(run: Run) -> None:
    result = await run("sleep 1000 & echo done", timeout_s=20.0)
    assert (result.stdout, result.timed_out) == (b"done\n", False)


async def test_a_fork_bomb_stays_inside_its_limit_and_ends_at_the_deadline(run: Run) -> None:
    result = await run("bomb() { bomb | bomb & }; bomb; while :; do :; done", timeout_s=3.0)
    assert result.timed_out or result.exit_code != 0 or result.signal
    assert (await run("echo usable")).stdout == b"usable\n"


async def test_more_processes_than_allowed_cannot_be_made(run: Run) -> None:
    script = """import os, time
n = 0
try:
    while n < 200:
        if os.fork() == 0: time.sleep(60)
        n += 1
except OSError: pass
print(n)"""
    result = await run(f"python3 -c '{script}'")
    assert 8 < int(result.stdout) <= 56


async def test_memory_beyond_the_limit_is_reported_as_such(run: Run) -> None:
    result = await run("python3 -c 'x = bytearray(600 << 20)'; echo status $?")
    if not result.oom:  # without a control group the allocation fails instead
        assert b"MemoryError" in result.stderr
    assert b"status 0" not in result.stdout
    assert not (await run("true")).oom


async def test_a_file_beyond_the_limit_is_cut(run: Run) -> None:
    result = await run("head -c 20000000 /dev/zero >big; stat -c %s big")
    assert int(result.stdout) <= 8 << 20


async def test_endless_output_is_kept_at_both_ends_and_counted(run: Run) -> None:
    result = await run("echo first; head -c 100000000 /dev/zero | tr '\\0' x; echo last", output_limit_bytes=10_000)
    assert len(result.stdout) <= 10_000
    assert result.stdout.startswith(b"first\nxxx")
    assert result.stdout.endswith(b"xxxlast\n")
    assert f"{result.truncated_bytes} bytes left out".encode() in result.stdout
    assert 100_000_000 - 10_000 < result.truncated_bytes < 100_000_011


async def test_output_is_capped_on_the_way_to_the_deadline_too(run: Run) -> None:
    result = await run("yes | head -c 30000000; yes >&2 & sleep 100", timeout_s=3.0, output_limit_bytes=1000)
    assert result.timed_out
    assert len(result.stdout) <= 1000
    assert len(result.stderr) <= 1000


async def test_closing_ends_a_running_command(backend: Backend, repository: Path, is_alive: IsAlive) -> None:
    mark = a_mark()
    try:
        made = await backend.create(SandboxSpec(repository, "python"))
    except SandboxError as error:
        pytest.skip(str(error))
    running = asyncio.create_task(made.run(Command(("sleep", mark), timeout_s=600)))
    await until(lambda: is_alive(mark))
    await made.close()
    with pytest.raises(SandboxError):
        await running
    assert not is_alive(mark)


async def test_cancelling_a_run_kills_it(sandbox: Sandbox, is_alive: IsAlive) -> None:
    mark = a_mark()
    running = asyncio.create_task(sandbox.run(Command(("sleep", mark), timeout_s=600)))
    await until(lambda: is_alive(mark))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not is_alive(mark))
