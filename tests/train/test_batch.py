"""Packing: nothing is cut, lost, doubled or shifted, and what does not train stays out."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from swe_rl.errors import TrajectoryError
from swe_rl.train.batch import NO_TRAJECTORY, build_batch, join_rows
from swe_rl.train.packing import shared_prompt


def documents(batch):
    """trajectory index -> the row's arrays at its tokens."""
    found = {}
    for row in batch.rows:
        for index in row.trajectory_N.unique().tolist():
            if index != NO_TRAJECTORY:
                assert index not in found
                found[index] = row, row.trajectory_N == index
    return found


@pytest.mark.parametrize("row_tokens", [16, 40, 64, 1000])
@pytest.mark.parametrize("round_to", [1, 16])
def test_every_training_trajectory_is_one_whole_document_of_one_row(make_groups, row_tokens, round_to):
    groups = make_groups(4)
    batch = build_batch(groups, row_tokens=row_tokens, round_to=round_to)
    found = documents(batch)
    assert len(found) == len(batch.trajectories) == 16
    for index, (row, where) in found.items():
        t = batch.trajectories[index]
        assert len(row) <= row_tokens + round_to or len(t) >= row_tokens
        assert len(row) % round_to == 0
        np.testing.assert_array_equal(row.token_ids_N[where], t.token_ids)
        np.testing.assert_array_equal(row.trainable_N[where], t.sampled)
        np.testing.assert_array_equal(row.infer_logprobs_N[where], t.infer_logprobs)
        np.testing.assert_array_equal(row.version_N[where], t.policy_version)
        np.testing.assert_array_equal(row.segment_N[where], t.segment)
        np.testing.assert_array_equal(row.turn_N[where], t.turn)
        np.testing.assert_array_equal(row.position_N[where], np.arange(len(t)))
        assert row.document_N[where].unique().numel() == 1
        assert set(row.temperature_N[where].tolist()) == {np.float32(0.8)}
        assert set(row.advantage_N[where].tolist()) == {0.5 if t.reward else -0.5}


def whole(row, index):
    """The row's positions of one trajectory, its shared prompt's included."""
    own = (row.trajectory_N == index).nonzero().squeeze(1)
    if not row.is_tail_N[own[0]]:
        return own
    before = row.document_N[: own[0]][~row.is_tail_N[: own[0]]][-1]
    return torch.cat([(row.document_N == before).nonzero().squeeze(1), own])


@pytest.mark.parametrize("row_tokens", [1, 40, 64, 130, 1000])
def test_with_shared_prompts_every_trajectory_is_still_whole_and_prompts_stand_once_a_row(make_groups, row_tokens):
    groups = make_groups(4)
    plain = build_batch(groups, row_tokens=row_tokens)
    batch = build_batch(groups, row_tokens=row_tokens, shared_prefix=True)
    assert [t.trajectory_id for t in batch.trajectories] == [t.trajectory_id for t in plain.trajectories]
    found = documents(batch)
    assert sorted(found) == list(range(16))
    for index, (row, _) in found.items():
        t, where = batch.trajectories[index], whole(row, index)
        assert len(row) <= row_tokens or len(t) >= row_tokens
        np.testing.assert_array_equal(row.token_ids_N[where], t.token_ids)
        np.testing.assert_array_equal(row.trainable_N[where], t.sampled)
        np.testing.assert_array_equal(row.infer_logprobs_N[where], t.infer_logprobs)
        np.testing.assert_array_equal(row.segment_N[where], t.segment)
        np.testing.assert_array_equal(row.position_N[where], np.arange(len(t)))
        assert not row.trainable_N[row.trajectory_N == NO_TRAJECTORY].any()
    assert batch.num_trainable == plain.num_trainable
    num_tokens = [sum(len(row) for row in b.rows) for b in (batch, plain)]
    prompts = [int(np.argmax(g.trajectories[0].sampled)) for g in groups]
    if row_tokens == 1000:  # all in one row: each prompt once instead of four times
        assert len(batch.rows) == 1 and num_tokens[1] - num_tokens[0] == 3 * sum(prompts)
    assert (num_tokens[0] < num_tokens[1]) == (row_tokens > 1)


def test_a_prompt_is_shared_only_as_far_as_it_is_common_and_nobody_sampled_it(make_groups):
    (group,) = make_groups(1)
    first, second, *rest = group.trajectories
    prompt = int(np.argmax(first.sampled))
    assert shared_prompt(group.trajectories) == prompt
    token_ids = second.token_ids.copy()
    token_ids[1] = (token_ids[1] + 1) % 48
    assert shared_prompt([first, replace(second, token_ids=token_ids), *rest]) == 1
    token_ids[0] = (token_ids[0] + 1) % 48
    other = replace(group, trajectories=(first, replace(second, token_ids=token_ids), *rest))
    assert shared_prompt(other.trajectories) == 0
    row = build_batch([other], row_tokens=1000, shared_prefix=True).rows[0]
    assert not row.is_tail_N.any() and len(row) == sum(len(t) for t in group.trajectories)
    assert shared_prompt([first, replace(first, trajectory_id="twin")]) == prompt


def test_a_trajectory_longer_than_a_row_is_not_cut(make_groups):
    batch = build_batch(make_groups(1), row_tokens=1)
    assert [len(row) for row in batch.rows] == sorted((len(t) for t in batch.trajectories), reverse=True)


def test_padding_is_a_document_of_its_own_that_never_trains(make_groups):
    for row in build_batch(make_groups(2), row_tokens=50, round_to=64).rows:
        padding = row.trajectory_N == NO_TRAJECTORY
        assert padding.any() and not row.trainable_N[padding].any()
        assert row.document_N[padding].unique().tolist() == [int(row.document_N[~padding].max()) + 1]


def test_documents_ascend_without_gaps_also_in_joined_rows(make_groups):
    batch = build_batch(make_groups(3), row_tokens=48, round_to=8, shared_prefix=True)
    joined = join_rows(batch.rows)
    assert joined.is_tail_N.any()
    assert len(joined) == sum(len(row) for row in batch.rows)
    steps = torch.diff(joined.document_N)
    assert int(joined.document_N[0]) == 0 and set(steps.tolist()) == {0, 1}


def test_groups_without_variance_and_faulted_members_stay_out_but_are_counted(make_groups):
    groups = make_groups(1, rewards=(1.0, 0.0, None)) + make_groups(1, first=1, rewards=(0.0, 0.0, 0.0))
    batch = build_batch(groups)
    assert len(batch.trajectories) == 2
    assert batch.metrics["reward/num_zero_variance_groups"] == 1
    assert batch.metrics["reward/num_faulted"] == 1
    assert batch.metrics["reward/mean"] == pytest.approx(1 / 5)
    assert batch.metrics["rollout/stop_sandbox_error"] == pytest.approx(1 / 6)
    assert batch.metrics["rollout/turns_mean"] == 2


def test_a_batch_may_be_empty(make_groups):
    batch = build_batch(make_groups(2, rewards=(0.0, 0.0)))
    assert batch.rows == () and batch.num_trainable == 0


def test_a_greedy_sample_has_no_policy_gradient_and_is_refused(make_groups):
    (group,) = make_groups(1)
    greedy = replace(group, trajectories=tuple(replace(t, temperature=0.0) for t in group.trajectories))
    with pytest.raises(TrajectoryError, match="g0-t0: temperature is 0"):
        build_batch([greedy])
