"""The alarm: it sounds for other weights on the two sides, not for rounding, stale tokens or a handful of tokens."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from swe_rl.errors import MismatchError
from swe_rl.metrics import read_metrics
from swe_rl.model import load_model, save_policy
from swe_rl.store.policies import PolicyStore
from swe_rl.store.rollouts import RolloutStore
from swe_rl.train.alarm import MIN_TOKENS, check_mismatch, fresh_gap
from swe_rl.train.batch import build_batch
from swe_rl.train.loop import train_loop
from swe_rl.train.token_log import logged_steps
from swe_rl.train.trainer import Trainer
from swe_rl.trajectory import Segment


@pytest.fixture
def columns(make_config, make_groups):
    """Of one step on four groups, whose engine's log-probabilities are off by noise of standard deviation `noise`."""

    def make(noise=0.0, change=lambda groups: groups, number=4, policy_dir=None):
        config = make_config(*([f"policy.path={policy_dir}"] if policy_dir else []))
        trainer = Trainer(config.policy.path, config, config.run.dir / "state")
        return trainer.update(build_batch(change(make_groups(number, noise=noise)))).tokens

    return make


def test_tokens_that_both_sides_price_alike_raise_no_alarm(columns, make_config, caplog):
    tokens = columns()
    assert len(tokens) > MIN_TOKENS
    assert check_mismatch(tokens, 0, make_config()) == {"mismatch/alarm": 0.0}
    assert caplog.text == ""


def test_an_engine_with_other_weights_raises_an_alarm_that_says_where_to_look(
    columns, make_config, policy_dir, tmp_path, caplog
):
    model = load_model(policy_dir, torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    save_policy(model, policy_dir, tmp_path / "other")
    tokens = columns(policy_dir=tmp_path / "other")
    config = make_config()
    assert check_mismatch(tokens, 0, config) == {"mismatch/alarm": 1.0}
    (record,) = caplog.records
    gap = fresh_gap(tokens)
    assert record.levelno == logging.WARNING and "step 0" in record.message and "version 0" in record.message
    assert f"swe-rl inspect {config.run.dir} --trajectory {gap.trajectory_id} --logprobs" in record.message


@pytest.mark.parametrize("segment", [Segment.TEXT, Segment.TOOL_NAME, Segment.TOOL_ARGS, Segment.STOP])
def test_the_segment_and_the_trajectory_with_the_largest_gap_are_named(columns, segment):
    def shift(groups):
        """All of one segment a little, and more of it in one trajectory."""

        def one(t):
            by = (t.segment == segment) + (4.0 if t.trajectory_id == "g2-t1" else 0.0)
            return replace(t, infer_logprobs=(t.infer_logprobs - by).astype(np.float32))

        return [replace(g, trajectories=tuple(map(one, g.trajectories))) for g in groups]

    gap = fresh_gap(columns(change=shift))
    assert (gap.segment, gap.trajectory_id) == (segment.name.lower(), "g2-t1")
    assert 1.0 < gap.of_segment < 5.0 and gap.mean < gap.of_segment


def test_what_bfloat16_explains_is_no_alarm_for_it_and_one_for_float32(columns, make_config):
    tokens = columns(noise=0.02)
    assert check_mismatch(tokens, 0, make_config("engine.dtype=bfloat16")) == {"mismatch/alarm": 0.0}
    assert check_mismatch(tokens, 0, make_config("train.dtype=bfloat16")) == {"mismatch/alarm": 0.0}
    assert check_mismatch(tokens, 0, make_config()) == {"mismatch/alarm": 1.0}
    assert check_mismatch(columns(noise=0.3), 0, make_config("engine.dtype=bfloat16")) == {"mismatch/alarm": 1.0}


@pytest.mark.parametrize(("agreement", "is_named"), [(0.9, True), (1.0, False), (np.nan, False)])
def test_routers_that_chose_other_experts_are_named_as_what_may_lie_behind_it(
    columns, make_config, caplog, agreement, is_named
):
    tokens = columns(noise=1.0)
    tokens = replace(tokens, router_agreement=np.full(len(tokens), agreement, np.float32))
    assert check_mismatch(tokens, 0, make_config()) == {"mismatch/alarm": 1.0}
    assert ("90.0% of cases: see train.replay_routing" in caplog.text) == is_named


def test_stale_tokens_raise_no_alarm_though_their_gap_is_large(columns, make_config):
    tokens = columns(noise=0.5)
    assert check_mismatch(tokens, 0, make_config())["mismatch/alarm"] == 1.0
    stale = replace(tokens, staleness=np.ones_like(tokens.staleness))
    assert check_mismatch(stale, 1, make_config("train.max_mismatch=0.1")) == {}


def test_a_handful_of_tokens_and_those_without_a_number_raise_no_alarm(columns, make_config):
    tokens = columns(noise=0.5)
    few = replace(tokens, staleness=np.where(np.arange(len(tokens)) < MIN_TOKENS - 1, 0, 1).astype(np.int32))
    assert check_mismatch(few, 0, make_config()) == {}
    infer = np.where(np.arange(len(tokens)) % 2, np.nan, tokens.train_logprobs).astype(np.float32)
    reason = np.where(np.isnan(infer), 3, 1).astype(np.uint8)
    assert fresh_gap(replace(tokens, infer_logprobs=infer, reason=reason)).mean == 0.0


def test_above_the_limit_the_run_ends_before_it_publishes_and_the_same_groups_wait(make_config, make_groups):
    options = ["rollout.groups_per_step=4", "train.steps=1"]
    config = make_config(*options, "train.max_mismatch=0.1")
    rollouts = RolloutStore(config.run.dir)
    for group in make_groups(4, noise=0.5):
        rollouts.append(group)
    for _ in range(2):
        with pytest.raises(MismatchError, match=r"step 0: .*largest in segment .*nothing was published"):
            train_loop(config)
        policies = PolicyStore(config.run.dir)
        assert policies.versions() == [0] and rollouts.counts().waiting == 4
        assert logged_steps(config.run.dir) == [0]  # the evidence stays
    assert train_loop(make_config(*options)) == 1
    assert rollouts.counts().consumed == 4
    (row,) = read_metrics(config.run.dir / "metrics.jsonl")
    assert row["mismatch/alarm"] == 1.0
