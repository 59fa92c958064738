"""A run's mask on packed rows: units, thresholds by segment, and a threshold that follows a target."""

import numpy as np
import pytest
import torch

from swe_rl.config import load_config
from swe_rl.errors import ConfigError
from swe_rl.train.batch import build_batch
from swe_rl.train.masking import Masking, units
from swe_rl.train.trainer import Trainer
from swe_rl.trajectory import Segment


def masking(*overrides):
    return Masking(load_config(None, overrides).mask, 1)


@pytest.fixture
def row(make_groups):
    return build_batch(make_groups(2, noise=0.6), row_tokens=100_000).rows[0]


def test_a_sequence_is_a_unit_and_a_segment_is_a_run_within_one_turn(row):
    assert torch.equal(units(row, "sequence"), row.document_N)
    number = units(row, "segment")
    assert (number[1:] - number[:-1] >= 0).all()
    for unit in number.unique():
        inside = number == unit
        for column in (row.document_N, row.turn_N, row.segment_N):
            assert column[inside].unique().numel() == 1
        where = inside.nonzero().flatten()
        assert (where[1:] - where[:-1] == 1).all()
    assert number.unique().numel() > row.document_N.unique().numel()


def test_a_segment_may_have_a_threshold_of_its_own(row):
    train = row.infer_logprobs_N - 0.3
    names = {int(s) for s in row.segment_N[row.trainable_N].unique().tolist()}
    name = Segment(min(names)).name.lower()
    strict = masking("mask.phi=10.0", f"mask.phi_by_segment={{{name} = 1e-9}}")(row, train, version=0)
    own = row.trainable_N & (row.segment_N == min(names))
    assert not strict.keep[own].any()
    assert strict.keep[row.trainable_N & ~own].all()


@pytest.mark.parametrize("wrong", ["prompt", "observation", "dif"])
def test_a_threshold_for_what_is_no_sampled_segment_is_an_error(wrong):
    with pytest.raises(ConfigError, match=wrong):
        masking(f"mask.phi_by_segment={{{wrong} = 0.1}}")


@pytest.mark.parametrize("target", [0.5, 0.9])
def test_the_threshold_finds_the_kept_fraction_that_is_asked_for(make_config, make_groups, target):
    config = make_config(
        f"mask.target_kept={target}", "mask.phi=5.0", "mask.adapt_rate=0.7", "train.lr=1e-9", "rollout.max_staleness=99"
    )
    trainer = Trainer(config.policy.path, config, config.run.dir / "state")
    batch = build_batch(make_groups(4, noise=0.6), row_tokens=4096)
    kept = [trainer.update(batch).metrics["mask/kept_fraction"] for _ in range(8)]
    assert kept[0] > target + 0.05
    assert abs(kept[-1] - target) < 0.05


def test_the_adapted_threshold_is_part_of_a_checkpoint(make_config, make_groups):
    config = make_config("mask.target_kept=0.5")
    trainer = Trainer(config.policy.path, config, config.run.dir / "state")
    trainer.update(build_batch(make_groups(2, noise=0.6)))
    trainer.save_state()
    other = Trainer(config.policy.path, config, config.run.dir / "state")
    assert other._masking.phi != trainer._masking.phi
    other.load_state(1)
    assert other._masking.phi == trainer._masking.phi


def test_without_a_target_the_threshold_stays(make_config, make_groups):
    config = make_config("mask.phi=0.07")
    trainer = Trainer(config.policy.path, config, config.run.dir / "state")
    assert trainer.update(build_batch(make_groups(2, noise=0.6))).metrics["mask/phi"] == 0.07


def test_reference_theta_judges_by_the_weights_of_each_update(make_config, make_groups):
    base = ["train.minibatches=4", "train.lr=3e-2", "mask.rule=icepop", "mask.low=0.9", "mask.high=1.1"]
    kept = {}
    for reference in ("theta_old", "theta"):
        config = make_config(*base, f"mask.reference={reference}")
        trainer = Trainer(config.policy.path, config, config.run.dir / "state")
        kept[reference] = trainer.update(build_batch(make_groups(4), row_tokens=64)).tokens.kept
    assert np.all(kept["theta_old"])  # the replay is the sampler's own model
    assert not np.all(kept["theta"])  # the weights have moved away from it
