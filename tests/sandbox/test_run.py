"""What a command sees and what its result says, on every backend."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from swe_rl.errors import PathError, SandboxError
from swe_rl.sandbox.base import Backend, Command, CommandResult, Sandbox, SandboxSpec

Run = Callable[..., Awaitable[CommandResult]]


async def test_output_and_errors_come_back_apart(run: Run) -> None:
    result = await run("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 3)
    assert (result.signal, result.timed_out, result.oom, result.truncated_bytes) == (None, False, False, 0)


async def test_bytes_that_are_not_text_come_back_unchanged(run: Run) -> None:
    assert (await run(r"printf 'a\377\0b\303\251'")).stdout == b"a\xff\0b\xc3\xa9"


async def test_a_command_without_a_shell_gets_its_arguments_as_they_are(sandbox: Sandbox) -> None:
    arguments = ("", "a b", "$HOME", "*", "--", "x\ny", "é")
    result = await sandbox.run(Command(("printf", "[%s]", *arguments)))
    assert result.stdout.decode() == "".join(f"[{argument}]" for argument in arguments)


async def test_a_command_that_is_not_there_is_status_127(sandbox: Sandbox) -> None:
    result = await sandbox.run(Command(("no-such-command",)))
    assert result.exit_code == 127
    assert b"no-such-command" in result.stderr


async def test_a_file_that_is_not_executable_is_status_126(sandbox: Sandbox) -> None:
    assert (await sandbox.run(Command(("/workspace/README.md",)))).exit_code == 126


async def test_death_by_a_signal_is_no_exit_code_and_no_time_out(run: Run) -> None:
    result = await run("echo before; kill -SEGV $$")
    assert (result.exit_code, result.signal, result.timed_out, result.stdout) == (None, 11, False, b"before\n")
    assert result.stderr == b""


async def test_standard_input_arrives_whole_and_ends(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 20_000
    result = await sandbox.run(Command(("sha256sum",), stdin=data, timeout_s=30))
    echoed = await sandbox.run(Command(("cat",), stdin=b"$(id) `x` \"'\n"))
    assert result.stdout.startswith(__import__("hashlib").sha256(data).hexdigest().encode())
    assert echoed.stdout == b"$(id) `x` \"'\n"


async def test_a_command_that_reads_a_missing_input_does_not_hang(run: Run) -> None:
    assert (await run("cat; echo end")).stdout == b"end\n"


async def test_a_long_argument_runs_and_one_beyond_the_kernel_s_limit_is_refused_as_126(sandbox: Sandbox) -> None:
    fits = await sandbox.run(Command(("bash", "-c", "echo ${#1}", "x", "y" * 120_000)))
    refused = await sandbox.run(Command(("echo", "y" * 200_000)))
    assert fits.stdout == b"120000\n"
    assert refused.exit_code == 126
    assert b"too long" in refused.stderr


async def test_variables_of_the_command_win_and_the_host_s_do_not_pass(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "1")
    result = await run("env", env={"LANG": "C", "MINE": "a b\nc"})
    assert b"MINE=a b\nc\n" in result.stdout
    assert b"LANG=C\n" in result.stdout
    assert b"PAGER=cat\n" in result.stdout
    assert b"SECRET_OF_THE_HOST" not in result.stdout


async def test_variables_of_the_sandbox_and_its_language_reach_the_command(backend: Backend, sandbox: Sandbox) -> None:
    del backend
    assert (await sandbox.run(Command(("printenv", "LC_ALL")))).stdout == b"C.UTF-8\n"


async def test_the_working_directory_is_the_repository_or_below(sandbox: Sandbox) -> None:
    assert (await sandbox.run(Command(("pwd",)))).stdout == b"/workspace\n"
    assert (await sandbox.run(Command(("pwd",), cwd="src/deep"))).stdout == b"/workspace/src/deep\n"
    assert (await sandbox.run(Command(("pwd",), cwd="/workspace/src"))).stdout == b"/workspace/src\n"
    missing = await sandbox.run(Command(("pwd",), cwd="nowhere"))
    assert missing.exit_code == 126
    assert b"no such directory" in missing.stderr
    await sandbox.run(Command(("mkdir", "-m", "700", "closed")))
    assert (await sandbox.run(Command(("pwd",), cwd="closed"))).stdout == b"/workspace/closed\n"
    for outside in ("..", "/etc", "src/../../x"):
        with pytest.raises(PathError):
            await sandbox.run(Command(("pwd",), cwd=outside))


async def test_the_user_is_unprivileged_and_cannot_gain_anything(run: Run) -> None:
    result = await run("id -u; grep -E '^(CapEff|CapPrm|NoNewPrivs)' /proc/self/status; touch /usr/x /etc/x /x")
    lines = result.stdout.decode().split()
    assert lines[0] != "0"
    assert lines[1:] == ["CapPrm:", "0" * 16, "CapEff:", "0" * 16, "NoNewPrivs:", "1"]
    assert result.exit_code != 0
    assert result.stderr.count(b"touch:") == 3


async def test_the_kernel_and_the_devices_cannot_be_changed(run: Run) -> None:
    result = await run(
        "for f in kernel/core_pattern kernel/panic vm/drop_caches; do : >>/proc/sys/$f && echo wrote $f; done;"
        " chmod 600 /dev/null && echo changed; unshare -Ur true && echo namespace;"
        " mount -t proc x /tmp && echo mounted; exit 0"
    )
    assert (result.exit_code, result.stdout) == (0, b"")


async def test_there_is_no_network(run: Run) -> None:
    result = await run("cat /proc/net/dev | tail -n +3 | cut -d: -f1; echo > /dev/tcp/1.1.1.1/53")
    assert result.stdout.split() == [b"lo"]
    assert result.exit_code != 0


async def test_no_process_of_the_host_can_be_seen_or_hit(run: Run) -> None:
    result = await run("ls /proc | grep -c '^[0-9]'; kill -9 -1; kill -9 1; exit 0")
    assert int(result.stdout) < 12
    assert (await run("echo still here")).stdout == b"still here\n"


async def test_the_temporary_directory_lasts_for_the_session_and_is_its_own(
    backend: Backend, sandbox: Sandbox, repository: Path
) -> None:
    await sandbox.run(Command(("touch", "/tmp/mine")))
    other = await backend.create(SandboxSpec(repository, "python"))
    assert (await sandbox.run(Command(("ls", "/tmp/mine")))).exit_code == 0
    assert (await other.run(Command(("ls", "/tmp/mine")))).exit_code == 2


async def test_a_runner_directory_is_read_only_and_a_report_comes_out(
    sandbox: Sandbox, run: Run, tmp_path: Path
) -> None:
    runner, report = tmp_path / "runner", tmp_path / "report"
    runner.mkdir()
    report.mkdir()
    report.chmod(0o777)
    (runner / "check.py").write_text("print('runner')\n")
    result = await run(
        "python3 /runner/check.py; echo x >> /runner/check.py; touch /runner/new; echo done >/report/a.report",
        runner_dir=runner,
        report_dir=report,
    )
    assert result.stdout == b"runner\n"
    assert (runner / "check.py").read_text() == "print('runner')\n"
    assert sorted(p.name for p in runner.iterdir()) == ["check.py"]
    assert (report / "a.report").read_text() == "done\n"


async def test_a_report_that_is_a_link_does_not_bring_host_files_out(run: Run, tmp_path: Path) -> None:
    report = tmp_path / "report"
    report.mkdir()
    report.chmod(0o777)
    await run("ln -s /etc/passwd /report/a; mkfifo /report/b; mkdir /report/c", report_dir=report)
    assert not (report / "a").is_file() or (report / "a").is_symlink()


async def test_close_is_safe_twice_and_ends_the_sandbox(sandbox: Sandbox) -> None:
    await sandbox.close()
    await sandbox.close()
    with pytest.raises(SandboxError):
        await sandbox.run(Command(("true",)))
    with pytest.raises(SandboxError):
        await sandbox.read_tree()


async def test_an_unknown_language_is_refused(backend: Backend, repository: Path) -> None:
    with pytest.raises(SandboxError, match="cobol"):
        await backend.create(SandboxSpec(repository, "cobol"))
