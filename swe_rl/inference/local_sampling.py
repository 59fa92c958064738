"""Draws tokens from logits over the full vocabulary, with randomness that belongs to the request.

Each request has its own stream of uniforms, keyed by seed, policy version, session and the count of the session's
requests: which other requests share a batch, and in which order they arrive, doesn't change what is drawn from equal
logits.
"""

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray

_BELOW_ONE = 1.0 - 1e-12


def uniforms(seed: int, version: int, session_id: str, request: int, count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1) for the tokens of one request; `request`: how many the session made before."""
    key = hashlib.blake2b(f"{seed}/{version}/{request}/{session_id}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little"))).random(count)


def sample(logits_BV: torch.Tensor, temperature_B: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """float64 [2, B]: drawn token ids and their log-probabilities, the latter from a float32 log-softmax.

    Temperature 0 takes the most likely token, with its log-probability at temperature 1.
    """
    is_greedy_B = temperature_B == 0
    scaled = torch.where(is_greedy_B, 1.0, temperature_B)[:, None]
    log_p_BV = torch.log_softmax(logits_BV / scaled, dim=-1)
    # inverse of the distribution function; float64 so that a large vocabulary doesn't round its tail away
    cumulative_BV = log_p_BV.double().exp_().cumsum_(dim=-1)
    threshold_B1 = uniform_B.clamp(max=_BELOW_ONE)[:, None] * cumulative_BV[:, -1:]
    drawn_B1 = torch.searchsorted(cumulative_BV, threshold_B1, right=True)
    drawn_B1.clamp_(max=logits_BV.shape[-1] - 1)  # logits that aren't finite; their log-probability tells the caller
    drawn_B1 = torch.where(is_greedy_B[:, None], log_p_BV.argmax(dim=-1, keepdim=True), drawn_B1)
    return torch.stack([drawn_B1.squeeze(1).double(), log_p_BV.gather(1, drawn_B1).squeeze(1).double()])
