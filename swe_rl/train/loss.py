"""The policy-gradient objective over one microbatch of tokens.

    r_t = exp(new_logprobs_t - train_logprobs_t)
    L   = - 1 / denominator * sum over kept t of  weight_t * min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t)

Source: PPO's clipped objective (Schulman et al. 2017) with IcePop's outer mask and weight. The caller gives the
denominator of the whole optimiser update, so the sum over microbatches does not depend on how they were cut.
Which tokens are kept is decided in `mask`, not here.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


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
