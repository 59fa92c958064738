"""Files in and out: what a caller writes is what a command reads, and nothing outside can be reached."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from swe_rl.errors import PathError
from swe_rl.sandbox.base import Command, CommandResult, Sandbox

Run = Callable[..., Awaitable[CommandResult]]
Make = Callable[..., Awaitable[Sandbox]]


async def test_text_comes_back_as_it_was(sandbox: Sandbox, run: Run) -> None:
    text = "grün\nline\r\nno end".encode()
    await sandbox.write_file("a.txt", text)
    assert await sandbox.read_file("a.txt") == text
    assert (await run("cat a.txt")).stdout == text


async def test_every_byte_comes_back_as_it_was(sandbox: Sandbox, run: Run) -> None:
    data = bytes(range(256)) * 64
    await sandbox.write_file("a.bin", data)
    assert await sandbox.read_file("a.bin") == data
    assert (await run("cat a.bin")).stdout == data


async def test_an_empty_file_is_written_and_read(sandbox: Sandbox, run: Run) -> None:
    await sandbox.write_file("empty", b"")
    assert await sandbox.read_file("empty") == b""
    assert (await run("[ -f empty ] && [ ! -s empty ] && echo yes")).stdout == b"yes\n"


async def test_ten_megabytes_come_back_as_they_were(sandbox: Sandbox, run: Run) -> None:
    data = bytes(range(251)) * 41_777
    await sandbox.write_file("large", data)
    assert await sandbox.read_file("large") == data
    assert (await run("wc -c <large")).stdout.strip() == str(len(data)).encode()


async def test_a_missing_file_is_said(sandbox: Sandbox) -> None:
    with pytest.raises(PathError, match="No such file"):
        await sandbox.read_file("nothing/there")


async def test_a_directory_is_no_file(sandbox: Sandbox) -> None:
    with pytest.raises(PathError):
        await sandbox.read_file("src")
    with pytest.raises(PathError):
        await sandbox.write_file("src", b"x")
    with pytest.raises(PathError):
        await sandbox.read_file(".")


async def test_a_file_without_permissions_is_read_or_refused_but_no_fault(sandbox: Sandbox, run: Run) -> None:
    await run("echo x >locked; chmod 0 locked; mkdir shut; chmod 0 shut")
    try:
        assert await sandbox.read_file("locked") == b"x\n"
    except PathError as error:
        assert "ermission" in str(error)
    assert (await run("cat locked")).exit_code == 1


async def test_overwriting_keeps_the_mode_and_leaves_nothing_else(sandbox: Sandbox, run: Run) -> None:
    await sandbox.write_file("run.sh", b"#!/bin/sh\necho anew\n")
    assert (await run("./run.sh")).stdout == b"anew\n"
    assert sorted(await sandbox.read_tree()) == ["README.md", "link", "run.sh", "src/main.py"]


async def test_parents_are_made_and_belong_to_the_command(sandbox: Sandbox, run: Run) -> None:
    await sandbox.write_file("new/deep/file", b"x")
    result = await run("echo y >>new/deep/file && touch new/deep/other new/third && cat new/deep/file")
    assert (result.exit_code, result.stdout) == (0, b"xy\n")


async def test_a_link_out_is_neither_read_nor_written(sandbox: Sandbox, run: Run) -> None:
    await run("ln -s /etc/passwd out; ln -s /tmp/new newlink")
    for path in ("out", "newlink", "link"):
        with pytest.raises(PathError):
            await sandbox.read_file(path)
        with pytest.raises(PathError):
            await sandbox.write_file(path, b"x")
    assert (await run("[ -e /tmp/new ]; echo $?")).stdout == b"1\n"


async def test_a_linked_directory_is_not_entered(sandbox: Sandbox, run: Run) -> None:
    await run("ln -s /etc etc; ln -s src alias")
    for path in ("etc/passwd", "alias/main.py"):
        with pytest.raises(PathError):
            await sandbox.read_file(path)
        with pytest.raises(PathError):
            await sandbox.write_file(path, b"x")


@pytest.mark.parametrize("path", ["../x", "src/../../x", "/etc/passwd", "/workspace/../etc/passwd", "a\0b", ""])
async def test_a_path_outside_is_refused(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(PathError):
        await sandbox.read_file(path)
    with pytest.raises(PathError):
        await sandbox.write_file(path, b"x")


@pytest.mark.parametrize("name", ["a b", "-n", "ä ö", "quote'\"$(x)`", "new\nline", "*"])
async def test_an_unusual_name_is_a_name(sandbox: Sandbox, name: str) -> None:
    await sandbox.write_file(f"names/{name}", b"x")
    assert await sandbox.read_file(f"names/{name}") == b"x"
    assert f"names/{name}" in await sandbox.read_tree()


async def test_a_pipe_does_not_hang_the_reader(sandbox: Sandbox, run: Run) -> None:
    await run("mkfifo pipe")
    with pytest.raises(PathError):
        await sandbox.read_file("pipe")


async def test_the_tree_has_files_modes_and_links_without_the_repository(sandbox: Sandbox, run: Run) -> None:
    await run("printf '\\377' >bytes; chmod 755 bytes; ln -s nowhere dangling; mkfifo pipe; mkdir empty")
    tree = await sandbox.read_tree()
    assert (tree["bytes"].mode, tree["bytes"].data) == ("100755", b"\xff")
    assert (tree["dangling"].mode, tree["dangling"].data) == ("120000", b"nowhere")
    assert tree["README.md"].mode == "100644"
    assert sorted(tree) == ["README.md", "bytes", "dangling", "link", "run.sh", "src/main.py"]


async def test_the_working_directory_is_a_clean_repository_of_one_commit(run: Run) -> None:
    result = await run("git status --porcelain && git rev-list --all --count && git remote")
    assert (result.exit_code, result.stdout) == (0, b"1\n")


async def test_a_snapshot_has_the_files_and_its_forks_are_apart(
    sandbox: Sandbox, run: Run, make: Make, tmp_path: Path
) -> None:
    await run("echo changed >README.md; mkdir kept; echo x >kept/x; echo t >/tmp/t; git add -A; git commit -qm second")
    await run("sleep 900 &")
    await sandbox.snapshot(tmp_path / "snapshot")
    first, second = await make(tmp_path / "snapshot"), await make(tmp_path / "snapshot")
    assert await first.read_tree() == await sandbox.read_tree()
    await first.write_file("README.md", b"first\n")
    assert await second.read_file("README.md") == b"changed\n"
    assert await sandbox.read_file("README.md") == b"changed\n"
    script = "git status --porcelain; git rev-list --all --count; cat /tmp/t; echo y >>kept/x && cat kept/x"
    result = await second.run(Command(("bash", "-c", script)))
    assert result.stdout == b"2\nx\ny\n"


async def test_a_snapshot_follows_no_link(sandbox: Sandbox, run: Run, tmp_path: Path) -> None:
    await run("ln -s /etc etc; ln -s /etc/passwd passwd")
    await sandbox.snapshot(tmp_path / "snapshot")
    assert (tmp_path / "snapshot" / "etc").is_symlink()
    assert (tmp_path / "snapshot" / "passwd").is_symlink()
