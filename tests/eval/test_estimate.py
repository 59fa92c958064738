"""pass@k and intervals, against numbers worked out by hand."""

import itertools

import numpy as np
import pytest

from swe_rl.eval.estimate import interval_over_tasks, pass_at_k


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [(4, 1, 1, 0.25), (4, 1, 2, 0.5), (4, 2, 2, 5 / 6), (4, 0, 4, 0.0), (4, 1, 4, 1.0), (10, 3, 5, 1 - 21 / 252)],
)
def test_pass_at_k_matches_hand_computed_points(n, c, k, expected):
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(6, 2, 3), (5, 4, 2), (7, 1, 4)])
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(n, c, k):
    subsets = list(itertools.combinations(range(n), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(min(s) < c for s in subsets) / len(subsets), abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 5), (4, 1, 0)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError, match="expected 1 <= k <= n"):
        pass_at_k(n, c, k)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        difficulty = rng.beta(2, 3, 60)
        low, high = interval_over_tasks(rng.binomial(4, difficulty) / 4, seed=trial)
        covered += low <= 0.4 <= high
    assert 0.88 <= covered / 200 <= 1.0


def test_samples_of_one_task_do_not_narrow_the_interval():
    values = [0.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    low, high = interval_over_tasks(values, seed=1)
    assert high - low > 0.5


def test_the_same_seed_gives_the_same_interval():
    values = [0.0, 0.25, 1.0, 0.5]
    assert interval_over_tasks(values, 3) == interval_over_tasks(values, 3)
    assert interval_over_tasks(list(np.linspace(0, 1, 31)), 3) != interval_over_tasks(list(np.linspace(0, 1, 31)), 4)


@pytest.mark.parametrize(("n", "far"), [(5, 0.5218), (10, 0.3085), (100, 0.0362)])
def test_all_failed_or_all_passed_is_not_certainty(n, far):
    # Clopper-Pearson 95 %, tabulated: 0 of 5 gives 0.5218, 0 of 10 gives 0.3085, 0 of 100 gives 0.0362
    assert interval_over_tasks([0.0] * n) == pytest.approx((0.0, far), abs=1e-4)
    assert interval_over_tasks([1.0] * n) == pytest.approx((1 - far, 1.0), abs=1e-4)


def test_no_tasks_is_refused():
    with pytest.raises(ValueError, match="no tasks"):
        interval_over_tasks([])
