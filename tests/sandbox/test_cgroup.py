"""Descriptors of a control group: all of them, or none."""

import os
from pathlib import Path

import pytest

from swe_rl.sandbox.cgroup import Cgroup


def group_in(directory: Path, *names: str) -> Cgroup:
    for name in names:
        (directory / name).mkdir()
        (directory / name / "tasks").touch()
    return Cgroup({name: directory / name for name in ("memory", "pids", "freezer")}, False, directory / "unified")


def test_an_entrance_into_a_group_that_vanishes_meanwhile_keeps_nothing_open(tmp_path: Path) -> None:
    group = group_in(tmp_path, "memory", "pids", "freezer")  # "unified", the last one, is gone already
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        group.entrance()
    assert os.listdir("/proc/self/fd") == before


def test_an_entrance_has_a_file_for_each_old_group_and_the_directory_of_the_new_one(tmp_path: Path) -> None:
    group = group_in(tmp_path, "memory", "pids", "freezer", "unified")
    before = os.listdir("/proc/self/fd")
    entrance = group.entrance()
    assert [os.readlink(f"/proc/self/fd/{file}") for file in entrance.files] == [
        str(tmp_path / name / "tasks") for name in ("memory", "pids", "freezer")
    ]
    assert entrance.directory is not None
    assert os.readlink(f"/proc/self/fd/{entrance.directory}") == str(tmp_path / "unified")
    assert group.entrance() is entrance
    group.close()
    assert os.listdir("/proc/self/fd") == before
