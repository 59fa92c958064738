"""An alarm for trainer and engine that disagree about tokens of the very version that the trainer holds.

The token columns of a step go in; a metric and, if the gap is too large for rounding, a warning or an error come out.
Only tokens of staleness 0 count: for these both programs have the same weights, so that what is left is rounding or a
fault. Nothing is masked or mended here.
"""

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swe_rl.config import Config
from swe_rl.errors import MismatchError
from swe_rl.train.mask import Reason
from swe_rl.train.token_log import TokenColumns
from swe_rl.trajectory import Segment

logger = logging.getLogger(__name__)

LIMITS = {"float32": 1e-3, "bfloat16": 0.05}
"""Mean |train_logprobs - infer_logprobs| above what rounding explains, by the coarser dtype of engine and trainer:
thirty to a hundred times what was measured (docs/results.md)."""
MIN_TOKENS = 64
"""A mean over fewer fresh tokens is no ground for an alarm."""


@dataclass(frozen=True, slots=True)
class FreshGap:
    """Mean |train_logprobs - infer_logprobs| of fresh tokens, and the segment and trajectory where it is largest."""

    mean: float
    num_tokens: int
    segment: str
    of_segment: float
    trajectory_id: str


def fresh_gap(columns: TokenColumns) -> FreshGap | None:
    """None where fewer than `MIN_TOKENS` tokens are of staleness 0 and have two finite log-probabilities."""
    fresh = (columns.staleness == 0) & (columns.reason != int(Reason.NONFINITE))
    if int(fresh.sum()) < MIN_TOKENS:
        return None
    gap = np.abs(columns.train_logprobs[fresh].astype(np.float64) - columns.infer_logprobs[fresh])
    segment, of_segment = _largest(gap, columns.segment[fresh])
    trajectory, _ = _largest(gap, columns.trajectory[fresh])
    name = Segment(segment).name.lower()
    return FreshGap(float(gap.mean()), len(gap), name, of_segment, str(columns.trajectory_ids[trajectory]))


def check_mismatch(columns: TokenColumns, step: int, config: Config) -> dict[str, float]:
    """The metric `mismatch/alarm`, 1 with a warning in the log; empty without enough fresh tokens.

    Raises MismatchError above `train.max_mismatch`, if that is set.
    """
    gap = fresh_gap(columns)
    if gap is None:
        return {}
    dtype = "bfloat16" if "bfloat16" in (config.engine.dtype, config.train.dtype) else "float32"
    highest = config.train.max_mismatch
    if highest is not None and gap.mean > highest:
        raise MismatchError(f"{_describe(gap, step, config)}; train.max_mismatch is {highest:g}, nothing was published")
    is_alarm = gap.mean > LIMITS[dtype]
    if is_alarm:
        logger.warning("%s; %s", _describe(gap, step, config), _explain(columns, dtype, config))
    return {"mismatch/alarm": float(is_alarm)}


def _largest(gap: NDArray[np.float64], keys: NDArray[np.integer]) -> tuple[int, float]:
    """The key with the largest mean gap, and that mean."""
    found, inverse = np.unique(keys, return_inverse=True)
    means = np.bincount(inverse, gap) / np.bincount(inverse)
    return int(found[means.argmax()]), float(means.max())


def _explain(columns: TokenColumns, dtype: str, config: Config) -> str:
    """What may lie behind it: other experts, where the routers' choices are known and not replayed, or no rounding."""
    agreement = columns.router_agreement[np.isfinite(columns.router_agreement)]
    if config.train.replay_routing or not len(agreement) or agreement.min() == 1.0:
        return f"{dtype} explains {LIMITS[dtype]:g} at most"
    return f"the routers chose the engine's experts in {agreement.mean():.1%} of cases: see train.replay_routing"


def _describe(gap: FreshGap, step: int, config: Config) -> str:
    return (
        f"step {step}: engine and trainer disagree about {gap.num_tokens} tokens of version {step}, which both hold: "
        f"mean |dlogp| {gap.mean:.3g}, largest in segment {gap.segment} ({gap.of_segment:.3g}) and in trajectory "
        f"{gap.trajectory_id}: other weights, temperature or context? See docs/kpop.md#the-alarm and "
        f"`swe-rl inspect {config.run.dir} --trajectory {gap.trajectory_id} --logprobs`"
    )
