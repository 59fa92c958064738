"""Processes that are killed at any moment, that race, or that run out of disk."""

import itertools
import random
import resource
import signal
import subprocess
import sys

import pytest

from swe_rl.errors import StoreError
from swe_rl.store.blobs import encode_group
from swe_rl.store.steps import StepRule

KILLS = 3


def run_until_killed(run, verb, seed):
    """Lines that the process printed before SIGKILL hit it at a random moment of its work."""
    process = run.start(verb)
    lines = [process.stdout.readline()]
    delay = random.Random(seed).uniform(0.0, 0.25)
    try:
        process.wait(timeout=delay)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    lines += process.communicate()[0].splitlines()
    return [line.strip() for line in lines if line.strip()]


def test_a_killed_producer_loses_nothing_it_reported_and_leaves_nothing_half(run, script):
    for seed in range(KILLS):
        reported = run_until_killed(run, "append_forever", seed)
        store = run.rollouts()
        assert store.missing_indices(store.next_index()) == []
        assert store.next_index() > int(reported[-1])
        for row in store.groups():
            expected = script.make_group(row.index, version=row.index // 2)
            assert encode_group(store.get(row.index)) == encode_group(expected)
        assert len(list((run.run_dir / "rollouts").iterdir())) == store.num_groups()


def test_a_killed_trainer_gets_the_same_groups_again_and_consumes_each_once(run, script):
    store = run.rollouts()
    for index in range(80):
        store.append(script.make_group(index, size=1))
    attempts = [run_until_killed(run, "train_forever", seed) for seed in range(KILLS)]
    by_version = {}
    for line in itertools.chain.from_iterable(attempts):
        version, *group_ids = line.split()
        assert by_version.setdefault(int(version), group_ids) == group_ids
    policies = run.policies()
    versions = policies.versions()
    assert versions == list(range(len(versions)))
    assert len(by_version) - len(versions) in (0, 1)  # the last one may have been killed on its way
    consumed = [group_id for version in versions for group_id in policies.verify(version).consumed]
    assert consumed == [f"g{index:05d}" for index in range(len(consumed))]
    assert [row.group_id for row in store.groups() if row.consumed_by is not None] == consumed
    assert all(policies.get(v).consumed == tuple(by_version[v]) for v in versions)


def test_two_producers_of_the_same_indices_store_each_once(run):
    first, second = run.start("append_range", 0, 40), run.start("append_range", 10, 50)
    won = [int(process.communicate()[0]) for process in (first, second)]
    store = run.rollouts()
    assert sum(won) == store.num_groups() == 50
    assert [store.get(index).index for index in range(50)] == list(range(50))
    assert len(list((run.run_dir / "rollouts").iterdir())) == 50


def test_of_two_publishers_of_a_version_one_is_refused(run, script):
    run.rollouts().append(script.make_group(0))
    for version in range(2):
        processes = [run.start("publish_once", version) for _ in range(2)]
        said = sorted(process.communicate()[0].split(":")[0].strip() for process in processes)
        assert said == ["published", "refused"]
        run.policies().verify(version)


def test_of_two_publishers_with_one_group_one_is_refused(run, script):
    run.rollouts().append(script.make_group(0))
    processes = [run.start("publish_once", version, "g00000") for version in (1, 2)]
    said = sorted(process.communicate()[0].split(":")[0].strip() for process in processes)
    assert said == ["published", "refused"]
    assert len(run.policies().versions()) == 1


def test_a_second_live_trainer_is_refused_and_a_dead_one_is_not_in_the_way(run, script):
    store = run.rollouts()
    store.append(script.make_group(0))
    trainer = run.start("take_and_wait")
    assert trainer.stdout.readline().strip() == "g00000"
    with pytest.raises(StoreError, match=f"another trainer is live .*pid {trainer.pid}"):
        store.take(StepRule(1), 0, 0)
    trainer.kill()
    trainer.communicate()
    assert [group.index for group in store.take(StepRule(1), 0, 0)] == [0]


LIMITED = """
import resource, sys
sys.path.insert(0, {folder!r})
from pathlib import Path
import store_process as script
from swe_rl.errors import StoreError
from swe_rl.store.policies import PolicyStore
from swe_rl.store.rollouts import RolloutStore
from swe_rl.store.steps import StepRule
rollouts, policies = RolloutStore(Path({run_dir!r}), {url!r}), PolicyStore(Path({run_dir!r}), {url!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
for call in (
    lambda: rollouts.append(script.make_group(1)),
    lambda: policies.publish(lambda directory: script.write_policy(directory, 1), 1),
):
    try:
        call()
    except StoreError as error:
        print(error)
"""


def test_a_full_disk_is_one_line_that_says_what_to_do_and_harms_nothing(run, script):
    store, policies = run.rollouts(), run.policies()
    store.append(script.make_group(0))
    policies.publish(lambda directory: script.write_policy(directory, 0), 0)
    folder = str(__file__).rpartition("/")[0]
    code = LIMITED.format(folder=folder, run_dir=str(run.run_dir), url=run.url)
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    lines = output.splitlines()
    assert len(lines) == 2
    assert all("free some space" in line for line in lines)
    assert run.rollouts().num_groups() == 1
    assert run.policies().verify(0).version == 0
    assert len(list((run.run_dir / "rollouts").iterdir())) == 1
    assert store.append(script.make_group(1))
    policies.publish(lambda directory: script.write_policy(directory, 1), 1)
