"""Which groups make a step: the rule alone, over all orders in which groups may come."""

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swe_rl.config.rollout import RolloutConfig
from swe_rl.store.steps import StepRule

SIGNALS = st.lists(st.booleans(), max_size=30)
RULES = st.builds(StepRule, st.integers(1, 4), st.integers(0, 6))


def sizes(rule, signals):
    """Of all complete steps, in order."""
    found = []
    while (size := rule.size(signals)) is not None:
        found.append(size)
        signals = signals[size:]
    return found


@settings(deadline=None, max_examples=500)
@given(SIGNALS, RULES)
def test_every_step_has_as_many_signals_as_it_needs_or_as_many_groups_as_it_may(signals, rule):
    start = 0
    for size in sizes(rule, signals):
        step = signals[start : start + size]
        assert size <= rule.limit and sum(step) <= rule.num_groups
        assert sum(step) == rule.num_groups or size == rule.limit
        start += size
    rest = signals[start:]
    assert len(rest) < rule.limit and sum(rest) < rule.num_groups


@settings(deadline=None, max_examples=500)
@given(SIGNALS, RULES, st.integers(0, 5))
def test_as_many_groups_are_missing_as_complete_the_steps_if_all_carry_a_signal_and_no_fewer(signals, rule, num_steps):
    missing = rule.num_missing(signals, num_steps)
    assert rule.num_missing(signals + [True] * missing, num_steps) == 0
    assert not missing or rule.num_missing(signals + [True] * (missing - 1), num_steps) == 1
    # of those that carry none at least as many
    assert not missing or rule.num_missing(signals + [False] * (missing - 1), num_steps) > 0


@settings(deadline=None)
@given(SIGNALS, st.integers(1, 4))
def test_without_back_fill_a_step_is_a_number_of_groups_whatever_they_carry(signals, num_groups):
    rule = StepRule(num_groups)
    assert sizes(rule, signals) == [num_groups] * (len(signals) // num_groups)
    assert rule.num_missing(signals, 5) == max(0, 5 * num_groups - len(signals))


@dataclass
class Loops:
    """A worker and a trainer that share a list of groups: index -> (signal, version at its beginning)."""

    rule: StepRule
    max_staleness: int
    num_steps: int
    has_signal: tuple[bool, ...]
    version: int = 0
    waiting: dict[int, tuple[bool, int]] = field(default_factory=dict)
    in_flight: dict[int, int] = field(default_factory=dict)
    taken: list[list[int]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)

    def signals(self):
        return [self.waiting[index][0] for index in sorted(self.waiting)]

    def start(self):
        """All that back-pressure allows, lowest free index first."""
        allowed = min(self.version + 1 + self.max_staleness, self.num_steps)
        count = self.rule.num_missing(self.signals(), allowed - self.version) - len(self.in_flight)
        held = {*self.waiting, *self.in_flight, *self.dropped, *(index for step in self.taken for index in step)}
        free = (index for index in range(10_000) if index not in held)
        for _ in range(count):
            self.in_flight[index := next(free)] = self.version
            held.add(index)

    def end(self, choice):
        index = sorted(self.in_flight)[choice % len(self.in_flight)]
        self.waiting[index] = self.has_signal[index % len(self.has_signal)], self.in_flight.pop(index)

    def crash(self):
        self.in_flight.clear()

    def train(self):
        """As `RolloutStore.take`, then a new version."""
        stale = [index for index, (_, at) in self.waiting.items() if at < self.version - self.max_staleness]
        for index in stale:
            assert any(index < max(step) for step in self.taken)  # it was overtaken while it ran
            del self.waiting[index]
        self.dropped += stale
        size = self.rule.size(self.signals())
        if size is None or self.version == self.num_steps:
            return
        step = sorted(self.waiting)[:size]
        for index in step:
            del self.waiting[index]
        self.taken.append(step)
        self.version += 1


@settings(deadline=None, max_examples=400)
@given(
    RULES,
    st.integers(0, 3),
    st.lists(st.booleans(), min_size=1, max_size=9).map(tuple),
    st.lists(st.integers(0, 40), max_size=200),
)
@example(StepRule(2, 2), 0, (True, False), [])
def test_the_two_loops_never_wait_for_each_other_and_take_nothing_too_stale(rule, max_staleness, has_signal, choices):
    loops = Loops(rule, max_staleness, 6, has_signal)
    for choice in [*choices, *([0] * 500)]:
        loops.start()
        if choice == 40:
            loops.crash()
        elif loops.in_flight and choice % 4:
            loops.end(choice)
        else:
            before = loops.version
            loops.train()
            if loops.version == before and loops.in_flight:
                loops.end(choice)
        if loops.version == loops.num_steps:
            break
    assert loops.version == loops.num_steps
    assert not loops.in_flight and not any(loops.signals())  # nothing was sampled in vain
    if max_staleness == 0:
        assert not loops.waiting and not loops.dropped
    taken = [index for step in loops.taken for index in step]
    assert sorted([*taken, *loops.waiting, *loops.dropped]) == list(
        range(len(taken) + len(loops.waiting) + len(loops.dropped))
    )


@pytest.mark.parametrize(("groups", "backfill", "extra"), [(16, 0.0, 0), (16, 1.0, 16), (100, 0.29, 29), (3, 0.5, 1)])
def test_the_bound_is_a_multiple_of_the_groups_of_a_step(groups, backfill, extra):
    rule = StepRule.of(RolloutConfig(groups_per_step=groups, max_backfill=backfill), bool)
    assert (rule.num_groups, rule.max_extra, rule.limit) == (groups, extra, groups + extra)


def test_a_step_of_nothing_is_refused():
    with pytest.raises(ValueError, match="step of 0 groups"):
        StepRule(0)
    with pytest.raises(ValueError, match="-1 more"):
        StepRule(1, -1)
