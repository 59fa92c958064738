"""One command: its words, its input, its two outputs, its end."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from swe_rl.errors import PathError
from swe_rl.sandbox.base import Command, CommandResult, Sandbox

Run = Callable[..., Awaitable[CommandResult]]


async def test_stdout_and_stderr_are_apart(run: Run) -> None:
    result = await run("echo out; echo err >&2; echo out2")
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\nout2\n", b"err\n", 0)


async def test_a_character_split_at_a_chunk_edge_is_whole(run: Run) -> None:
    result = await run("printf 'gr\\303'; sleep 0.3; printf '\\274n'", output_limit_bytes=1 << 20)
    assert result.stdout.decode() == "grün"


async def test_bytes_that_are_not_utf8_come_through(run: Run) -> None:
    result = await run("printf '\\377\\000\\200x'; printf '\\376' >&2")
    assert (result.stdout, result.stderr) == (b"\xff\x00\x80x", b"\xfe")


@pytest.mark.parametrize("code", [0, 1, 2, 42, 127, 255])
async def test_an_exit_code_is_reported(run: Run, code: int) -> None:
    result = await run(f"exit {code}")
    assert (result.exit_code, result.signal, result.timed_out) == (code, None, False)


@pytest.mark.parametrize(("name", "number"), [("KILL", 9), ("TERM", 15), ("SEGV", 11), ("ABRT", 6)])
async def test_a_signal_is_reported(run: Run, name: str, number: int) -> None:
    result = await run(f"echo before; kill -{name} $$; sleep 5")
    assert (result.exit_code, result.signal, result.stdout) == (None, number, b"before\n")


async def test_a_shells_word_for_a_signal_is_read_as_one(run: Run) -> None:
    result = await run("sh -c 'kill -TERM $$'; exit $?")
    assert (result.exit_code, result.signal) == (None, 15)


async def test_a_hundred_megabytes_are_capped_at_neither_end(run: Run) -> None:
    script = "echo first; head -c 100000000 /dev/zero | tr '\\0' x; echo last"
    result = await run(script, output_limit_bytes=10_000, timeout_s=300.0)
    assert result.exit_code == 0
    assert result.stdout.startswith(b"first\nxx")
    assert result.stdout.endswith(b"xxlast\n")
    assert len(result.stdout) <= 10_000
    assert 100_000_000 - 10_000 < result.truncated_bytes < 100_000_011


async def test_no_input_is_an_end_of_file_at_once(run: Run) -> None:
    result = await run("cat; read -r x || echo end")
    assert (result.stdout, result.exit_code) == (b"end\n", 0)


async def test_text_input_with_words_for_a_shell_is_data(sandbox: Sandbox) -> None:
    text = "$(id) `id` \"q\" 'q' \\ ; echo no\nEOF\n"
    result = await sandbox.run(Command(("cat",), stdin=text.encode()))
    assert result.stdout == text.encode()


async def test_binary_input_is_whole(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 8192
    result = await sandbox.run(Command(("cat",), stdin=data, output_limit_bytes=4 << 20))
    assert result.stdout == data


async def test_input_that_nobody_reads_does_not_block(run: Run) -> None:
    result = await run("exec <&-; sleep 0.2; echo done", stdin=b"x" * 5_000_000)
    assert (result.stdout, result.exit_code) == (b"done\n", 0)


async def test_the_working_directory_is_the_workspace(run: Run) -> None:
    assert (await run("pwd")).stdout == b"/workspace\n"


@pytest.mark.parametrize("cwd", ["src", "src/", "/workspace/src", "./src/."])
async def test_a_command_starts_where_it_is_told(run: Run, cwd: str) -> None:
    assert (await run("pwd", cwd=cwd)).stdout == b"/workspace/src\n"


async def test_a_missing_directory_is_the_commands_failure(run: Run) -> None:
    result = await run("pwd", cwd="nowhere")
    assert (result.exit_code, result.stdout) == (126, b"")
    assert b"nowhere" in result.stderr


@pytest.mark.parametrize("cwd", ["..", "/etc", "src/../../x", "a\0b"])
async def test_a_directory_outside_is_the_callers_mistake(sandbox: Sandbox, cwd: str) -> None:
    with pytest.raises(PathError):
        await sandbox.run(Command(("pwd",), cwd=cwd))
    with pytest.raises(PathError):
        await sandbox.start(Command(("pwd",), cwd=cwd))


async def test_variables_are_passed_as_they_are(run: Run) -> None:
    value = "a b\n$(id) 'q' \"d\" \\ ä ="
    result = await run(
        'printf %s "$ODD"; printf %s "$EMPTY" ; printf %s "${EMPTY-unset}"', env={"ODD": value, "EMPTY": ""}
    )
    assert result.stdout == value.encode()
    assert (await run('echo "${ODD-unset}"')).stdout == b"unset\n"


async def test_the_ground_variables_are_set(run: Run) -> None:
    result = await run('echo "$HOME $LANG $PAGER $TERM"; [ -w "$HOME" ] && command -v python3 git')
    assert result.stdout.startswith(b"/tmp/home C.UTF-8 cat dumb\n")
    assert result.exit_code == 0


async def test_the_user_is_nobody_special(run: Run) -> None:
    result = await run("id -u; id -g; id -un; touch /workspace/x /tmp/x && echo writes")
    assert result.stdout == b"10001\n10001\nagent\nwrites\n"


async def test_a_heredoc_is_whole(run: Run) -> None:
    result = await run("cat <<'END'\none $x `y`\n\ttwo\nEND\ncat <<END\n$((1+1))\nEND")
    assert result.stdout == b"one $x `y`\n\ttwo\n2\n"


async def test_a_script_of_more_than_a_megabyte_runs(sandbox: Sandbox) -> None:
    script = b"total=0\n" + b"total=$((total + 1)) # a comment that makes it long\n" * 30_000 + b"echo $total\n"
    assert len(script) > 1 << 20
    result = await sandbox.run(Command(("bash",), stdin=script, timeout_s=120.0))
    assert (result.stdout, result.exit_code) == (b"30000\n", 0)


async def test_a_word_of_a_hundred_kilobytes_is_passed(sandbox: Sandbox) -> None:
    result = await sandbox.run(Command(("printf", "%s", "y" * 100_000), output_limit_bytes=1 << 20))
    assert result.stdout == b"y" * 100_000


async def test_a_command_line_that_no_kernel_takes_is_refused(sandbox: Sandbox) -> None:
    result = await sandbox.run(Command(("printf", "%s", "y" * 3_000_000)))
    assert (result.exit_code, result.stdout) == (126, b"")
    assert b"too long" in result.stderr


async def test_words_are_not_read_by_a_shell(sandbox: Sandbox) -> None:
    words = ("a b", "$HOME", "*", "'", '"', "new\nline", "", "-n", ";id", "\\")
    result = await sandbox.run(Command(("python3", "-c", "import sys; print(sys.argv[1:])", *words)))
    assert result.stdout.decode().strip() == str(list(words))


@pytest.mark.parametrize("argv", [("echo", "a\0b"), ("ec\0ho",), ()])
async def test_what_is_no_command_line_is_refused(sandbox: Sandbox, argv: tuple[str, ...]) -> None:
    result = await sandbox.run(Command(argv))
    assert (result.exit_code, result.stdout) == (126, b"")
    assert (await sandbox.run(Command(("echo", "on")))).stdout == b"on\n"


async def test_a_missing_program_and_one_that_cannot_be_run_are_told_apart(sandbox: Sandbox) -> None:
    assert (await sandbox.run(Command(("no-such-program",)))).exit_code == 127
    assert (await sandbox.run(Command(("/workspace/README.md",)))).exit_code == 126


async def test_there_is_no_terminal(run: Run) -> None:
    result = await run("[ -t 0 ] || [ -t 1 ] || [ -t 2 ] || echo none; (: </dev/tty) 2>/dev/null || echo no tty")
    assert result.stdout == b"none\nno tty\n"


async def test_commands_run_side_by_side(sandbox: Sandbox) -> None:
    waiting = sandbox.run(Command(("bash", "-c", "until [ -e go ]; do sleep 0.05; done; echo went"), timeout_s=60))
    going = sandbox.run(Command(("bash", "-c", "sleep 0.2; touch go; echo gone"), timeout_s=60))
    first, second = await asyncio.gather(waiting, going)
    assert (first.stdout, second.stdout) == (b"went\n", b"gone\n")


async def test_forty_commands_do_not_use_anything_up(run: Run) -> None:
    for number in range(40):
        assert (await run(f"echo {number}")).stdout == f"{number}\n".encode()


async def test_a_command_holds_its_three_streams_and_nothing_else(sandbox: Sandbox) -> None:
    script = """import os
held = []
for number in range(4096):
    try:
        os.fstat(number)
        held.append(number)
    except OSError:
        pass
print(held)"""
    for stdin in (b"", b"x"):
        result = await sandbox.run(Command(("python3", "-I", "-S", "-c", script), stdin=stdin))
        assert result.stdout == b"[0, 1, 2]\n"


async def test_output_that_looks_like_the_services_own_is_data(run: Run) -> None:
    script = "printf '%s\\n' 'end 0' 'pid 1' '{\"exit-code\": 0}' | tee /dev/stderr; exit 3"
    result = await run(script)
    assert (result.exit_code, result.stdout) == (3, result.stderr)
    assert result.stdout.startswith(b"end 0\n")
