"""What outlives its command: servers, and commands that were started on their own."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from swe_rl.sandbox.base import Command, CommandResult, Process, Sandbox

Run = Callable[..., Awaitable[CommandResult]]
Count = Callable[[str], Awaitable[int]]

SERVER = """import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        sys.stdout.write("x" * 200000)
        sys.stdout.flush()
        self.send_response(200); self.end_headers(); self.wfile.write(b"served")
http.server.HTTPServer(("127.0.0.1", 8080), Handler).serve_forever()
"""
ASK = """import time, urllib.request
for _ in range(200):
    try:
        print(urllib.request.urlopen("http://127.0.0.1:8080", timeout=20).read().decode())
        break
    except OSError:
        time.sleep(0.1)
"""


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(300):
        if await condition():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the condition didn't come true")


async def test_a_server_answers_later_commands_though_it_talks_a_lot(sandbox: Sandbox, run: Run) -> None:
    await sandbox.write_file("server.py", SERVER.encode())
    await sandbox.write_file("ask.py", ASK.encode())
    started = await run("python3 server.py & echo started")
    assert (started.stdout, started.exit_code, started.timed_out) == (b"started\n", 0, False)
    for _ in range(3):
        assert (await run("python3 ask.py")).stdout == b"served\n"


async def test_nohup_and_a_session_of_its_own_live_on(run: Run, count: Count, a_mark: str) -> None:
    await run(f"nohup sleep {a_mark} >/dev/null 2>&1 & setsid sleep {a_mark} & (sleep {a_mark} &)")
    await until(lambda: _is(count, a_mark, 3))
    assert (await run("echo later")).stdout == b"later\n"
    assert await count(a_mark) == 3


async def test_the_deadline_of_a_later_command_spares_it(run: Run, count: Count, a_mark: str) -> None:
    await run(f"sleep {a_mark} & (env -i setsid sleep {a_mark} &)")
    await until(lambda: _is(count, a_mark, 2))
    await asyncio.sleep(1.0)  # under gVisor a daemon without variables is told from the later command's by its age
    assert (await run("sleep 900 & sleep 900", timeout_s=1.5)).timed_out
    assert await count(a_mark) == 2


async def test_a_background_process_that_holds_the_output_does_not_delay_the_end(
    run: Run, count: Count, a_mark: str
) -> None:
    result = await run(f"sleep {a_mark} & echo done", timeout_s=30.0)
    assert (result.stdout, result.timed_out) == (b"done\n", False)
    assert await count(a_mark) == 1


async def test_what_a_background_process_says_later_is_not_another_commands_output(run: Run) -> None:
    await run("(sleep 0.5; echo late; echo late >&2) &")
    result = await run("sleep 1.5; echo own")
    assert (result.stdout, result.stderr) == (b"own\n", b"")


async def test_a_finished_command_leaves_no_zombie(run: Run) -> None:
    script = "for i in 1 2 3 4 5; do (sleep 0.1 &) ; done; (setsid sh -c 'sleep 0.2 & sleep 0.1' &) ; sleep 0.5"
    await run(script)
    look = "import glob\nprint([s for p in glob.glob('/proc/[0-9]*/stat') for s in [open(p).read()] if ') Z ' in s])"

    async def is_clean() -> bool:
        return (await run(f'python3 -c "{look}"')).stdout == b"[]\n"

    await until(is_clean)


async def test_a_command_that_runs_on_its_own_is_read_while_it_runs(sandbox: Sandbox, run: Run) -> None:
    script = "echo one; echo err >&2; until [ -e go ]; do sleep 0.1; done; echo two; exit 3"
    process = await sandbox.start(Command(("bash", "-c", script)))
    await until(lambda: _has(process, b"one\n"))
    assert (await process.read("stdout", 0, 100)).is_end is False
    assert await process.wait(0.0) is None
    await run("touch go")
    result = await process.wait(60.0)
    assert result is not None
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"one\ntwo\n", b"err\n")
    chunk = await process.read("stdout", 4, 100)
    assert (chunk.data, chunk.offset, chunk.dropped_bytes, chunk.is_end) == (b"two\n", 4, 0, True)
    assert (await process.read("stderr", 1, 2)).data == b"rr"


async def test_a_long_stream_says_what_is_no_longer_held(sandbox: Sandbox) -> None:
    script = "head -c 1000000 /dev/zero | tr '\\0' x; echo end"
    process = await sandbox.start(Command(("bash", "-c", script), output_limit_bytes=1000))
    assert await process.wait(60.0) is not None
    chunk = await process.read("stdout", 0, 10_000)
    assert chunk.dropped_bytes == chunk.offset >= 1_000_004 - 3000
    assert chunk.data.endswith(b"xend\n")
    assert chunk.is_end


async def test_a_command_on_its_own_obeys_its_deadline(sandbox: Sandbox, count: Count, a_mark: str) -> None:
    process = await sandbox.start(Command(("bash", "-c", f"setsid sleep {a_mark} & echo x; sleep 900"), timeout_s=2.0))
    result = await process.wait(60.0)
    assert result is not None
    assert (result.timed_out, result.stdout) == (True, b"x\n")
    assert await count(a_mark) == 0


async def test_a_command_on_its_own_can_be_killed(sandbox: Sandbox, count: Count, a_mark: str) -> None:
    process = await sandbox.start(Command(("bash", "-c", f"setsid sleep {a_mark} & echo x; sleep {a_mark}")))
    await until(lambda: _is(count, a_mark, 2))
    await process.kill()
    result = await process.wait(60.0)
    assert result is not None
    assert (result.signal, result.timed_out, result.stdout) == (9, False, b"x\n")
    assert await count(a_mark) == 0
    await process.kill()


async def test_closing_while_commands_run_is_no_hang(sandbox: Sandbox) -> None:
    process = await sandbox.start(Command(("sleep", "900")))
    running = asyncio.create_task(sandbox.run(Command(("sleep", "900"))))
    await asyncio.sleep(0.5)
    await sandbox.close()
    outcome = (await asyncio.gather(running, process.wait(30.0), return_exceptions=True))[0]
    assert type(outcome).__name__ == "SandboxError"
    await sandbox.close()


async def test_a_test_run_sees_its_runner_and_other_commands_do_not(
    sandbox: Sandbox, run: Run, count: Count, tmp_path: Path, a_mark: str
) -> None:
    for name in ("runner", "report"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    (tmp_path / "runner" / "run.sh").write_text("echo ran >/report/out; cat /runner/run.sh >/dev/null && echo seen\n")
    (tmp_path / "report" / "nonce").write_text("n\n")
    script = (
        f"sh /runner/run.sh; cat /report/nonce; echo x 2>/dev/null >/runner/x || echo kept; setsid sleep {a_mark} &"
    )
    command = Command(("bash", "-c", script), runner_dir=tmp_path / "runner", report_dir=tmp_path / "report")
    result = await sandbox.run(command)
    assert (result.stdout, result.exit_code) == (b"seen\nn\nkept\n", 0)
    assert (tmp_path / "report" / "out").read_text() == "ran\n"
    assert await count(a_mark) == 0
    assert (await run("[ -e /runner ] || [ -e /report ] || echo gone")).stdout == b"gone\n"


async def _has(process: Process, data: bytes) -> bool:
    return (await process.read("stdout", 0, 100)).data == data


async def _is(count: Count, mark: str, number: int) -> bool:
    return await count(mark) == number


async def test_killing_one_of_the_first_commands_at_once_spares_the_other(
    sandbox: Sandbox, count: Count, a_mark: str
) -> None:
    first = await sandbox.start(Command(("sleep", a_mark)))
    second = await sandbox.start(Command(("sleep", "900")))
    await second.kill()
    assert await count(a_mark) == 1
    assert await first.wait(0.0) is None
    await first.kill()
    assert await count(a_mark) == 0
