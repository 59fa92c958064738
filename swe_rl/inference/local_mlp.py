"""The part of a decoder layer behind attention: one gated MLP, or several of which a router chooses some a token.

Hidden states go in, and what is added to them comes out; of a sparse one also the experts that it chose.

Shapes: N tokens, E hidden size, I inner size, X experts, K of them a token.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

Linear = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """gate_up [2 I, E], down [E, I]."""

    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None

    def __call__(self, hidden_NE: torch.Tensor, linear: Linear) -> tuple[torch.Tensor, None]:
        gate, up = linear(hidden_NE, self.gate_up, self.gate_up_bias).chunk(2, dim=-1)
        return linear(F.silu(gate).mul_(up), self.down, self.down_bias), None


@dataclass(frozen=True, slots=True)
class SparseMlp:
    """router [X, E], gate_up [X, 2 I, E], down [X, E, I]; `is_normalised`: the chosen experts' weights sum to 1."""

    router: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    num_chosen: int
    is_normalised: bool

    def __call__(self, hidden_NE: torch.Tensor, linear: Linear) -> tuple[torch.Tensor, torch.Tensor]:
        """The second is int64 [N, K], the likeliest expert first."""
        shares_NX = torch.softmax(linear(hidden_NE, self.router), dim=-1, dtype=torch.float32)
        shares_NK, experts_NK = torch.topk(shares_NX, self.num_chosen, dim=-1)
        if self.is_normalised:
            shares_NK = shares_NK / shares_NK.sum(dim=-1, keepdim=True)
        shares_NK = shares_NK.to(hidden_NE.dtype)
        out_NE = torch.zeros_like(hidden_NE)
        for expert in torch.unique(experts_NK).tolist():
            token, place = torch.where(experts_NK == expert)
            gate, up = linear(hidden_NE[token], self.gate_up[expert]).chunk(2, dim=-1)
            out = linear(F.silu(gate).mul_(up), self.down[expert])
            out_NE.index_add_(0, token, out * shares_NK[token, place, None])
        return out_NE, experts_NK
