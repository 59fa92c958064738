"""One pass over a run's token logs: what is counted for the report, in memory that doesn't grow with the run.

Files <run>/tokens/step_*.npz flow in, `TokenStatistics` flows out. Nothing is drawn or judged here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swe_rl.train.mask import Reason
from swe_rl.train.token_log import TokenColumns, logged_steps, read_token_log
from swe_rl.trajectory import Segment

DIVERGENCE_EDGES = np.logspace(-12, 2, 85)
"""Bins of the binary KL; what is smaller or larger falls into the first or the last."""
SAMPLE_SIZE = 40_000
"""Points kept for the scatter, of each of kept and masked tokens."""


@dataclass(slots=True)
class Moments:
    """Of one number a token, over tokens where it is finite."""

    count: int = 0
    total: float = 0.0
    total_of_squares: float = 0.0

    def add(self, values: NDArray[np.float64]) -> None:
        self.count += len(values)
        self.total += float(values.sum())
        self.total_of_squares += float((values**2).sum())

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else float("nan")

    @property
    def half_width(self) -> float:
        """Of the 95 % interval of the mean, tokens taken as independent."""
        if self.count < 2:
            return 0.0
        variance = max(0.0, self.total_of_squares / self.count - self.mean**2)
        return float(1.96 * np.sqrt(variance / self.count))


@dataclass(slots=True, eq=False)
class TokenStatistics:
    """Counts over all trainable tokens of a run.

    reasons: by step, tokens by `Reason`; segments: by segment, (kept, all); staleness and steps: `Moments` of
    |dlogp|; router_agreement: by staleness, of that column; divergence_counts int64 [2, bins] (masked, kept) of
    max(D(p||q), D(q||p)), finite ones only;
    sample_masked, sample_kept float32 [n, 2]: (infer, train) log-probabilities of tokens drawn evenly.
    """

    reasons: dict[int, dict[Reason, int]] = field(default_factory=dict)
    segments: dict[Segment, tuple[int, int]] = field(default_factory=dict)
    staleness: dict[int, Moments] = field(default_factory=dict)
    steps: dict[int, Moments] = field(default_factory=dict)
    router_agreement: dict[int, Moments] = field(default_factory=dict)
    divergence_counts: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros((2, len(DIVERGENCE_EDGES) - 1), dtype=np.int64)
    )
    sample_masked: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 2), dtype=np.float32))
    sample_kept: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 2), dtype=np.float32))

    @property
    def totals(self) -> Mapping[Reason, int]:
        """Tokens by reason over all steps."""
        return {
            reason: sum(of_step.get(reason, 0) for of_step in self.reasons.values())
            for reason in Reason
            if reason is not Reason.NOT_TRAINABLE
        }

    @property
    def num_tokens(self) -> int:
        return sum(self.totals.values())

    @property
    def kept_fraction(self) -> float:
        """NaN for no tokens."""
        return self.totals[Reason.KEPT] / self.num_tokens if self.num_tokens else float("nan")

    @property
    def overall(self) -> Moments:
        moments = Moments()
        for step in self.steps.values():
            moments.count += step.count
            moments.total += step.total
            moments.total_of_squares += step.total_of_squares
        return moments


def read_statistics(run_dir: Path, seed: int = 0) -> TokenStatistics:
    """Reads every step's log once. Raises StoreError for one that can't be read."""
    statistics = TokenStatistics()
    rng = np.random.default_rng(seed)
    steps = logged_steps(run_dir)
    quota = -(-SAMPLE_SIZE // max(1, len(steps)))
    samples: tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]] = ([], [])
    for step in steps:
        columns = read_token_log(run_dir, step)
        _count(statistics, step, columns)
        for side, is_kept in enumerate((False, True)):
            samples[side].append(_sample(columns, is_kept, quota, rng))
    if steps:
        statistics.sample_masked, statistics.sample_kept = (np.concatenate(side) for side in samples)
    return statistics


def _count(statistics: TokenStatistics, step: int, columns: TokenColumns) -> None:
    by_reason = np.bincount(columns.reason, minlength=len(Reason))
    statistics.reasons[step] = {reason: int(by_reason[reason]) for reason in Reason}
    for segment in np.unique(columns.segment):
        kept = columns.kept[columns.segment == segment]
        before = statistics.segments.get(Segment(int(segment)), (0, 0))
        statistics.segments[Segment(int(segment))] = (before[0] + int(kept.sum()), before[1] + len(kept))
    gap = np.abs(columns.train_logprobs.astype(np.float64) - columns.infer_logprobs)
    is_finite = np.isfinite(gap)
    statistics.steps.setdefault(step, Moments()).add(gap[is_finite])
    for staleness in np.unique(columns.staleness):
        chosen = is_finite & (columns.staleness == staleness)
        statistics.staleness.setdefault(int(staleness), Moments()).add(gap[chosen])
        is_routed = np.isfinite(columns.router_agreement) & (columns.staleness == staleness)
        if is_routed.any():
            agreement = columns.router_agreement[is_routed].astype(np.float64)
            statistics.router_agreement.setdefault(int(staleness), Moments()).add(agreement)
    divergence = np.maximum(columns.divergence_forward, columns.divergence_reverse)
    clipped = np.clip(divergence, DIVERGENCE_EDGES[0], np.nextafter(DIVERGENCE_EDGES[-1], 0))
    for side, is_kept in enumerate((False, True)):
        chosen = np.isfinite(divergence) & (columns.kept == is_kept)
        statistics.divergence_counts[side] += np.histogram(clipped[chosen], DIVERGENCE_EDGES)[0]


def _sample(columns: TokenColumns, is_kept: bool, quota: int, rng: np.random.Generator) -> NDArray[np.float32]:
    pairs: NDArray[np.float32] = np.stack([columns.infer_logprobs, columns.train_logprobs], axis=1)
    pairs = pairs[np.isfinite(pairs).all(axis=1) & (columns.kept == is_kept)]
    if len(pairs) > quota:
        pairs = pairs[rng.choice(len(pairs), quota, replace=False)]
    return pairs
