"""A reader apart may hang, crash or swell: the call that brought it about fails, and nothing else does."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from operator import mul
from pathlib import Path
from typing import Any

import pytest

from swe_rl.errors import PatchError, SandboxError
from swe_rl.grade import apart
from swe_rl.grade.apart import UnreadableError, run_apart
from swe_rl.verdict import Outcome

# As source text: a reader is another process, which can't import this file.
HANG = "import re; re.fullmatch('(a|aa)+b', 'a' * 200)"  # inside one call of C that holds Python's lock
CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
SWELL = f"bytearray({2 * apart.MEMORY_LIMIT_BYTES})"
LEAVE = "import os; os._exit(3)"
STOP = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
REFUSE = "from swe_rl.errors import PatchError; raise PatchError('a.py: refused')"
SLEEP = "import os, pathlib, time; pathlib.Path({!r}).write_text(str(os.getpid())); time.sleep(3600)"


async def double(value: int) -> int:
    return await run_apart(mul, 2, value)


async def play(source: str) -> None:
    await run_apart(exec, source)


def wait_until(is_so: Callable[[], bool], patience_s: float = 120) -> None:
    deadline = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline, f"not so after {patience_s} s"
        time.sleep(0.02)


BAD = pytest.mark.parametrize("bad", [HANG, CRASH, SWELL, LEAVE], ids=["hangs", "crashes", "swells", "leaves"])


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "CPU_LIMIT_S", 1.0)


async def test_a_result_and_an_error_come_back() -> None:
    assert await double(21) == 42
    with pytest.raises(PatchError, match=r"a\.py: refused"):
        await play(REFUSE)


@BAD
async def test_a_reader_that_fails_takes_nothing_with_it(bad) -> None:
    results = await asyncio.gather(
        *(double(number) for number in range(5)),
        play(bad),
        *(double(number) for number in range(5)),
        return_exceptions=True,
    )
    failed = results.pop(5)
    assert isinstance(failed, UnreadableError)
    assert results == 2 * [0, 2, 4, 6, 8]


async def test_readers_that_cannot_be_started_are_a_fault_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    apart._readers.cache_clear()
    with monkeypatch.context() as machine:
        machine.setattr(apart, "_prepare", os.abort)
        with pytest.raises(SandboxError, match="started"):
            await double(1)
    assert await double(21) == 42


async def test_the_event_loop_goes_on_while_a_reader_hangs() -> None:
    hanging = asyncio.create_task(play(HANG))
    ticks = 0
    while not hanging.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert ticks > 10
    with pytest.raises(UnreadableError, match="took over 1 s of processor time"):
        await hanging


async def test_a_cancelled_call_ends_its_reader(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    sleeping = asyncio.create_task(play(SLEEP.format(str(pid_file))))
    await asyncio.to_thread(wait_until, lambda: pid_file.exists() and pid_file.read_text() != "")
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    await asyncio.to_thread(wait_until, lambda: not Path("/proc", pid_file.read_text()).exists())
    assert await double(21) == 42


async def test_a_reader_that_somebody_else_killed_is_a_fault_of_the_environment() -> None:
    calls = [asyncio.create_task(play(STOP)) for _ in range(2)]
    with pytest.raises(SandboxError, match="was killed"):
        await asyncio.gather(*calls)
    await asyncio.gather(*calls, return_exceptions=True)


def play_instead(monkeypatch: pytest.MonkeyPatch, name: str, source: str) -> None:
    """A run's reading by the function of this name plays the source."""

    async def run(function: Callable[..., Any], *args: Any) -> Any:
        return await (run_apart(exec, source) if function.__name__ == name else run_apart(function, *args))

    monkeypatch.setattr("swe_rl.grade.run.run_apart", run)


@BAD
async def test_a_patch_that_ends_its_reader_has_failed(bad, monkeypatch, task, grader) -> None:
    play_instead(monkeypatch, "check", bad)
    verdict = await grader.grade(task, task.solution_patch)
    assert (verdict.outcome, verdict.reward) == (Outcome.PATCH_FAILED, 0.0)
    assert "the patch can't be checked: " in verdict.signals["patch"]


@BAD
async def test_a_report_that_ends_its_reader_proves_nothing(bad, monkeypatch, task, grader) -> None:
    play_instead(monkeypatch, "_read_and_parse", bad)
    verdict = await grader.grade(task, task.solution_patch)
    assert (verdict.outcome, verdict.reward) == (Outcome.UNRESOLVED, 0.0)


PROGRAM = """
import asyncio, os
from swe_rl.grade import apart

def spin():
    while True:
        pass

async def main():
    apart.CPU_LIMIT_S = 1.0
    spinning = asyncio.create_task(apart.run_apart(spin))
    print(await apart.run_apart(os.getpid), flush=True)
    await spinning

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_readers_end_with_the_process_that_has_them(tmp_path: Path, end: signal.Signals) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(end)
    process.wait(timeout=120)
    wait_until(lambda: _in_session(process.pid) == [])


def _in_session(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found
