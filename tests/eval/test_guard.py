"""A policy isn't evaluated on what it was trained on, wherever its directory was copied."""

import logging
import shutil

import numpy as np
import pytest

from swe_rl.errors import SplitError
from swe_rl.eval.guard import check_held_out
from swe_rl.store.policies import PolicyStore
from swe_rl.store.rollouts import RolloutStore
from swe_rl.trajectory import Group, Segment, StopReason, Trajectory


def make_group(group_id, task_id, split, index):
    trajectory = Trajectory(
        trajectory_id=f"{group_id}-0",
        group_id=group_id,
        task_id=task_id,
        split=split,
        token_ids=np.array([1, 2], np.int32),
        sampled=np.array([False, True]),
        infer_logprobs=np.array([np.nan, -1.0], np.float32),
        policy_version=np.array([-1, 0], np.int32),
        segment=np.array([Segment.PROMPT, Segment.TEXT], np.uint8),
        turn=np.array([-1, 0], np.int16),
        turns=(),
        temperature=1.0,
        stop_reason=StopReason.MAX_TURNS,
        verdict=None,
    )
    return Group(group_id, task_id, split, index, 0, (trajectory,))


def write(directory):
    (directory / "model.safetensors").write_bytes(b"weights")


@pytest.fixture
def policy_dir(tmp_path):
    """Trained on tasks a and b of split train, then twice more on nothing new."""
    rollouts, policies = RolloutStore(tmp_path / "run"), PolicyStore(tmp_path / "run")
    rollouts.append(make_group("g0", "a", "train", 0))
    rollouts.append(make_group("g1", "b", "train", 1))
    policies.publish(write, 0)
    policies.publish(write, 1, ["g0", "g1"])
    policies.publish(write, 2)
    return policies.publish(write, 3).path


def test_another_split_with_other_tasks_is_let_through(policy_dir):
    manifest = check_held_out(policy_dir, "verified", ["c", "d"])
    assert manifest is not None
    assert (manifest.version, manifest.splits, manifest.task_ids) == (3, ("train",), ("a", "b"))


def test_the_training_split_is_refused_versions_later(policy_dir):
    with pytest.raises(SplitError, match=r"v3.*trained on split 'train'"):
        check_held_out(policy_dir, "train", ["c"])


def test_a_training_task_under_another_splits_name_is_refused(policy_dir):
    with pytest.raises(SplitError, match=r"1 tasks of split 'verified', e\.g\. b"):
        check_held_out(policy_dir, "verified", ["b", "c"])


def test_the_version_before_training_is_let_through(policy_dir):
    assert check_held_out(policy_dir.parent / "v00000", "train", ["a"]) is not None


def test_a_copy_elsewhere_is_refused_too(policy_dir, tmp_path):
    copy = tmp_path / "elsewhere"
    shutil.copytree(policy_dir, copy)
    with pytest.raises(SplitError):
        check_held_out(copy, "train", [])


def test_a_copy_published_as_version_0_of_a_new_run_is_refused_too(policy_dir, tmp_path):
    def copy(directory):
        shutil.copytree(policy_dir, directory, dirs_exist_ok=True)

    fresh = PolicyStore(tmp_path / "new").publish(copy, 0)
    with pytest.raises(SplitError):
        check_held_out(fresh.path, "verified", ["a"])


def test_a_model_without_a_manifest_is_let_through_with_a_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        assert check_held_out(tmp_path, "verified", ["a"]) is None
    assert "can't be checked" in caplog.text
