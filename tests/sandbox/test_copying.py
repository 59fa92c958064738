"""Copies of untrusted trees: equal, independent, and of nothing outside."""

import contextlib
import errno
import io
import os
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from swe_rl.errors import PathError, SandboxError
from swe_rl.sandbox import copying
from swe_rl.sandbox.base import FileEntry
from swe_rl.sandbox.copying import copy_tree
from swe_rl.sandbox.docker_exec import tree_of_archive, unpack
from swe_rl.sandbox.tree import read_tree

ROOM = 64 << 20


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "a" / "empty").mkdir(parents=True)
    (root / "a" / "program").write_bytes(b"\0" * 3_000_000 + b"end")
    (root / "a" / "program").chmod(0o750)
    (root / "out").symlink_to("/etc")
    (root / "file").symlink_to("/etc/passwd")
    os.mkfifo(root / "pipe")
    return root


def test_a_copy_has_the_same_bytes_modes_links_and_directories(tree: Path, tmp_path: Path) -> None:
    copy_tree(tree, tmp_path / "copy", ROOM)
    copy = tmp_path / "copy"
    assert (copy / "a" / "program").read_bytes() == (tree / "a" / "program").read_bytes()
    assert (copy / "a" / "program").stat().st_mode & 0o777 == 0o750
    assert (copy / "a" / "empty").is_dir()
    assert os.readlink(copy / "out") == "/etc"
    assert os.readlink(copy / "file") == "/etc/passwd"
    assert not (copy / "pipe").exists()
    (copy / "a" / "program").write_bytes(b"changed")
    assert (tree / "a" / "program").stat().st_size == 3_000_003


def test_a_directory_that_becomes_a_link_while_it_is_copied_is_not_followed(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("of the host")
    mkdir = os.mkdir

    def swap(path: str, *arguments: int, **options: int) -> None:
        if path == "a":  # between the look at the directory and the step into it
            (tree / "a").rename(tree / "b")
            (tree / "a").symlink_to(secret)
        mkdir(path, *arguments, **options)

    monkeypatch.setattr(os, "mkdir", swap)
    with pytest.raises(PathError, match="changed while it was read"):
        copy_tree(tree, tmp_path / "copy", ROOM)
    assert not (tmp_path / "copy" / "a" / "key").exists()


def test_more_files_than_a_snapshot_may_have_are_refused(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "MAX_FILES", 3)
    with pytest.raises(PathError, match="more than 3 files"):
        copy_tree(tree, tmp_path / "copy", ROOM)


@pytest.mark.parametrize("kind", ["holes", "names", "growth"])
def test_a_copy_is_never_larger_than_it_may_be(
    kind: str, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "holes":
        for number in range(4):
            with open(tree / f"hole-{number}", "wb") as file:
                file.truncate(20 << 20)
    elif kind == "names":
        for number in range(30):
            os.link(tree / "a" / "program", tree / f"name-{number}")
    else:
        sendfile = os.sendfile

        def grow(target: int, source: int, offset: None, count: int) -> int:
            os.truncate(tree / "a" / "program", 70 << 20)
            return sendfile(target, source, offset, count)

        monkeypatch.setattr(os, "sendfile", grow)
        copy_tree(tree, tmp_path / "copy", ROOM)
        assert (tmp_path / "copy" / "a" / "program").stat().st_size == 3_000_003
        return
    with pytest.raises(PathError, match="more bytes"):
        copy_tree(tree, tmp_path / "copy", ROOM)


@pytest.mark.parametrize("swapped_in", ["link", "socket", "nothing", "directory"])
@pytest.mark.parametrize("reading", [read_tree, lambda tree: copy_tree(tree, tree.parent / "copy", ROOM)])
def test_whatever_takes_a_files_place_while_it_is_read_is_the_trees_own_fault(
    swapped_in: str, reading: Callable[[Path], object], tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, opening = tree / "a" / "program", os.open

    def swap(path: str, *arguments: int, **options: int) -> int:
        if path == "program" and victim.is_file():
            victim.unlink()
            if swapped_in == "link":
                victim.symlink_to("/etc/passwd")
            elif swapped_in == "socket":
                with socket.socket(socket.AF_UNIX) as made:
                    made.bind(str(victim))
            elif swapped_in == "directory":
                victim.mkdir()
        return opening(path, *arguments, **options)

    monkeypatch.setattr(os, "open", swap)
    with contextlib.suppress(PathError):  # nothing else may come
        reading(tree)
    assert not (tree.parent / "copy" / "a" / "program").exists() or victim.is_dir()


def test_a_lack_of_the_machines_is_no_fault_of_the_tree(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = os.open

    def fail(path: str, *arguments: int, **options: int) -> int:
        if path == "program":
            raise OSError(errno.EMFILE, "too many open files")
        return opening(path, *arguments, **options)

    monkeypatch.setattr(os, "open", fail)
    for read in (read_tree, lambda root: copy_tree(root, tmp_path / "copy", ROOM)):
        with pytest.raises(SandboxError) as seen:
            read(tree)
        assert not isinstance(seen.value, PathError)


def archive(*members: tuple[str, bytes, str]) -> list[bytes]:
    """A tar of (name, type, link's target or bytes)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as packed:
        for name, kind, text in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(text)
                packed.addfile(info, io.BytesIO(text.encode()))
            else:
                info.linkname = text
                packed.addfile(info)
    return [buffer.getvalue()]


@pytest.mark.parametrize(
    "member",
    [
        ("workspace//{out}", tarfile.REGTYPE, "planted"),
        ("workspace/../../{out}", tarfile.REGTYPE, "planted"),
        ("workspace/x", tarfile.LNKTYPE, "workspace//etc/passwd"),
        ("workspace/x", tarfile.LNKTYPE, "workspace/../../../etc/passwd"),
    ],
)
def test_an_archive_that_leads_out_is_refused(member: tuple[str, bytes, str], tmp_path: Path) -> None:
    name, kind, text = member
    packed = archive((name.format(out=tmp_path / "planted"), kind, text))
    for take in (lambda: unpack(packed, tmp_path / "into", ROOM), lambda: tree_of_archive(packed)):
        with pytest.raises(PathError, match="leads out"):
            take()
    assert not (tmp_path / "planted").exists()
    assert list((tmp_path / "into").iterdir()) == []


def test_a_second_name_is_what_the_first_is(tmp_path: Path) -> None:
    packed = archive(
        ("workspace", tarfile.DIRTYPE, ""),
        ("workspace/link", tarfile.SYMTYPE, "/etc/passwd"),
        ("workspace/again", tarfile.LNKTYPE, "workspace/link"),
        ("workspace/text", tarfile.REGTYPE, "text"),
        ("workspace/twin", tarfile.LNKTYPE, "workspace/text"),
    )
    unpack(packed, tmp_path / "into", ROOM)
    assert os.readlink(tmp_path / "into" / "again") == "/etc/passwd"
    assert (tmp_path / "into" / "twin").read_text() == "text"
    tree = tree_of_archive(packed)
    assert tree["again"] == tree["link"] == FileEntry("120000", b"/etc/passwd")
    hidden = [("workspace/.git/HEAD", tarfile.REGTYPE, "ref"), ("workspace/x", tarfile.LNKTYPE, "workspace/.git/HEAD")]
    with pytest.raises(PathError, match="another name"):
        tree_of_archive(archive(*hidden))


def test_an_archive_is_unpacked_up_to_a_limit(tmp_path: Path) -> None:
    first = ("workspace/0", tarfile.REGTYPE, "x" * 1000)
    packed = archive(first, *((f"workspace/{n}", tarfile.LNKTYPE, "workspace/0") for n in range(1, 100)))
    with pytest.raises(PathError, match="more than"):
        unpack(packed, tmp_path / "into", 10_000)
    assert len(list((tmp_path / "into").iterdir())) == 11
