"""Numbers that say how far the trainer and the engine disagree, from the token columns of one step.

All are taken over every finite trainable token *before* masking: a mask must not hide what it is there to cure. With
log r = train_logprobs - infer_logprobs on tokens that the engine sampled, k1 = mean(-log r) and
k3 = mean(r - 1 - log r) estimate KL(infer || train). Source: Schulman, "Approximating KL divergence" (2020).
"""

import numpy as np

from swe_rl.train.mask import Reason
from swe_rl.train.token_log import TokenColumns
from swe_rl.trajectory import SAMPLED_SEGMENTS, Segment


def describe_mismatch(columns: TokenColumns) -> dict[str, float]:
    """Metrics `mismatch/*`; empty when no token has two finite log-probabilities."""
    finite = columns.reason != int(Reason.NONFINITE)
    if not finite.any():
        return {}
    log_ratio = columns.train_logprobs[finite].astype(np.float64) - columns.infer_logprobs[finite]
    ratio = np.exp(np.minimum(log_ratio, 80.0))
    divergence = np.maximum(columns.divergence_forward, columns.divergence_reverse)[finite]
    gap = np.abs(log_ratio)
    metrics = {
        "mismatch/mean_abs_logprob_diff": float(gap.mean()),
        "mismatch/max_ratio": float(ratio.max()),
        "mismatch/min_ratio": float(ratio.min()),
        "mismatch/k1": float(-log_ratio.mean()),
        "mismatch/k3": float((ratio - 1.0 - log_ratio).mean()),
        "mismatch/binary_kl_mean": float(divergence.mean()),
        "mismatch/binary_kl_p99": float(np.quantile(divergence, 0.99)),
        "mismatch/binary_kl_max": float(divergence.max()),
    }
    staleness = columns.staleness[finite]
    for value in np.unique(staleness):
        metrics[f"mismatch/abs_diff_staleness_{value}"] = float(gap[staleness == value].mean())
    return metrics | _describe_routers(columns)


def _describe_routers(columns: TokenColumns) -> dict[str, float]:
    """Over (token, layer) pairs with recorded experts: every token has as many layers. Empty where there are none."""
    is_known = np.isfinite(columns.router_agreement)
    if not is_known.any():
        return {}
    agreement, staleness = columns.router_agreement[is_known].astype(np.float64), columns.staleness[is_known]
    by_staleness = {
        f"mismatch/router_agreement_staleness_{value}": float(agreement[staleness == value].mean())
        for value in np.unique(staleness)
    }
    return {"mismatch/router_agreement": float(agreement.mean())} | by_staleness


def describe_mask(columns: TokenColumns) -> dict[str, float]:
    """Metrics `mask/*`: four disjoint shares of the trainable tokens that sum to 1, and the kept share by segment."""
    total = len(columns)
    if total == 0:
        return {}
    metrics = {
        f"mask/{name}": float((columns.reason == int(reason)).sum()) / total
        for name, reason in (
            ("kept_fraction", Reason.KEPT),
            ("over_phi", Reason.OVER_PHI),
            ("nonfinite", Reason.NONFINITE),
            ("stale", Reason.STALE),
        )
    }
    metrics["mask/weight_max"] = float(columns.weight.max())
    for segment in sorted(SAMPLED_SEGMENTS):
        members = columns.segment == int(segment)
        if members.any():
            metrics[f"mask/kept_fraction_{Segment(segment).name.lower()}"] = float(columns.kept[members].mean())
    return metrics
