"""Which sampled tokens may move the policy, and with what weight.

Two engines give two probabilities to one token: p = exp(train_logprobs) is the trainer's replay under the weights
about to be updated, q = exp(infer_logprobs) is what the engine sampled with. In go both log-probabilities and the
mask of trainable tokens; out come the kept tokens, their detached weights, and counters that always sum. Nothing
here carries a gradient, reads a model, or knows where the tokens came from.

Shapes: every tensor is [N] or any one common shape; binary KL and ratios are computed in float64.

Rule         kept when                                              weight by importance_weight = "rule"
none         always                                                 1
tis          always                                                 min(p / q, high)
icepop       low <= p / q <= high                                   p / q
geometric    low <= geometric mean of p / q over the unit <= high   1
kl_forward   D(p || q) <= phi                                       1
kl_reverse   D(q || p) <= phi                                       1
kpop         max(D(p || q), D(q || p)) <= phi                       1
kpop_soft    always                                                 1 / (1 + s) or 2^-s, s = (D / phi)^sharpness
dppo_tv      |p - q| <= phi, or the update pulls p back to q        1
dppo_kl      D(q || p) <= phi, or the update pulls p back to q      1

"Always" means: both log-probabilities are finite and at most 0, and the token is not too stale.
`importance_weight` takes the place of the rule's own (the soft rule multiplies): none = 1, raw = p / q,
clamped = min(p / q, weight_cap). With `unit`, every statistic of a token is the mean over its unit's usable tokens
(for the ratio: the geometric mean), so that a unit is kept or masked as a whole.

**KPop does not bound the ratio.** For small p and q the binary KL is about p log(p / q), so a rare token with
p / q = 44 is kept at phi = 0.1 and, with raw weights, can own the whole gradient. `clamped` caps it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Protocol

import torch
from torch import Tensor

from swe_rl.errors import ConfigError
from swe_rl.train.mask_rules import RULES, Rule, Statistics, weigh

IMPORTANCE_WEIGHTS = ("rule", "none", "raw", "clamped")
SOFT_SHAPES = ("rational", "exponential")
POSITIVE_TOLERANCE = 1e-6  # a log-probability above 0 by more than rounding is an error of its engine


class Reason(IntEnum):
    """What became of a token; a non-finite one is counted as such before anything else is asked."""

    NOT_TRAINABLE = 0
    KEPT = 1
    OVER_PHI = 2
    NONFINITE = 3
    STALE = 4


@dataclass(frozen=True, slots=True)
class MaskOptions:
    """Options of every rule; a rule ignores those that its line in the module's table does not name.

    `phi` is one number or one for each token. `unit` int64: tokens with the same number share their statistics; None:
    each token stands for itself. `advantage` float: what the `dppo` rules are conditioned on. `stale` bool.
    """

    phi: float | Tensor = 0.1
    low: float = 0.5
    high: float = 5.0
    eps_p: float = 1e-6
    importance_weight: str = "rule"
    weight_cap: float = 2.0
    sharpness: float = 2.0
    soft_shape: str = "rational"
    unit: Tensor | None = None
    advantage: Tensor | None = None
    stale: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("phi", "low", "high", "weight_cap", "sharpness"):
            value = getattr(self, name)
            values = value.flatten().tolist() if isinstance(value, Tensor) else [value]
            if bad := [v for v in values if not (math.isfinite(v) and v > 0)]:
                raise ConfigError(f"mask option {name} = {bad[0]}, expected a finite number above 0")
        if not 0 < self.eps_p < 0.5:
            raise ConfigError(f"mask option eps_p = {self.eps_p}, expected between 0 and 0.5")
        if self.low > self.high:
            raise ConfigError(f"mask options low = {self.low} > high = {self.high}, expected low <= high")
        for name, known in (("importance_weight", IMPORTANCE_WEIGHTS), ("soft_shape", SOFT_SHAPES)):
            if getattr(self, name) not in known:
                raise ConfigError(f"mask option {name} = {getattr(self, name)!r}; one of {', '.join(known)}")


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


def _apply(name: str, train: Tensor, infer: Tensor, trainable: Tensor, options: MaskOptions) -> MaskResult:
    rule = RULES[name]
    train, infer = train.detach(), infer.detach()
    stale = torch.zeros_like(trainable) if options.stale is None else options.stale
    _check_shapes(name, rule, train, infer, trainable, stale, options)
    valid = _valid(train) & _valid(infer)
    # Non-finite values leave before any arithmetic: NaN compares false and would slip through as "not over".
    p = torch.where(valid, train, 0.0).to(torch.float64)
    q = torch.where(valid, infer, 0.0).to(torch.float64)
    of_token = Statistics(
        forward=binary_kl(p, q, options.eps_p),
        reverse=binary_kl(q, p, options.eps_p),
        log_ratio=p - q,
        gap=torch.exp(p) - torch.exp(q),
    )
    s = of_token if options.unit is None else _of_units(of_token, options.unit, trainable & valid & ~stale)
    reason = torch.full(trainable.shape, int(Reason.KEPT), dtype=torch.uint8, device=train.device)
    for code, where in (
        (Reason.OVER_PHI, rule.over(s, options)),
        (Reason.STALE, stale),
        (Reason.NONFINITE, ~valid),
        (Reason.NOT_TRAINABLE, ~trainable),
    ):
        reason[where] = int(code)
    keep = reason == int(Reason.KEPT)
    dtype = torch.promote_types(train.dtype, torch.float32)
    return MaskResult(
        keep=keep,
        weight=torch.where(keep, weigh(rule, s, options), 0.0).to(dtype),
        divergence=torch.where(valid, of_token.worse, math.nan),
        reason=reason,
        counters=_count(reason),
    )


def _check_shapes(
    name: str, rule: Rule, train: Tensor, infer: Tensor, trainable: Tensor, stale: Tensor, options: MaskOptions
) -> None:
    if rule.needs_advantage and options.advantage is None:
        raise ConfigError(f"mask {name}: needs the option advantage, one number a token")
    given = [options.unit, options.advantage, options.phi if isinstance(options.phi, Tensor) else None]
    shapes = {tuple(t.shape) for t in (train, infer, trainable, stale, *given) if t is not None}
    if len(shapes) != 1 or trainable.dtype != torch.bool or stale.dtype != torch.bool:
        raise ValueError(f"mask {name}: expected one shape and boolean trainable and stale, got shapes {shapes}")


def _of_units(s: Statistics, unit: Tensor, usable: Tensor) -> Statistics:
    """Each statistic's mean over the usable tokens of its unit, given back to every token of the unit."""
    _, index = torch.unique(unit, return_inverse=True)
    index = index.flatten()
    number = torch.zeros(int(index.max()) + 1 if index.numel() else 0, dtype=torch.float64, device=unit.device)
    number = number.index_add(0, index, usable.flatten().to(torch.float64))

    def mean(values: Tensor) -> Tensor:
        total = torch.zeros_like(number).index_add(0, index, torch.where(usable, values, 0.0).flatten())
        return (total / number.clamp(min=1.0))[index].reshape(values.shape)

    return Statistics(mean(s.forward), mean(s.reverse), mean(s.log_ratio), mean(s.gap))


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


MASKS: Mapping[str, MaskFunction] = {rule: _make(rule) for rule in RULES}
