"""Rewards to advantages: hand-computed points, faults, groups without variance, and the two controls."""

import math
from dataclasses import replace
from typing import get_args

import pytest

from swe_rl.config import AdvantageKind
from swe_rl.returns import ReturnRule
from swe_rl.train.advantage import compute_advantages
from swe_rl.trajectory import StopReason
from swe_rl.verdict import Outcome, Verdict


def test_group_mean_subtracts_the_mean_of_its_own_group(make_groups):
    groups = make_groups(1, rewards=(1.0, 0.0, 0.0, 0.0)) + make_groups(1, first=1, rewards=(1.0, 1.0, 0.0, 1.0))
    values = compute_advantages(groups, ReturnRule("group_mean")).values
    assert values == ((0.75, -0.25, -0.25, -0.25), (0.25, 0.25, -0.75, 0.25))


def test_group_std_divides_by_the_population_deviation(make_groups):
    (values,) = compute_advantages(make_groups(1, rewards=(1.0, 0.0, 0.0, 0.0)), ReturnRule("group_std")).values
    assert values == pytest.approx((0.75 / math.sqrt(3 / 16),) + (-0.25 / math.sqrt(3 / 16),) * 3)


def test_leave_one_out_subtracts_the_mean_of_the_others(make_groups):
    (values,) = compute_advantages(make_groups(1, rewards=(1.0, 0.0, None, 1.0)), ReturnRule("leave_one_out")).values
    assert values == pytest.approx((1.0 - 0.5, 0.0 - 1.0, None, 1.0 - 0.5))


def test_batch_std_scales_all_groups_alike_to_a_batch_of_unit_deviation(make_groups):
    groups = make_groups(1, rewards=(1.0, 0.0, 0.0, 0.0)) + make_groups(1, first=1, rewards=(1.0, 0.0, None, 1.0))
    plain, scaled = (compute_advantages(groups, ReturnRule(kind)).values for kind in ("group_mean", "batch_std"))
    flat = [a for group in scaled for a in group if a is not None]
    assert sum(a * a for a in flat) / len(flat) == pytest.approx(1.0)
    ratios = {
        round(s / p, 9) for a, b in zip(scaled, plain, strict=True) for s, p in zip(a, b, strict=True) if p is not None
    }
    assert len(ratios) == 1


def test_a_faulted_member_neither_counts_in_the_mean_nor_trains(make_groups):
    result = compute_advantages(make_groups(1, rewards=(1.0, None, 0.0, None)))
    assert result.values == ((0.5, None, -0.5, None),)
    assert result.num_faulted == 2


@pytest.mark.parametrize("rewards", [(0.0, 0.0), (1.0, 1.0, None), (1.0,), (None, None)])
@pytest.mark.parametrize("kind", ["group_mean", "group_std", "leave_one_out", "batch_std"])
def test_a_group_without_variance_is_dropped_and_counted(make_groups, kind, rewards):
    result = compute_advantages(make_groups(1, rewards=rewards), ReturnRule(kind))
    assert set(result.values[0]) == {None}
    assert result.num_zero_variance_groups == 1


def test_rejection_trains_rewarded_episodes_only_also_of_a_group_that_all_solved(make_groups):
    groups = make_groups(1, rewards=(1.0, 0.0, None)) + make_groups(1, first=1, rewards=(1.0, 1.0))
    assert compute_advantages(groups, ReturnRule("rejection")).values == ((1.0, None, None), (1.0, 1.0))


def test_shuffled_rewards_are_a_permutation_over_the_batch_that_the_seed_and_step_decide(make_groups):
    groups = make_groups(8, rewards=(1.0, 0.0, None, 0.0))
    plain = compute_advantages(groups, ReturnRule("rejection")).values
    shuffled = [compute_advantages(groups, ReturnRule("rejection"), (5, step)).values for step in range(3)]
    assert shuffled[0] == compute_advantages(groups, ReturnRule("rejection"), (5, 0)).values
    assert shuffled[0] != shuffled[1] != shuffled[2] and plain not in shuffled
    for values in shuffled:
        assert sum(v == 1.0 for group in values for v in group) == 8
        assert all(group[2] is None for group in values)  # a fault stays where it was


def test_an_unknown_kind_is_an_error(make_groups):
    with pytest.raises(ValueError, match="median"):
        compute_advantages(make_groups(1), ReturnRule("median"))


def test_a_discount_prices_turns_of_rewarded_episodes_and_of_those_alone(make_groups):
    (group,) = make_groups(1, rewards=(1.0, 1.0, 0.0))
    turns = [len(t.turns) for t in group.trajectories]
    plain = compute_advantages([group]).values[0]
    returns = [0.5 ** (turns[0] - 1), 0.5 ** (turns[1] - 1), 0.0]
    expected = tuple(r - sum(returns) / 3 for r in returns)
    assert compute_advantages([group], ReturnRule(discount=0.5)).values[0] == pytest.approx(expected)
    assert plain == pytest.approx((1 / 3, 1 / 3, -2 / 3))


def test_an_episode_that_did_not_submit_keeps_a_share_of_its_reward(make_groups):
    (group,) = make_groups(1, rewards=(1.0, 1.0, 0.0))
    capped = replace(group.trajectories[0], stop_reason=StopReason.MAX_TURNS)
    submitted = tuple(replace(t, stop_reason=StopReason.SUBMITTED) for t in group.trajectories[1:])
    group = replace(group, trajectories=(capped, *submitted))
    assert compute_advantages([group], ReturnRule(unsubmitted=0.0)).values[0] == pytest.approx((-1 / 3, 2 / 3, -1 / 3))
    assert compute_advantages([group], ReturnRule(unsubmitted=0.5)).values[0] == pytest.approx((0.0, 0.5, -0.5))
    assert compute_advantages([group]).values[0] == pytest.approx((1 / 3, 1 / 3, -2 / 3))


KINDS = get_args(AdvantageKind)


def with_ends(group, **changes):
    """`changes`: {member: (stop reason, ...)} by number, e.g. m2=StopReason.CONTEXT_FULL."""
    members = [replace(t, stop_reason=changes.get(f"m{i}", t.stop_reason)) for i, t in enumerate(group.trajectories)]
    return replace(group, trajectories=tuple(members))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reason", ["context_full", "max_tokens", "max_turns", "time_limit", "group_limit"])
def test_an_overlong_member_counts_in_the_mean_and_does_not_train_and_a_faulted_one_does_neither(
    make_groups, kind, reason
):
    """One group with both sorts, one with neither: 1, 0 (overlong), 0, fault, 1 (overlong) and 1, 0, 0, 0."""
    first, second = make_groups(1, rewards=(1.0, 0.0, 0.0, None, 1.0)) + make_groups(
        1, first=1, rewards=(1.0, 0.0, 0.0, 0.0)
    )
    first = with_ends(first, m1=StopReason(reason), m4=StopReason(reason))
    kept = compute_advantages([first, second], ReturnRule(kind))
    masked = compute_advantages([first, second], ReturnRule(kind, overlong=(reason,)))
    expected = [[a if i not in (1, 4) else None for i, a in enumerate(kept.values[0])], list(kept.values[1])]
    assert [list(group) for group in masked.values] == expected
    assert (kept.num_overlong, masked.num_overlong, masked.num_faulted) == (0, 2, 1)
    by_hand = {
        "group_mean": (0.5, -0.5),
        "group_std": (1.0, -1.0),
        "leave_one_out": (2 / 3, -2 / 3),
        # deviations of the whole batch: four of 1/2, one of 3/4, three of 1/4
        "batch_std": (0.5 / math.sqrt(1.75 / 8), -0.5 / math.sqrt(1.75 / 8)),
        "rejection": (1.0, None),
    }[kind]
    assert masked.values[0] == pytest.approx((by_hand[0], None, by_hand[1], None, None))


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_whose_members_all_fail_or_are_overlong_has_no_signal(make_groups, kind):
    (group,) = make_groups(1, rewards=(1.0, None, 0.0))
    group = with_ends(group, m0=StopReason.MAX_TURNS, m2=StopReason.CONTEXT_FULL)
    result = compute_advantages([group], ReturnRule(kind, overlong=("max_turns", "context_full")))
    assert set(result.values[0]) == {None} and result.num_with_signal == 0


def test_the_length_penalty_rises_over_the_buffer_and_moves_advantages_only(make_groups):
    (group,) = make_groups(1, rewards=(1.0, 1.0, 0.0))
    lengths = [len(t) for t in group.trajectories]
    longest = max(lengths)
    rule = ReturnRule(overlong_penalty=0.5, overlong_buffer=longest, max_context=longest)
    returns = [t.reward - 0.5 * n / longest for t, n in zip(group.trajectories, lengths, strict=True)]
    expected = [r - sum(returns) / 3 for r in returns]
    assert compute_advantages([group], rule).values[0] == pytest.approx(tuple(expected))
    assert [t.reward for t in group.trajectories] == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("rewards", [(1.0, 1.0, 1.0), (0.0, 0.0, 0.0)])
def test_length_alone_is_no_signal(make_groups, rewards):
    (group,) = make_groups(1, rewards=rewards)
    assert len({len(t) for t in group.trajectories}) > 1
    rule = ReturnRule(overlong_penalty=0.5, overlong_buffer=100, max_context=100)
    assert compute_advantages([group], rule).num_zero_variance_groups == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_penalty_that_makes_all_returns_equal_leaves_nothing_to_divide_by(make_groups, kind):
    (group,) = make_groups(1, rewards=(1.0, 0.0))
    long, short = group.trajectories[0], group.trajectories[1]
    if len(long) <= len(short):
        long, short = (with_verdict(short, 1.0), with_verdict(long, 0.0))
    group = replace(group, trajectories=(long, short))
    rule = ReturnRule(kind, overlong_penalty=1.0, overlong_buffer=1, max_context=len(long))
    values = compute_advantages([group], rule).values[0]
    assert values == ((1.0, None) if kind == "rejection" else (None, None))


def with_verdict(t, reward):
    return t.with_verdict(Verdict(Outcome.RESOLVED if reward else Outcome.UNRESOLVED, reward))
