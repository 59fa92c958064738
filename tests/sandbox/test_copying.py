"""Copies of untrusted trees: equal, independent, and of nothing outside."""

import os
from pathlib import Path

import pytest

from swe_rl.errors import PathError
from swe_rl.sandbox import copying
from swe_rl.sandbox.copying import copy_tree


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
    copy_tree(tree, tmp_path / "copy")
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
        copy_tree(tree, tmp_path / "copy")
    assert not (tmp_path / "copy" / "a" / "key").exists()


def test_more_files_than_a_snapshot_may_have_are_refused(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "MAX_FILES", 3)
    with pytest.raises(PathError, match="more than 3 files"):
        copy_tree(tree, tmp_path / "copy")
