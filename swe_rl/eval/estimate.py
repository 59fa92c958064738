"""The statistics of an evaluation: pass@k without bias, and intervals over tasks.

Numbers flow in and out; nothing here knows of episodes. Samples of one task are correlated, so the task is the unit
that intervals resample.
"""

import math
from collections.abc import Sequence

import numpy as np

NUM_RESAMPLES = 4000
_LEVEL = 0.95


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """Probability that at least one of k samples, drawn without replacement from those taken, passed.

        pass@k = 1 - C(n - c, k) / C(n, k)

    Unbiased, unlike 1 - (1 - c/n)^k. Source: Chen et al. 2021 (Codex), eq. 1. Raises ValueError unless
    0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= num_passed <= num_samples and 1 <= k <= num_samples):
        raise ValueError(f"pass@{k} of {num_passed} passed in {num_samples}; expected 1 <= k <= n and 0 <= c <= n")
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def interval_over_tasks(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean of one value in [0, 1] a task: percentile bootstrap over tasks.

    Where all tasks failed (or all passed) every resample is the same; then it is the exact binomial interval over
    tasks (Clopper and Pearson 1934), so that 0 of 5 tasks doesn't read as certainty. Raises ValueError for no values.
    """
    if not len(values):
        raise ValueError("interval of no tasks; expected at least one")
    array = np.asarray(values, dtype=np.float64)
    far = 1.0 - ((1.0 - _LEVEL) / 2.0) ** (1.0 / len(array))
    if (array == 0.0).all():
        return 0.0, far
    if (array == 1.0).all():
        return 1.0 - far, 1.0
    rng = np.random.default_rng(seed)
    means = array[rng.integers(0, len(array), (NUM_RESAMPLES, len(array)))].mean(axis=1)
    low, high = np.quantile(means, [(1.0 - _LEVEL) / 2.0, (1.0 + _LEVEL) / 2.0])
    return float(low), float(high)
