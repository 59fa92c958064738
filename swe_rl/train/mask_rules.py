"""The masking rules: when a token is over its bound, and what a kept token weighs.

`mask` asks; a rule answers from the statistics of each token (or, above the token level, of the unit the token
belongs to). Nothing here validates, counts or knows of staleness. All tensors are float64 of one shape.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_MAX_LOG_RATIO = 80.0  # exp(80) still fits float32: a raw weight stays finite


class RuleOptions(Protocol):
    """What a rule may read of `mask.MaskOptions`."""

    @property
    def phi(self) -> float | Tensor: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def importance_weight(self) -> str: ...
    @property
    def weight_cap(self) -> float: ...
    @property
    def sharpness(self) -> float: ...
    @property
    def soft_shape(self) -> str: ...
    @property
    def advantage(self) -> Tensor | None: ...


@dataclass(frozen=True, slots=True)
class Statistics:
    """D(p || q), D(q || p), log(p / q) and p - q: of a token, or their means over its unit."""

    forward: Tensor
    reverse: Tensor
    log_ratio: Tensor
    gap: Tensor

    @property
    def worse(self) -> Tensor:
        return torch.maximum(self.forward, self.reverse)


Over = Callable[[Statistics, RuleOptions], Tensor]
"""Bool: the token must not train."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`importance` is the weight meant by importance_weight = "rule"; `level` the unit meant by level = "rule"."""

    over: Over
    importance: str = "none"
    level: str = "token"
    is_soft: bool = False
    needs_advantage: bool = False


def weigh(rule: Rule, s: Statistics, o: RuleOptions) -> Tensor:
    """The weight of a token if it is kept."""
    kind = rule.importance if o.importance_weight == "rule" else o.importance_weight
    weight = torch.ones_like(s.log_ratio) if kind == "none" else torch.exp(s.log_ratio.clamp(max=_MAX_LOG_RATIO))
    if kind == "clamped":
        weight = weight.clamp(max=o.weight_cap)
    if kind == "capped_high":
        weight = weight.clamp(max=o.high)
    if not rule.is_soft:
        return weight
    strain = (s.worse / o.phi) ** o.sharpness
    return weight / (1.0 + strain) if o.soft_shape == "rational" else weight * torch.exp(-math.log(2.0) * strain)


def _never(s: Statistics, o: RuleOptions) -> Tensor:
    return torch.zeros_like(s.log_ratio, dtype=torch.bool)


def _outside_ratio(s: Statistics, o: RuleOptions) -> Tensor:
    # Compared as logarithms: the ratio itself may overflow. p / q is train over infer: the bounds aren't symmetric.
    return (s.log_ratio < math.log(o.low)) | (s.log_ratio > math.log(o.high))


def _moves_away(s: Statistics, o: RuleOptions) -> Tensor:
    """The update would push p further from q than it is."""
    assert o.advantage is not None
    return ((o.advantage > 0) & (s.gap > 0)) | ((o.advantage < 0) & (s.gap < 0))


RULES: dict[str, Rule] = {
    "none": Rule(_never),
    "tis": Rule(_never, importance="capped_high"),
    "icepop": Rule(_outside_ratio, importance="raw"),
    "geometric": Rule(_outside_ratio, level="sequence"),
    "kl_forward": Rule(lambda s, o: s.forward > o.phi),
    "kl_reverse": Rule(lambda s, o: s.reverse > o.phi),
    "kpop": Rule(lambda s, o: s.worse > o.phi),
    "kpop_soft": Rule(_never, is_soft=True),
    "dppo_tv": Rule(lambda s, o: (s.gap.abs() > o.phi) & _moves_away(s, o), needs_advantage=True),
    "dppo_kl": Rule(lambda s, o: (s.reverse > o.phi) & _moves_away(s, o), needs_advantage=True),
}
