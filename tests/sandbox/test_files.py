"""Files in and out, on every backend: no path and no link leads out of the working directory."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from swe_rl.errors import PathError, SandboxError
from swe_rl.sandbox.base import CommandResult, FileEntry, Sandbox
from swe_rl.sandbox.tree import read_tree, write_file

Run = Callable[..., Awaitable[CommandResult]]


@pytest.mark.parametrize("data", [b"", b"text\n", "é\r\n".encode(), bytes(range(256)) * 4096])
async def test_what_was_written_is_read_back(sandbox: Sandbox, data: bytes) -> None:
    await sandbox.write_file("new/deeper/file", data)
    assert await sandbox.read_file("/workspace/new/deeper/file") == data


async def test_a_command_sees_a_written_file_and_may_change_it(sandbox: Sandbox, run: Run) -> None:
    await sandbox.write_file("a.txt", b"one\n")
    assert (await run("cat a.txt && echo two >>a.txt && rm README.md")).stdout == b"one\n"
    assert await sandbox.read_file("a.txt") == b"one\ntwo\n"


async def test_replacing_a_file_keeps_its_mode_and_leaves_nothing_else(sandbox: Sandbox, run: Run) -> None:
    await sandbox.write_file("run.sh", b"#!/bin/sh\necho again\n")
    assert (await run("./run.sh; ls -A")).stdout.split() == [
        b"again",
        *sorted(b".git README.md link run.sh src".split()),
    ]


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "src/../../x", "", ".", "/workspace", "/workspacex", "a\0b"])
async def test_a_path_outside_is_refused(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(PathError):
        await sandbox.read_file(path)
    with pytest.raises(PathError):
        await sandbox.write_file(path, b"x")


@pytest.mark.parametrize("path", ["missing", "src", "README.md/x", "missing/x"])
async def test_what_is_no_regular_file_cannot_be_read(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(PathError):
        await sandbox.read_file(path)


async def test_links_are_never_followed(sandbox: Sandbox, run: Run) -> None:
    await run("ln -s /etc/passwd file; ln -s / root; ln -s /tmp dir; ln -s README.md inside; mkfifo pipe")
    for path in ("file", "root/etc/passwd", "inside", "pipe", "link"):
        with pytest.raises(PathError):
            await sandbox.read_file(path)
    for path in ("file", "dir/new", "root/tmp/new", "inside", "pipe", "src"):
        with pytest.raises(PathError):
            await sandbox.write_file(path, b"x")
    assert (await run("ls /tmp/new; cat README.md")).stdout == b"hello\n"


async def test_the_tree_has_every_file_and_link_with_its_mode(sandbox: Sandbox) -> None:
    assert await sandbox.read_tree() == {
        "README.md": FileEntry("100644", b"hello\n"),
        "link": FileEntry("120000", b"README.md"),
        "run.sh": FileEntry("100755", b"#!/bin/sh\necho ran\n"),
        "src/deep/data.bin": FileEntry("100644", bytes(range(256))),
        "src/main.py": FileEntry("100644", b"print('main')\n"),
    }


async def test_the_tree_shows_links_as_links_and_leaves_pipes_and_git_directories_out(
    sandbox: Sandbox, run: Run
) -> None:
    await run("rm -rf src run.sh link; ln -s /etc/passwd out; ln -s / root; mkfifo pipe")
    await run("mkdir -p n/.git; touch n/.git/x n/y")
    assert await sandbox.read_tree() == {
        "README.md": FileEntry("100644", b"hello\n"),
        "n/y": FileEntry("100644", b""),
        "out": FileEntry("120000", b"/etc/passwd"),
        "root": FileEntry("120000", b"/"),
    }


@pytest.mark.parametrize(
    "script",
    [
        "touch $'bad\\377name'",
        "python3 -c 'for i in range(40): open(str(i), \"wb\").truncate(8 << 20)'",
        "mkdir -p $(printf 'd/%.0s' $(seq 100)); touch $(printf 'd/%.0s' $(seq 100))/x",
    ],
    ids=["name", "size", "depth"],
)
async def test_a_tree_that_cannot_be_captured_is_the_session_s_own_fault(
    sandbox: Sandbox, run: Run, script: str
) -> None:
    assert (await run(script)).exit_code == 0
    with pytest.raises(PathError):
        await sandbox.read_tree()


async def test_the_repository_has_one_commit_and_nothing_else(run: Run) -> None:
    result = await run(
        "git status --porcelain; git log --all --format='%s %ad' --date=iso-strict; git remote; git tag;"
        " git stash list; git reflog; git fsck --strict --no-dangling 2>&1 | grep -v '^Checking';"
        " git cat-file --batch-all-objects --batch-check | wc -l; git rev-list --objects HEAD | wc -l; ls .git"
    )
    lines = result.stdout.decode().splitlines()
    assert lines[0] == "Base 2000-01-01T00:00:00+00:00"
    assert lines[1] == lines[2] == "9"  # a commit, three trees, five blobs
    assert lines[3:] == ["HEAD", "config", "index", "objects", "refs"]
    assert result.stderr == b""


async def test_git_works_as_a_developer_expects(run: Run) -> None:
    result = await run("echo x >>README.md && git commit -qam change && git diff --stat HEAD~1 && git stash list")
    assert b"README.md | 1 +" in result.stdout


def test_a_directory_that_takes_no_file_is_a_wrong_path_and_no_fault() -> None:
    with pytest.raises(PathError, match="can't be written"):
        write_file(Path("/proc"), "new", b"x")  # nobody may make files there, not even root


async def test_what_the_service_cannot_store_is_a_fault_of_the_environment(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(SandboxError) as caught:
        await sandbox.snapshot(tmp_path / "missing" / "snapshot")
    assert str(tmp_path) not in str(caught.value)


def test_a_file_that_vanishes_while_the_tree_is_read_is_what_the_commands_did(tmp_path: Path) -> None:
    churn = "import os\nwhile True:\n for act in (os.mkdir, os.rmdir):\n  for n in range(500): act(str(n))"
    churning = subprocess.Popen([sys.executable, "-c", churn], cwd=tmp_path)
    try:
        while not os.listdir(tmp_path):
            time.sleep(0.01)
        for _ in range(300):
            with contextlib.suppress(PathError):
                read_tree(tmp_path)
    finally:
        churning.kill()
        churning.wait()
