"""The rule that the worker and the trainer share: what it says of a group is what the advantages do."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.config import AdvantageKind, load_config
from swe_rl.errors import ConfigError
from swe_rl.returns import ReturnRule
from swe_rl.store.rollouts import RolloutStore
from swe_rl.train.advantage import compute_advantages
from swe_rl.train.batch import build_batch
from swe_rl.trajectory import Group, Segment, StopReason, Trajectory, Turn
from swe_rl.verdict import Outcome, Verdict

REWARDS = st.sampled_from([None, 0.0, 0.0, 1.0, 1.0])
MEMBERS = st.lists(
    st.tuples(REWARDS, st.sampled_from(StopReason), st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=5
)
RULES = st.builds(
    ReturnRule,
    st.sampled_from(get_args(AdvantageKind)),
    discount=st.sampled_from([1.0, 0.5, 1e-200]),  # the squares of such returns are 0
    unsubmitted=st.sampled_from([1.0, 0.5, 0.0]),
    overlong=st.sampled_from([(), ("context_full", "max_tokens"), ("max_turns", "time_limit", "group_limit")]),
    overlong_penalty=st.sampled_from([0.0, 0.5, 1.0]),
    overlong_buffer=st.sampled_from([1, 8]),
    max_context=st.just(20),
)


def make_group(members, index=0):
    """Of (reward, end, turns, more tokens of prompt): a turn is three sampled tokens."""
    trajectories = tuple(_trajectory(f"g{index}", f"g{index}-m{i}", *member) for i, member in enumerate(members))
    return Group(f"g{index}", "task", "train", index, 0, trajectories)


def _trajectory(group_id, name, reward, end, num_turns, more):
    start = 4 + more
    sampled = np.arange(start + 3 * num_turns) >= start
    position = np.arange(len(sampled))
    outcome = {None: Outcome.ENVIRONMENT_ERROR, 0.0: Outcome.UNRESOLVED}.get(reward, Outcome.RESOLVED)
    return Trajectory(
        name, group_id, "task", "train",
        token_ids=position.astype(np.int32),
        sampled=sampled,
        infer_logprobs=np.where(sampled, -0.5, np.nan).astype(np.float32),
        policy_version=np.where(sampled, 0, -1).astype(np.int32),
        segment=np.where(sampled, Segment.TEXT, Segment.PROMPT).astype(np.uint8),
        turn=np.where(sampled, (position - start) // 3, -1).astype(np.int16),
        turns=tuple(Turn(start + 3 * i, start + 3 * i + 3) for i in range(num_turns)),
        temperature=1.0,
        stop_reason=end,
        verdict=Verdict(outcome, reward),
    )  # fmt: skip


@settings(deadline=None, max_examples=400)
@given(st.lists(MEMBERS, min_size=1, max_size=3), RULES)
def test_a_group_has_a_signal_exactly_if_some_member_of_it_trains(groups, rule):
    made = [make_group(members, index) for index, members in enumerate(groups)]
    advantages = compute_advantages(made, rule)
    have_signal = [rule.has_signal(group.trajectories) for group in made]
    assert have_signal == [any(a is not None for a in values) for values in advantages.values]
    batch = build_batch(made, rule=rule)
    assert batch.metrics["reward/signal_fraction"] == sum(have_signal) / len(made)
    assert {t.group_id for t in batch.trajectories} == {
        g.group_id for g, has in zip(made, have_signal, strict=True) if has
    }
    assert np.isfinite([a for values in advantages.values for a in values if a is not None]).all()


@settings(deadline=None, max_examples=25)
@given(st.lists(MEMBERS, min_size=1, max_size=6), RULES)
def test_the_stores_rows_say_the_same_as_the_trajectories(tmp_path_factory, groups, rule):
    store = RolloutStore(tmp_path_factory.mktemp("run"))
    made = [make_group(members, index) for index, members in enumerate(groups)]
    for group in made:
        store.append(group)
    rows = store.trajectories()
    store.close()
    for group in made:
        of_group = [row for row in rows if row.index == group.index]
        assert [rule.value(row) for row in of_group] == [rule.value(t) for t in group.trajectories]
        assert rule.has_signal(of_group) == rule.has_signal(group.trajectories)


@pytest.mark.parametrize(("num_tokens", "expected"), [(4, 0.0), (10, 0.0), (13, 0.3), (16, 0.6), (20, 1.0), (25, 1.0)])
def test_the_penalty_is_nothing_up_to_the_buffer_and_linear_in_it(num_tokens, expected):
    """DAPO's punishment with L_max = 20 and L_cache = 10, times a factor."""
    rule = ReturnRule(overlong_penalty=1.0, overlong_buffer=10, max_context=20)
    (t,) = make_group([(1.0, StopReason.SUBMITTED, 0, num_tokens - 4)]).trajectories
    assert rule.penalty(t) == pytest.approx(expected)


def test_the_rule_is_read_from_the_configuration():
    options = ["train.overlong=['max_turns']", "train.overlong_penalty=0.5", "train.discount=0.9"]
    rule = ReturnRule.of(load_config(None, [*options, "train.overlong_buffer=64", "engine.max_context=512"]))
    expected = ReturnRule("group_mean", 0.9, 1.0, ("max_turns",), 0.5, 64, 512)
    assert rule == expected


def test_a_buffer_longer_than_the_context_is_a_config_error_where_it_matters():
    options = ["train.overlong_buffer=600", "engine.max_context=512"]
    assert ReturnRule.of(load_config(None, options)).overlong_penalty == 0.0
    with pytest.raises(ConfigError, match=r"overlong_buffer is 600, expected at most engine.max_context \(512\)"):
        load_config(None, [*options, "train.overlong_penalty=0.1"])


def test_an_end_that_is_no_limit_of_the_agent_can_not_be_called_overlong():
    with pytest.raises(ConfigError, match=r"train\.overlong"):
        load_config(None, ["train.overlong=['engine_error']"])
