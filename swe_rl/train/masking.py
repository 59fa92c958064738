"""Applies a run's masking rule to packed rows: thresholds by segment, units above the token, a threshold that adapts.

A row and the trainer's log-probabilities go in, a `MaskResult` comes out. Between steps the threshold may move so that
the kept fraction stays near a target; that one number is part of a checkpoint.

Shapes: N tokens of one row.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swe_rl.config import MaskConfig
from swe_rl.errors import ConfigError
from swe_rl.train.batch import PackedRow
from swe_rl.train.mask import MASKS, MaskResult, Reason
from swe_rl.train.mask_rules import RULES
from swe_rl.train.token_log import TokenColumns
from swe_rl.trajectory import SAMPLED_SEGMENTS

_SMALLEST_PHI = 1e-12


class Masking:
    """One run's mask. `phi` is the threshold of now; it moves only in `adapt`."""

    def __init__(self, config: MaskConfig, max_staleness: int) -> None:
        """Raises ConfigError for an entry of `phi_by_segment` that is no segment."""
        known = {segment.name.lower(): int(segment) for segment in sorted(SAMPLED_SEGMENTS)}
        if wrong := sorted(set(config.phi_by_segment) - set(known)):
            raise ConfigError(f"mask.phi_by_segment: no segment {wrong[0]!r}; one of {', '.join(known)}")
        self.phi = config.phi
        self._config = config
        self._max_staleness = max_staleness
        self._level = RULES[config.rule].level if config.level == "rule" else config.level
        self._factors = torch.ones(max(known.values()) + 1, dtype=torch.float64)
        for name, phi in config.phi_by_segment.items():
            self._factors[known[name]] = phi / config.phi

    def __call__(self, row: PackedRow, train_logprobs_N: Tensor, version: int) -> MaskResult:
        """`version` is that of the weights about to be updated: a token's staleness is counted from it."""
        config = self._config
        return MASKS[config.rule](
            train_logprobs_N,
            row.infer_logprobs_N,
            row.trainable_N,
            phi=self._phi_of(row),
            low=config.low,
            high=config.high,
            eps_p=config.eps_p,
            importance_weight=config.importance_weight,
            weight_cap=config.weight_cap,
            sharpness=config.sharpness,
            soft_shape=config.soft_shape,
            unit=None if self._level == "token" else units(row, self._level),
            advantage=row.advantage_N,
            stale=row.trainable_N & (version - row.version_N > self._max_staleness),
        )

    def _phi_of(self, row: PackedRow) -> float | Tensor:
        if not self._config.phi_by_segment:
            return self.phi
        return self.phi * self._factors.to(row.segment_N.device)[row.segment_N.long().clamp(min=0)]

    def adapt(self, tokens: TokenColumns) -> None:
        """Moves `phi` towards the divergence that `target_kept` of a step's judged tokens don't exceed."""
        target = self._config.target_kept
        judged = np.isin(tokens.reason, (int(Reason.KEPT), int(Reason.OVER_PHI)))
        if target is None or not judged.any():
            return
        worse = np.maximum(tokens.divergence_forward, tokens.divergence_reverse)[judged]
        wanted = max(float(np.quantile(worse, target)), _SMALLEST_PHI)
        rate = self._config.adapt_rate
        self.phi = math.exp((1.0 - rate) * math.log(self.phi) + rate * math.log(wanted))

    def state(self) -> dict[str, float]:
        return {"phi": self.phi}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.phi = float(state["phi"])


def units(row: PackedRow, level: str) -> Tensor:
    """Numbers of the units [N] int64: `sequence` is a trajectory, `segment` a run of one segment within one turn.

    What lies between two runs (an observation, another segment) parts them.
    """
    if level == "sequence":
        return row.document_N
    changed = torch.zeros_like(row.trainable_N)
    for column in (row.document_N, row.turn_N, row.segment_N, row.trainable_N):
        changed[1:] |= column[1:] != column[:-1]
    return torch.cumsum(changed.long(), 0)
