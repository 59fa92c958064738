"""Publishing a policy consumes its groups, both or neither."""

import json

import pytest

from swe_rl.errors import ChecksumError, PolicyError, StoreError
from swe_rl.store.policies import PolicyManifest, hash_weights
from swe_rl.store.rows import GroupCounts
from swe_rl.store.steps import StepRule


def writer(script, version):
    return lambda directory: script.write_policy(directory, version)


def publish(run, script, version, consumed=(), splits=()):
    return run.policies().publish(writer(script, version), version, consumed, splits)


def entries(run):
    return sorted(path.name for path in (run.run_dir / "policies").iterdir())


def test_a_published_policy_says_where_it_is_and_what_it_was_trained_on(run, script):
    rollouts = run.rollouts()
    for index in range(2):
        rollouts.append(script.make_group(index))
    assert run.policies().latest() is None
    first = publish(run, script, 0, splits=["warmup"])
    assert (first.version, first.parent, first.consumed, first.splits) == (0, None, (), ("warmup",))
    second = publish(run, script, 1, ["g00000", "g00001"], ["train"])
    assert (second.version, second.parent) == (1, 0)
    assert second.consumed == ("g00000", "g00001")
    assert second.splits == ("train", "warmup")
    assert second.task_ids == ("task-0", "task-1")
    assert second.path == run.run_dir / "policies" / "v00001"
    assert second.weights_sha256 == hash_weights(second.path) != first.weights_sha256
    assert run.policies().latest() == run.policies().get(1) == run.policies().verify(1) == second
    assert [row.consumed_by for row in rollouts.groups()] == [1, 1]
    assert entries(run) == ["v00000", "v00001"]


def test_the_manifest_in_the_directory_says_the_same(run, script):
    manifest = publish(run, script, 0, splits=["train"])
    assert PolicyManifest.read(manifest.path) == manifest
    assert PolicyManifest.read(run.run_dir) is None
    (manifest.path / "manifest.json").write_text("{}")
    with pytest.raises(PolicyError, match="not a policy manifest"):
        PolicyManifest.read(manifest.path)


def test_a_policy_made_from_another_runs_policy_inherits_what_that_was_trained_on(run, script):
    def write(directory):
        script.write_policy(directory, 0)
        old = {"version": 9, "parent": 8, "weights_sha256": "0", "consumed": ["x"], "created_at": 1.0}
        (directory / "manifest.json").write_text(json.dumps(old | {"splits": ["dev"], "task_ids": ["t"]}))

    manifest = run.policies().publish(write, 0, splits=["train"])
    assert (manifest.splits, manifest.task_ids, manifest.consumed) == (("dev", "train"), ("t",), ())


def test_a_version_that_exists_or_falls_is_refused_and_leaves_the_old_weights(run, script):
    before = publish(run, script, 3)
    for version in (3, 2, -1):
        with pytest.raises(StoreError, match="can't be published"):
            publish(run, script, version)
    assert run.policies().verify(3) == before
    assert entries(run) == ["v00003"]


@pytest.mark.parametrize("consumed", [["g00000"], ["unknown"], ["g00001", "g00001"], ["g00001", "g00002"]])
def test_a_group_consumed_unknown_doubled_or_dropped_undoes_the_whole_publish(run, script, consumed):
    rollouts = run.rollouts()
    rollouts.append(script.make_group(0, version=0))
    rollouts.append(script.make_group(1, version=5))
    publish(run, script, 0, ["g00000"])
    rollouts.append(script.make_group(2, version=0))
    assert [group.index for group in rollouts.take(StepRule(1), 5, 0)] == [1]  # drops group 2
    with pytest.raises(StoreError, match="Nothing was published"):
        publish(run, script, 1, consumed)
    assert run.policies().latest().version == 0
    assert rollouts.counts() == GroupCounts(written=3, waiting=1, consumed=1, dropped=1)
    assert entries(run) == ["v00000"]
    publish(run, script, 1, ["g00001"])


def test_consumed_groups_are_not_taken_again(run, script):
    rollouts = run.rollouts()
    for index in range(3):
        rollouts.append(script.make_group(index))
    taken = rollouts.take(StepRule(2), 0, 9)
    publish(run, script, 0, [group.group_id for group in taken])
    assert rollouts.take(StepRule(2), 1, 9) is None
    assert [group.index for group in rollouts.take(StepRule(1), 1, 9)] == [2]


def test_a_writer_that_fails_publishes_nothing(run, script):
    def write(directory):
        script.write_policy(directory, 0)
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        run.policies().publish(write, 0)
    with pytest.raises(PolicyError, match=r"no .*safetensors"):
        run.policies().publish(lambda directory: None, 0)
    assert run.policies().latest() is None
    assert entries(run) == []


def test_a_directory_that_a_crash_left_is_overwritten(run, script):
    left = run.run_dir / "policies" / "v00000"
    temp = run.run_dir / "policies" / ".tmp-dead"
    for directory in (left, temp):
        directory.mkdir(parents=True)
        (directory / "half.safetensors").write_bytes(b"half")
    publish(run, script, 0)
    assert entries(run) == ["v00000"]
    assert not (left / "half.safetensors").exists()
    run.policies().verify(0)


def test_changed_weights_are_a_checksum_error(run, script):
    manifest = publish(run, script, 0)
    path = manifest.path / "model-2.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ChecksumError, match="changed after they were published"):
        run.policies().verify(0)


def test_an_unknown_version_names_those_that_exist(run, script):
    publish(run, script, 0)
    publish(run, script, 1)
    with pytest.raises(StoreError, match=r"no policy version 7.*\[0, 1\]"):
        run.policies().get(7)


def test_pruning_keeps_the_last_and_every_nth_and_all_rows(run, script):
    for version in range(8):
        publish(run, script, version)
    assert run.policies().prune(keep_last=2, keep_every=3) == [1, 2, 4, 5]
    assert entries(run) == ["v00000", "v00003", "v00006", "v00007"]
    assert run.policies().versions() == list(range(8))
    assert run.policies().get(4).is_pruned
    with pytest.raises(StoreError, match="was pruned"):
        run.policies().verify(4)
    assert run.policies().prune(keep_last=2, keep_every=3) == []


def test_pruning_everything_is_refused(run):
    with pytest.raises(ValueError, match="keep_last 0"):
        run.policies().prune(keep_last=0)
