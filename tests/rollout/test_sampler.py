"""Which task a group works on."""

import pytest

from swe_rl.errors import ConfigError
from swe_rl.rollout.sampler import Sampler

TASKS = [f"t{i}" for i in range(7)]


def test_every_round_holds_every_task_once() -> None:
    sampler = Sampler(TASKS, seed=3)
    for round_ in range(4):
        assert sorted(sampler.task(round_ * 7 + i) for i in range(7)) == TASKS


def test_a_task_depends_on_index_and_seed_alone() -> None:
    forward, backward = Sampler(TASKS, seed=3), Sampler(TASKS[::-1], seed=3)
    expected = [forward.task(i) for i in range(30)]
    assert [backward.task(i) for i in reversed(range(30))] == expected[::-1]
    assert [Sampler(TASKS, seed=4).task(i) for i in range(30)] != expected


def test_rounds_differ_in_order() -> None:
    sampler = Sampler(TASKS, seed=3)
    assert [sampler.task(i) for i in range(7)] != [sampler.task(7 + i) for i in range(7)]


def test_no_tasks_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="no tasks"):
        Sampler([], seed=0)
