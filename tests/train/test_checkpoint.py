"""States are whole or absent, the right ones are kept, and a full disk is one line."""

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Iterator

import pytest
import torch

from swe_rl.errors import StoreError
from swe_rl.train.batch import build_batch
from swe_rl.train.checkpoint import StateWriter, load_state, save_state, saved_versions
from swe_rl.train.trainer import Trainer


def test_a_state_comes_back_bit_for_bit(tmp_path):
    state = {"weights": torch.randn(100), "random": torch.get_rng_state(), "nested": {"step": 3, "betas": (0.9, 0.95)}}
    save_state(tmp_path, 4, state)
    loaded = load_state(tmp_path, 4)
    assert torch.equal(loaded["weights"], state["weights"]) and torch.equal(loaded["random"], state["random"])
    assert loaded["nested"] == state["nested"]


def test_only_the_last_two_states_are_kept(tmp_path):
    for version in range(1, 6):
        save_state(tmp_path, version, {"version": version})
    assert saved_versions(tmp_path) == [4, 5]
    assert sorted(os.listdir(tmp_path)) == ["step_000004", "step_000005"]


def test_each_state_that_the_interval_divides_is_kept_besides_the_last(tmp_path):
    for version in range(1, 9):
        save_state(tmp_path, version, {"version": version}, keep_last=3, keep_every=4)
    assert saved_versions(tmp_path) == [4, 6, 7, 8]
    save_state(tmp_path, 9, {}, keep_last=2, keep_every=3)
    assert saved_versions(tmp_path) == [6, 8, 9]


class SlowDisk:
    """What is pickled only once `gate` is open: a write that takes as long as the test wants."""

    def __init__(self):
        self.gate = threading.Event()

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        assert self.gate.wait(30), "the one who opens the gate is waiting for the disk"
        return OrderedDict, ()


def test_training_goes_on_while_a_state_is_written_and_what_is_written_is_that_of_the_call(tmp_path):
    writer, disk, weights = StateWriter(tmp_path, 2, 0), SlowDisk(), torch.ones(4)
    save_state(tmp_path, 1, {"weights": torch.zeros(4)})
    writer.start(2, {"disk": disk, "weights": weights})
    weights.add_(1.0)
    assert saved_versions(tmp_path) == [1]  # until the new one is whole, the old one stands
    disk.gate.set()
    writer.wait()
    assert saved_versions(tmp_path) == [1, 2]
    assert torch.equal(load_state(tmp_path, 2)["weights"], torch.ones(4))


def test_states_are_written_one_after_another_in_the_order_of_their_versions(tmp_path):
    writer = StateWriter(tmp_path, 3, 0)
    for version in (1, 2, 3):
        writer.start(version, {"version": version})
        assert set(range(1, version)) <= set(saved_versions(tmp_path))
    writer.wait()
    assert [load_state(tmp_path, v)["version"] for v in saved_versions(tmp_path)] == [1, 2, 3]


def test_a_state_that_was_never_published_is_overwritten_and_its_future_removed(tmp_path):
    for version in (3, 4, 5):
        save_state(tmp_path, version, {"run": "first"})
    save_state(tmp_path, 4, {"run": "second"})  # resumed at 3: 4 and 5 had not been published
    assert load_state(tmp_path, 4) == {"run": "second"}
    assert saved_versions(tmp_path) == [4]


def test_a_missing_state_is_an_error_that_says_which_there_are(tmp_path):
    save_state(tmp_path, 2, {})
    with pytest.raises(StoreError, match=r"no state of version 3, found \[2\]"):
        load_state(tmp_path, 3)


def test_a_damaged_state_is_an_error_and_not_a_fresh_start(tmp_path):
    path = save_state(tmp_path, 1, {"weights": torch.zeros(1000)}) / "state.pt"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(StoreError, match="not a readable state"):
        load_state(tmp_path, 1)


def test_a_state_of_another_model_is_refused(make_config, make_groups):
    config = make_config()
    trainer = Trainer(config.policy.path, config, config.run.dir / "state")
    save_state(config.run.dir / "state", 1, {"version": 1, "model": {"w": torch.zeros(1)}, "optimizer": {}})
    with pytest.raises(StoreError, match="is of another model"):
        trainer.load_state(1)


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file of this process may grow beyond 200 kB: a write fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_refuses_is_one_line_and_the_older_state_stands(tmp_path, full_disk):
    save_state(tmp_path, 1, {"run": "old"})
    with pytest.raises(StoreError, match=r"state of version 2 can't be written: .*; free some disk") as caught:
        save_state(tmp_path, 2, {"weights": torch.zeros(1_000_000)})
    assert len(str(caught.value).splitlines()) == 1
    assert os.listdir(tmp_path) == ["step_000001"]
    assert load_state(tmp_path, 1) == {"run": "old"}


@pytest.mark.parametrize("call", [lambda writer: writer.wait(), lambda writer: writer.start(3, {})])
def test_a_disk_that_refuses_in_the_background_is_an_error_of_the_next_call(tmp_path, full_disk, call):
    writer = StateWriter(tmp_path, 2, 0)
    writer.start(2, {"weights": torch.zeros(1_000_000)})
    with pytest.raises(StoreError, match=r"state of version 2 can't be written"):
        call(writer)
    writer.start(3, {"weights": torch.zeros(10)})
    writer.wait()
    assert saved_versions(tmp_path) == [3]


def test_a_trainer_that_goes_on_from_its_state_makes_bit_equal_steps(make_config, make_groups):
    config = make_config(
        "rollout.max_staleness=99", "train.minibatches=2", "train.warmup_steps=3", "train.row_tokens=40"
    )
    batches = [build_batch(make_groups(2, first=2 * i, noise=0.1), row_tokens=40) for i in range(4)]
    straight = Trainer(config.policy.path, config, config.run.dir / "state")
    for index, batch in enumerate(batches):
        straight.update(batch)
        if index == 1:
            straight.save_state()
    resumed = Trainer(config.policy.path, config, config.run.dir / "state")
    resumed.load_state(2)
    for batch in batches[2:]:
        resumed.update(batch)
    assert resumed.version == straight.version == 4
    for (name, ours), theirs in zip(
        straight._weights._model.named_parameters(), resumed._weights._model.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs), name
