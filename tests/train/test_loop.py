"""The consumer's loop over real stores: what it publishes, logs and consumes, and that a killed run goes on exactly."""

import hashlib
import json
import shutil
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from swe_rl.errors import PolicyError, StoreError
from swe_rl.metrics import read_metrics
from swe_rl.store.policies import PolicyStore
from swe_rl.store.rollouts import RolloutStore
from swe_rl.train.loop import train_loop
from swe_rl.train.token_log import logged_steps, read_token_log

STEPS = 3
LOOP = ["rollout.max_staleness=99", f"train.steps={STEPS}", "mask.phi=0.02"]


def fill(run_dir, groups):
    store = RolloutStore(run_dir)
    for group in groups:
        store.append(group)
    store.close()


def published(run_dir):
    """version -> digest of the weights."""
    store = PolicyStore(run_dir)
    found = {}
    for version in store.versions():
        content = (store.get(version).path / "model.safetensors").read_bytes()
        found[version] = hashlib.sha256(content).hexdigest()
    store.close()
    return found


def test_each_step_publishes_a_version_and_consumes_its_groups_in_order(make_config, make_groups):
    config = make_config(*LOOP)
    fill(config.run.dir, make_groups(2 * STEPS + 1, noise=0.2))
    seen = []
    assert train_loop(config, lambda step, metrics: seen.append((step, metrics["train/num_tokens"]))) == STEPS
    policies, rollouts = PolicyStore(config.run.dir), RolloutStore(config.run.dir)
    assert [policies.get(v).consumed for v in policies.versions()] == [(), ("g0", "g1"), ("g2", "g3"), ("g4", "g5")]
    assert policies.get(STEPS).splits == ("train",)
    assert rollouts.counts().waiting == 1
    assert [step for step, _ in seen] == list(range(STEPS))
    assert len(set(published(config.run.dir).values())) == STEPS + 1


def test_each_step_leaves_metrics_a_token_log_and_a_tensorboard_event(make_config, make_groups):
    config = make_config(*LOOP)
    fill(config.run.dir, make_groups(2 * STEPS))
    train_loop(config)
    rows = read_metrics(config.run.dir / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(STEPS))
    assert {"mask/kept_fraction", "mismatch/k3", "train/loss", "time/wait_s", "reward/mean"} <= rows[0].keys()
    assert logged_steps(config.run.dir) == list(range(STEPS))
    assert list((config.run.dir / "tensorboard").glob("events.*"))


def test_the_cold_start_is_published_as_version_zero_and_only_once(make_config, make_groups):
    config = make_config("train.steps=0")
    assert train_loop(config) == 0
    assert train_loop(config) == 0
    source = hashlib.sha256((config.policy.path / "model.safetensors").read_bytes()).hexdigest()
    assert published(config.run.dir) == {0: source}


def test_a_cold_start_that_is_not_there_is_one_line(make_config):
    with pytest.raises(PolicyError, match=r"policy nowhere: no such directory"):
        train_loop(make_config("policy.path=nowhere"))


def test_a_producer_that_stores_nothing_is_noticed(make_config, make_groups):
    config = make_config(*LOOP)
    fill(config.run.dir, make_groups(1))
    with pytest.raises(StoreError, match=r"no new group for 0 s at policy version 0; 1 waiting, 2 needed"):
        train_loop(config, group_timeout_s=0.2, poll_s=0.05)


def test_a_step_without_any_variance_still_publishes_so_that_the_producer_goes_on(make_config, make_groups):
    config = make_config(*LOOP, "train.steps=1")
    fill(config.run.dir, make_groups(2, rewards=(0.0, 0.0)))
    assert train_loop(config) == 1
    assert len(set(published(config.run.dir).values())) == 1


KILLED = """
    import os, signal, sys
    from swe_rl.config import Config
    from swe_rl.store.policies import PolicyStore
    from swe_rl.train import loop

    at_step, point = int(sys.argv[2]), sys.argv[3]

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    class Deadly(PolicyStore):
        def publish(self, write, version, *rest):
            if version == at_step + 1 and point == "before_publish":
                die()
            if version == at_step + 1 and point == "while_writing":
                return super().publish(lambda path: (write(path), die()), version, *rest)
            return super().publish(write, version, *rest)

    loop.PolicyStore = Deadly
    config = Config.model_validate_json(sys.argv[1])
    loop.train_loop(config, lambda step, _: die() if step == at_step and point == "after_publish" else None)
"""


# every step is killed once, step 1 twice: between state and publish, inside publish, and after it
DEATHS = [(0, "before_publish"), (1, "while_writing"), (1, "before_publish"), (2, "after_publish")]


BACKFILL = "rollout.max_backfill=1"  # steps of two groups with a signal, of four at most


def mixed(make_groups, signals, **options):
    """One group for each letter: those of + carry a signal, those of - don't."""
    rewards = {"+": (1.0, 0.0, 0.0, 1.0), "-": (0.0, 0.0, 0.0)}
    return [g for i, sign in enumerate(signals) for g in make_groups(1, first=i, rewards=rewards[sign], **options)]


@pytest.mark.parametrize(
    "options",
    [[], [BACKFILL, "train.save_every=2"], ["train.lora_rank=2", "train.save_every=2"]],
    ids=["each step", "back-fill, every other step", "adapters, every other step"],
)
def test_a_run_killed_at_each_step_goes_on_bit_equal(make_config, make_groups, tmp_path, options):
    groups = mixed(make_groups, "-++-+---++", noise=0.2)
    whole = make_config(*LOOP, *options, f"run.dir={tmp_path / 'whole'}")
    fill(whole.run.dir, groups)
    train_loop(whole)
    broken = make_config(*LOOP, *options, f"run.dir={tmp_path / 'broken'}")
    fill(broken.run.dir, groups)
    for at_step, point in DEATHS:
        command = [sys.executable, "-c", textwrap.dedent(KILLED), broken.model_dump_json(), str(at_step), point]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == -9, done.stderr
    assert train_loop(broken) == STEPS
    assert published(broken.run.dir) == published(whole.run.dir)
    for step in range(STEPS):
        ours, theirs = (read_token_log(run.run.dir, step) for run in (whole, broken))
        np.testing.assert_array_equal(ours.train_logprobs, theirs.train_logprobs)
        np.testing.assert_array_equal(ours.trajectory_ids, theirs.trajectory_ids)
    ours, theirs = (read_metrics(Path(run.run.dir) / "metrics.jsonl") for run in (whole, broken))
    for one, two in zip(ours, theirs, strict=True):
        assert json.dumps(without_time(one)) == json.dumps(without_time(two))


def test_a_step_takes_groups_without_a_signal_beside_those_that_it_needs_and_consumes_all(
    make_config, make_groups, caplog
):
    config = make_config(*LOOP, BACKFILL)
    # one more than it needs; none more; as many as it may
    fill(config.run.dir, mixed(make_groups, "-++" + "++" + "-+--" + "+-"))
    train_loop(config)
    policies, rollouts = PolicyStore(config.run.dir), RolloutStore(config.run.dir)
    assert [policies.get(v).consumed for v in policies.versions()[1:]] == [
        ("g0", "g1", "g2"),
        ("g3", "g4"),
        ("g5", "g6", "g7", "g8"),
    ]
    assert [row.consumed_by for row in rollouts.groups()] == [1, 1, 1, 2, 2, 3, 3, 3, 3, None, None]
    rows = read_metrics(config.run.dir / "metrics.jsonl")
    assert [row["rollout/num_backfilled"] for row in rows] == [1, 0, 2]
    assert [row["reward/signal_fraction"] for row in rows] == [pytest.approx(2 / 3), 1.0, 0.25]
    assert [row["reward/num_zero_variance_groups"] for row in rows] == [1, 0, 3]
    told = [record.getMessage() for record in caplog.records if "signal" in record.getMessage()]
    assert told == ["step 2: 1 groups with a signal, 2 wanted; 3 carry none, and rollout.max_backfill adds no more"]


def test_a_step_waits_for_groups_with_a_signal_as_long_as_it_may_have_more(make_config, make_groups):
    config = make_config(*LOOP, BACKFILL)
    fill(config.run.dir, mixed(make_groups, "-+-"))
    with pytest.raises(StoreError, match=r"3 waiting, 2 with a signal needed"):
        train_loop(config, group_timeout_s=0.2, poll_s=0.05)


def test_the_groups_that_fill_a_step_up_change_nothing_that_is_learned(make_config, make_groups, tmp_path):
    digests = []
    for name, groups in (
        ("plain", make_groups(2 * STEPS, noise=0.2)),
        ("filled", _spread(make_groups(2 * STEPS, noise=0.2), mixed(make_groups, "------"))),
    ):
        config = make_config(*LOOP, BACKFILL, f"run.dir={tmp_path / name}")
        fill(config.run.dir, groups)
        train_loop(config)
        digests.append(published(config.run.dir))
    assert digests[0] == digests[1]


def _spread(groups, others):
    """The groups at odd indices, the others at even ones before them."""
    moved = [replace(group, index=2 * group.index + 1) for group in groups]
    for other in others:
        group_id = f"other{other.index}"
        members = tuple(
            replace(t, group_id=group_id, trajectory_id=f"{group_id}-{i}") for i, t in enumerate(other.trajectories)
        )
        moved.append(replace(other, group_id=group_id, index=2 * other.index, trajectories=members))
    return moved


def without_time(row):
    return {name: value for name, value in row.items() if not name.startswith("time/")}


@pytest.mark.parametrize("lost", [(2,), (1, 2)], ids=["the newest", "all"])
def test_a_run_that_lost_states_repeats_its_steps_on_the_same_groups(make_config, make_groups, tmp_path, lost):
    """As a crash leaves it that came before a state was on the disk."""
    groups = make_groups(2 * STEPS, noise=0.2)
    found = []
    for name, losses in (("whole", ()), ("lossy", lost)):
        config = make_config(*LOOP, f"run.dir={tmp_path / name}")
        fill(config.run.dir, groups)
        first = make_config(*LOOP, "train.steps=2", f"run.dir={tmp_path / name}")
        assert train_loop(first) == 2
        for version in losses:
            shutil.rmtree(config.run.dir / "state" / f"step_{version:06d}")
        assert train_loop(config) == STEPS
        found.append(published(config.run.dir))
    assert found[0] == found[1]
    store = RolloutStore(config.run.dir)
    assert [row.consumed_by for row in store.groups()] == [1, 1, 2, 2, 3, 3]
    store.close()


def test_the_shuffled_control_trains_on_other_rewards_and_repeats_itself(make_config, make_groups, tmp_path):
    groups = make_groups(2 * STEPS, noise=0.2)
    digests = []
    for name, shuffle in (("plain", "false"), ("one", "true"), ("two", "true")):
        config = make_config(*LOOP, f"run.dir={tmp_path / name}", f"train.shuffle_rewards={shuffle}")
        fill(config.run.dir, groups)
        train_loop(config)
        digests.append(published(config.run.dir))
    assert digests[1] == digests[2] != digests[0]
