"""What a sandbox has written is measured wherever it lies, and for as long as anything in it runs."""

import asyncio
import os
from pathlib import Path

import pytest

from swe_rl.errors import SandboxUnavailableError
from swe_rl.sandbox import bubblewrap
from swe_rl.sandbox.backend import open_backend
from swe_rl.sandbox.base import Command, Limits, SandboxSpec
from swe_rl.sandbox.disk import WatchedSize, used_bytes
from swe_rl.task.language import LanguageSpec


def test_what_lies_behind_a_path_that_is_too_long_is_measured_too(tmp_path: Path) -> None:
    name = "d" * 250
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):  # 5,000 characters: no path leads there any more
        os.mkdir(name, dir_fd=descriptor)
        below = os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    with open(os.open("big", os.O_WRONLY | os.O_CREAT, dir_fd=descriptor), "wb") as file:
        file.write(b"x" * (3 << 20))
    os.close(descriptor)
    assert used_bytes(tmp_path) >= 3 << 20


def test_a_link_that_takes_a_directorys_place_is_not_followed_and_depth_is_no_hiding_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tree" / "a").mkdir(parents=True)
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "big").write_bytes(b"x" * (1 << 20))
    opening = os.open

    def swap(path: str, *arguments: int, **options: int) -> int:
        if path == "a" and not (tmp_path / "tree" / "a").is_symlink():
            (tmp_path / "tree" / "a").rmdir()
            (tmp_path / "tree" / "a").symlink_to(tmp_path / "host")
        return opening(path, *arguments, **options)

    monkeypatch.setattr(os, "open", swap)
    assert used_bytes(tmp_path / "tree") < 1 << 20
    (tmp_path / "deep" / "/".join("d" for _ in range(300))).mkdir(parents=True)
    assert used_bytes(tmp_path / "deep") > 1 << 60
    links = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert not [link for link in links if link.startswith(str(tmp_path))]


async def test_what_a_command_leaves_behind_may_not_fill_the_disk(
    languages: dict[str, LanguageSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").mkdir()
    monkeypatch.setattr(bubblewrap, "open_disk", lambda root, limit_mb: WatchedSize((root,), limit_mb))
    try:
        backend = await open_backend("bubblewrap", languages, tmp_path / "scratch")
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    try:
        sandbox = await backend.create(SandboxSpec(tmp_path / "source", "python", Limits(disk_mb=16)))
        write = "(while :; do head -c 4000000 /dev/zero >>/tmp/grows; sleep 0.2; done) >/dev/null 2>&1 & sleep 0.1"
        assert not (await sandbox.run(Command(("bash", "-c", write)))).disk_full
        for _ in range(60):
            await asyncio.sleep(1)
            if not sandbox._joined:
                break
        assert not sandbox._joined
    finally:
        await backend.close()
