"""Which sampled tokens may move the policy, and with what weight.

Two engines give two probabilities to one token: p = exp(train_logprobs) is the trainer's replay under the weights
about to be updated, q = exp(infer_logprobs) is what the engine sampled with. In go both log-probabilities and the
mask of trainable tokens; out come the kept tokens, their detached weights, and counters that always sum. Nothing
here carries a gradient, reads a model, or knows where the tokens came from.

Shapes: every tensor is [N] or any one common shape; binary KL and ratios are computed in float64.

Rule         kept when                                    weight of a kept token
none         always                                       1
tis          always                                       min(p / q, high)
icepop       low <= p / q <= high                         p / q
kl_forward   D(p || q) <= phi                             by `importance_weight`
kl_reverse   D(q || p) <= phi                             by `importance_weight`
kpop         max(D(p || q), D(q || p)) <= phi             by `importance_weight`
kpop_soft    always                                       by `importance_weight`, times 1 / (1 + (D / phi)^sharpness)

"Always" means: both log-probabilities are finite and at most 0, and the token is not too stale.
`importance_weight`: none = 1, raw = p / q, clamped = min(p / q, weight_cap).

**KPop does not bound the ratio.** For small p and q the binary KL is about p log(p / q), so a rare token with
p / q = 44 is kept at phi = 0.1 and, with raw weights, can own the whole gradient. `clamped` caps it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Protocol

import torch
from torch import Tensor

from swe_rl.errors import ConfigError

POSITIVE_TOLERANCE = 1e-6  # a log-probability above 0 by more than rounding is an error of its engine
_MAX_LOG_RATIO = 80.0  # exp(80) still fits float32: a raw weight stays finite


class Reason(IntEnum):
    """What became of a token; a non-finite one is counted as such before anything else is asked."""

    NOT_TRAINABLE = 0
    KEPT = 1
    OVER_PHI = 2
    NONFINITE = 3
    STALE = 4


@dataclass(frozen=True, slots=True)
class MaskOptions:
    """Options of every rule; a rule ignores those that its line in the module's table does not name."""

    phi: float = 0.1
    low: float = 0.5
    high: float = 5.0
    eps_p: float = 1e-6
    importance_weight: str = "none"
    weight_cap: float = 2.0
    sharpness: float = 2.0
    stale: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("phi", "low", "high", "weight_cap", "sharpness"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"mask option {name} = {value}, expected a finite number above 0")
        if not 0 < self.eps_p < 0.5:
            raise ConfigError(f"mask option eps_p = {self.eps_p}, expected between 0 and 0.5")
        if self.low > self.high:
            raise ConfigError(f"mask options low = {self.low} > high = {self.high}, expected low <= high")
        if self.importance_weight not in ("none", "raw", "clamped"):
            raise ConfigError(f"mask option importance_weight = {self.importance_weight!r}; one of none, raw, clamped")


@dataclass(frozen=True, slots=True, eq=False)
class MaskResult:
    """`keep` bool; `weight` float, 0 where not kept; `divergence` float64; `reason` uint8 of `Reason`.

    `divergence` is max(D(p || q), D(q || p)) under every rule, so that rules share one axis; NaN where non-finite.
    counters: trainable = kept + over_phi + nonfinite + stale, always.
    """

    keep: Tensor
    weight: Tensor
    divergence: Tensor
    reason: Tensor
    counters: Mapping[str, int]


class MaskFunction(Protocol):
    def __call__(
        self, train_logprobs: Tensor, infer_logprobs: Tensor, trainable: Tensor, **options: Any
    ) -> MaskResult: ...


def binary_kl(logp: Tensor, logq: Tensor, eps_p: float = 1e-6) -> Tensor:
    """D_KL(Bern(p) || Bern(q)) elementwise from log-probabilities, float64, without gradient.

        D = p (log p - log q) + (1 - p) (log(1 - p) - log(1 - q))

    p and q are floored at distance `eps_p` from 1: a log-probability of 0.0 is a rounding of p < 1, and without the
    floor D against any smaller q would be infinite. Inputs of any float type are converted to float64 first, as
    1 - 1e-6 is 1 in bfloat16. NaN or infinite inputs give NaN or infinity. Source: the KPop report (Ring team, 2026).
    """
    ceiling = math.log1p(-eps_p)
    logp = logp.detach().to(torch.float64).clamp(max=ceiling)
    logq = logq.detach().to(torch.float64).clamp(max=ceiling)
    divergence = torch.exp(logp) * (logp - logq) - torch.expm1(logp) * (_log1m(logp) - _log1m(logq))
    return divergence.clamp(min=0.0)  # rounding can leave -1e-17


def _log1m(logp: Tensor) -> Tensor:
    """log(1 - exp(logp)) without cancellation on either side of p = 1/2."""
    return torch.where(logp > -math.log(2.0), torch.log(-torch.expm1(logp)), torch.log1p(-torch.exp(logp)))


@dataclass(frozen=True, slots=True)
class _Statistics:
    forward: Tensor
    reverse: Tensor
    log_ratio: Tensor

    @property
    def worse(self) -> Tensor:
        return torch.maximum(self.forward, self.reverse)


def _importance(s: _Statistics, o: MaskOptions) -> Tensor:
    if o.importance_weight == "none":
        return torch.ones_like(s.log_ratio)
    ratio = _ratio(s)
    return ratio.clamp(max=o.weight_cap) if o.importance_weight == "clamped" else ratio


def _ratio(s: _Statistics) -> Tensor:
    return torch.exp(s.log_ratio.clamp(max=_MAX_LOG_RATIO))


def _never(s: _Statistics, o: MaskOptions) -> Tensor:
    return torch.zeros_like(s.log_ratio, dtype=torch.bool)


def _outside_ratio(s: _Statistics, o: MaskOptions) -> Tensor:
    # Compared as logarithms: the ratio itself may overflow. p / q is train over infer: the bounds aren't symmetric.
    return (s.log_ratio < math.log(o.low)) | (s.log_ratio > math.log(o.high))


def _soft(s: _Statistics, o: MaskOptions) -> Tensor:
    return _importance(s, o) / (1.0 + (s.worse / o.phi) ** o.sharpness)


_Over = Callable[[_Statistics, MaskOptions], Tensor]
_Weight = Callable[[_Statistics, MaskOptions], Tensor]

_RULES: dict[str, tuple[_Over, _Weight]] = {
    "none": (_never, lambda s, o: torch.ones_like(s.log_ratio)),
    "tis": (_never, lambda s, o: _ratio(s).clamp(max=o.high)),
    "icepop": (_outside_ratio, lambda s, o: _ratio(s)),
    "kl_forward": (lambda s, o: s.forward > o.phi, _importance),
    "kl_reverse": (lambda s, o: s.reverse > o.phi, _importance),
    "kpop": (lambda s, o: s.worse > o.phi, _importance),
    "kpop_soft": (_never, _soft),
}


def _apply(rule: str, train: Tensor, infer: Tensor, trainable: Tensor, options: MaskOptions) -> MaskResult:
    train, infer = train.detach(), infer.detach()
    stale = torch.zeros_like(trainable) if options.stale is None else options.stale
    shapes = {tuple(t.shape) for t in (train, infer, trainable, stale)}
    if len(shapes) != 1 or trainable.dtype != torch.bool or stale.dtype != torch.bool:
        raise ValueError(f"mask {rule}: expected one shape and boolean trainable and stale, got shapes {shapes}")
    valid = _valid(train) & _valid(infer)
    # Non-finite values leave before any arithmetic: NaN compares false and would slip through as "not over".
    p = torch.where(valid, train, 0.0).to(torch.float64)
    q = torch.where(valid, infer, 0.0).to(torch.float64)
    s = _Statistics(binary_kl(p, q, options.eps_p), binary_kl(q, p, options.eps_p), p - q)
    is_over, weigh = _RULES[rule]
    reason = torch.full(trainable.shape, int(Reason.KEPT), dtype=torch.uint8, device=train.device)
    for code, where in (
        (Reason.OVER_PHI, is_over(s, options)),
        (Reason.STALE, stale),
        (Reason.NONFINITE, ~valid),
        (Reason.NOT_TRAINABLE, ~trainable),
    ):
        reason[where] = int(code)
    keep = reason == int(Reason.KEPT)
    dtype = torch.promote_types(train.dtype, torch.float32)
    return MaskResult(
        keep=keep,
        weight=torch.where(keep, weigh(s, options), 0.0).to(dtype),
        divergence=torch.where(valid, s.worse, math.nan),
        reason=reason,
        counters=_count(reason),
    )


def _valid(logprobs: Tensor) -> Tensor:
    return torch.isfinite(logprobs) & (logprobs <= POSITIVE_TOLERANCE)


def _count(reason: Tensor) -> dict[str, int]:
    number = torch.bincount(reason.flatten().to(torch.int64), minlength=len(Reason)).tolist()
    counters = {r.name.lower(): int(number[r]) for r in Reason if r != Reason.NOT_TRAINABLE}
    return {"trainable": sum(counters.values())} | counters


def _make(rule: str) -> MaskFunction:
    known = {f.name for f in fields(MaskOptions)}

    def apply(train_logprobs: Tensor, infer_logprobs: Tensor, trainable: Tensor, **options: Any) -> MaskResult:
        for name in options.keys() - known:
            raise ConfigError(f"mask {rule}: unknown option {name!r}; one of {', '.join(sorted(known))}")
        return _apply(rule, train_logprobs, infer_logprobs, trainable, MaskOptions(**options))

    apply.__name__ = rule
    apply.__doc__ = f"The rule {rule!r} of this module's table; raises ConfigError for a wrong option."
    return apply


MASKS: Mapping[str, MaskFunction] = {rule: _make(rule) for rule in _RULES}
