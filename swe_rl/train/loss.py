"""The policy-gradient objective over one microbatch of tokens.

    r_t = exp(new_logprobs_t - train_logprobs_t)
    L   = - 1 / denominator * sum over kept t of  weight_t * min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t)

What the sum is divided by, and so what one token is worth:

    token_mean     every token the same: the number of tokens                       (DAPO, verl's default)
    sequence_sum   the number of sequences: a long episode weighs more
    sequence_mean  each sequence's mean, then the mean of those: all episodes weigh the same          (GRPO)
    constant       number of sequences times one length for all: no bias by length                (Dr. GRPO)

Source: PPO's clipped objective (Schulman et al. 2017) with IcePop's outer mask and weight. The caller gives the
denominator of the whole optimiser update, so the sum over microbatches does not depend on how they were cut.
Which tokens are kept is decided in `mask`, not here.

A KL to a reference policy may be added, over the same tokens, scale and denominator, without the mask's weight. With
d = reference_logprobs - new_logprobs, a token's estimate of KL(new || reference) is

    k2 = d^2 / 2          its gradient is that of the KL, where the tokens are the new policy's own
    k3 = exp(d) - 1 - d   unbiased and never negative; its gradient is that of KL(reference || new)

Source: Schulman, "Approximating KL divergence" (2020); k3 as in GRPO (Shao et al. 2024).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token_mean", "sequence_sum", "sequence_mean", "constant"]
KlEstimator = Literal["k2", "k3"]


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """`value` is a scalar attached to the graph of `new_logprobs`, also when nothing is kept."""

    value: Tensor
    num_clipped: int


def policy_loss(
    new_logprobs: Tensor,
    train_logprobs: Tensor,
    advantage: Tensor,
    weight: Tensor,
    keep: Tensor,
    *,
    denominator: float,
    clip_low: float,
    clip_high: float,
) -> Loss:
    """The loss of the module's formula; all tensors [N], only `new_logprobs` carries a gradient.

    A value at a position that is not kept never reaches the loss or a gradient, be it NaN or infinite.
    """
    zero = torch.zeros((), dtype=new_logprobs.dtype, device=new_logprobs.device)
    # where, not multiplication, and before exp: 0 * NaN is NaN, and so is the gradient of exp at infinity times 0.
    log_ratio = torch.where(keep, new_logprobs - train_logprobs.detach(), zero)
    advantage = torch.where(keep, advantage.to(new_logprobs.dtype), zero)
    weight = torch.where(keep, weight.detach().to(new_logprobs.dtype), zero)
    ratio = torch.exp(log_ratio)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    unclipped_gain, clipped_gain = ratio * advantage, clipped * advantage
    gain = weight * torch.minimum(unclipped_gain, clipped_gain)
    is_clipped = keep & (clipped_gain < unclipped_gain)
    return Loss(value=-gain.sum() / max(denominator, 1.0), num_clipped=int(is_clipped.sum()))


def reference_kl(estimator: KlEstimator, new_logprobs: Tensor, reference_logprobs: Tensor, keep: Tensor) -> Tensor:
    """The module's estimate for each token, 0 where not kept; only `new_logprobs` carries a gradient."""
    zero = torch.zeros((), dtype=new_logprobs.dtype, device=new_logprobs.device)
    difference = torch.where(keep, reference_logprobs.detach() - new_logprobs, zero)
    return difference.square() / 2 if estimator == "k2" else torch.expm1(difference) - difference


def num_units(aggregation: Aggregation, counted_N: Tensor, document_N: Tensor, constant_length: int) -> int:
    """A row's part of the denominator; `counted_N` bool marks the tokens that count. Rows hold whole sequences."""
    if aggregation == "token_mean":
        return int(counted_N.sum())
    num_sequences = int(torch.unique(document_N[counted_N]).numel())
    return num_sequences * (constant_length if aggregation == "constant" else 1)


def token_scale(aggregation: Aggregation, counted_N: Tensor, document_N: Tensor) -> Tensor:
    """A token's factor before the sum, float32 [N]: 1, or 1 / the number of its sequence's counted tokens."""
    if aggregation != "sequence_mean":
        return torch.ones(counted_N.shape, device=counted_N.device)
    lengths = torch.bincount(document_N[counted_N], minlength=int(document_N.max()) + 1)
    return 1.0 / lengths.clamp(min=1)[document_N].float()
