"""Directories as tar archives, both ways; what goes up is untrusted to the host, what comes down to the caller."""

import io
import tarfile

import pytest

from swe_rl.errors import PathError
from swe_rl.wire import ExecRequest


def tar(*members: tuple[str, bytes | str, int]) -> bytes:
    """Members: name, bytes (a file) or str (a link's target), mode."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data, mode in members:
            info = tarfile.TarInfo(name)
            info.mode = mode
            if isinstance(data, str):
                info.type, info.linkname = tarfile.SYMTYPE, data
                archive.addfile(info)
            else:
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def untar(data: bytes) -> dict[str, tuple[str, bytes | str, int]]:
    found: dict[str, tuple[str, bytes | str, int]] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for info in archive:
            if info.issym():
                found[info.name] = ("link", info.linkname, info.mode)
            else:
                file = archive.extractfile(info)
                assert info.isreg() and file is not None
                found[info.name] = ("file", file.read(), info.mode)
    return found


async def test_an_archive_goes_up_and_comes_down_unchanged(live) -> None:
    client = live.client
    session = (await client.create_session(language="python")).session_id
    data = bytes(range(256)) * 1000
    await client.write_archive(session, tar(("a/b.bin", data, 0o644), ("run.sh", b"#!/bin/sh\n", 0o755), ("l", "a", 0)))
    assert await client.read_file(session, "a/b.bin") == data
    found = untar(await client.read_archive(session))
    assert found == {
        "a/b.bin": ("file", data, 0o644),
        "l": ("link", "a", 0o777),
        "run.sh": ("file", b"#!/bin/sh\n", 0o755),
    }
    assert await client.read_archive(session) == await client.read_archive(session)


async def test_a_part_of_the_tree_goes_both_ways(live) -> None:
    client = live.client
    session = (await client.create_session("clamp")).session_id
    assert set(untar(await client.read_archive(session, "src"))) == {"clamp.py"}
    await client.write_archive(session, tar(("new.py", b"x = 1\n", 0o644)), "src/deep/er")
    assert await client.read_file(session, "src/deep/er/new.py") == b"x = 1\n"
    assert not any(name.startswith(".git") for name in untar(await client.read_archive(session)))
    for path in ("../x", "/etc", "missing", "src/clamp.py"):
        with pytest.raises(PathError):
            await client.read_archive(session, path)
    with pytest.raises(PathError):
        await client.write_archive(session, tar(("a", b"", 0o644)), "../x")


async def test_what_is_no_tar_or_a_vicious_one_changes_nothing_outside(live) -> None:
    client = live.client
    session = (await client.create_session("clamp")).session_id
    for data in (b"", b"not a tar" * 100, tar(("a", b"x" * 1000, 0o644))[:700]):
        with pytest.raises(PathError):
            await client.write_archive(session, data)
    for vicious in (
        tar(("../../outside", b"x", 0o644)),
        tar(("/etc/outside", b"x", 0o644)),
        tar(("l", "/", 0), ("l/outside", b"x", 0o644)),
    ):
        with pytest.raises(PathError):
            await client.write_archive(session, vicious)
            raise PathError("tar may also leave a prefix out instead of refusing")
    seen = await client.exec(session, ExecRequest(script="ls /outside /etc/outside /outside 2>/dev/null"))
    assert seen.stdout == ""


async def test_a_file_is_read_in_parts(live) -> None:
    session = (await live.client.create_session("clamp")).session_id
    await live.client.write_file(session, "a", b"0123456789")
    assert await live.client.read_file(session, "a", 3, 4) == b"3456"
    assert await live.client.read_file(session, "a", 8, 100) == b"89"
    assert await live.client.read_file(session, "a", 100) == b""
