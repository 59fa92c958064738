"""The cold start: supervised training of a fresh tiny policy on demonstrations that really ran in the sandbox.

Trajectories of an expert (only its own tokens count), plain documents (issue and right source) and copying drills flow
in, a policy directory flows out. It knows no task and no expert: all comes in as data.
"""

import logging
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from swe_rl.config import ColdStartConfig
from swe_rl.errors import ConfigError
from swe_rl.model import save_policy, token_logprobs, use_packed_attention
from swe_rl.train.tiny import init_policy, save_tokenizer
from swe_rl.trajectory import Trajectory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Example:
    """One sequence: token ids [T] and the loss weight of each [T]."""

    token_ids: list[int]
    weights: list[float]


@dataclass(frozen=True, slots=True)
class Part:
    """Examples of one sort, and the weight of their mean loss."""

    examples: list[Example]
    weight: float


OnStep = Callable[[int, list[float]], None]
"""(step, mean loss of each part in nats)"""


def demonstration(trajectory: Trajectory) -> Example:
    """Weight 1 exactly where the expert spoke."""
    return Example(trajectory.token_ids.tolist(), trajectory.sampled.astype(float).tolist())


def document(text: str, tokenizer: Tokenizer) -> Example:
    token_ids = tokenizer.encode(text + "<|endoftext|>").ids
    return Example(token_ids, [1.0] * len(token_ids))


def drill(context: str, call: str, tokenizer: Tokenizer) -> Example:
    """Weight 1 exactly on the call."""
    before, after = tokenizer.encode(context).ids, tokenizer.encode(call).ids
    return Example([*before, *after], [0.0] * len(before) + [1.0] * len(after))


def cold_start(
    parts: Sequence[Part],
    tokenizer: Tokenizer,
    out_dir: Path,
    config: ColdStartConfig,
    on_step: OnStep | None = None,
) -> None:
    """Trains from scratch and writes the policy to `out_dir` in bfloat16. Deterministic for a seed on one machine.

    Each step draws `config.examples_per_step` of every part. Raises ConfigError if a part has fewer.
    """
    few = [len(part.examples) for part in parts if len(part.examples) < config.examples_per_step]
    if few:
        raise ConfigError(f"cold start: {few[0]} examples of a sort, expected at least {config.examples_per_step}")
    model = init_policy(config.seed)
    use_packed_attention(model)
    optimisers = _optimisers(model, config.lr)
    rng = random.Random(config.seed)
    for step in range(config.steps):
        _set_lr(optimisers, config.lr * _schedule(step, config))
        losses = [
            _backward(model, rng.sample(part.examples, config.examples_per_step), part.weight, config.dtype)
            for part in parts
        ]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        logger.info("step %d: losses %s", step, [round(loss, 4) for loss in losses])
        if on_step is not None:
            on_step(step, losses)
    save_tokenizer(tokenizer, out_dir)
    save_policy(model, out_dir, out_dir, dtype="bfloat16")


def _optimisers(model: torch.nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, AdamW for embeddings and norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    ids = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in ids]
    return [
        torch.optim.Muon(matrices, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def _schedule(step: int, config: ColdStartConfig) -> float:
    """Linear warm-up, then a cosine down to a twentieth."""
    warm = min(1.0, (step + 1) / config.warmup_steps)
    return warm * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / config.steps)))


def _set_lr(optimisers: Sequence[torch.optim.Optimizer], lr: float) -> None:
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = lr


def _backward(model: PreTrainedModel, examples: Sequence[Example], scale: float, dtype: str) -> float:
    """Adds the gradient of the weighted mean loss of `examples`, packed in one row; returns that mean in nats."""
    lengths = torch.tensor([len(example.token_ids) for example in examples])
    token_ids_N = torch.tensor([t for example in examples for t in example.token_ids])
    weights_N = torch.tensor([w for example in examples for w in example.weights])
    document_N = torch.repeat_interleave(torch.arange(len(examples)), lengths)
    is_first = torch.ones_like(weights_N, dtype=torch.bool)
    is_first[1:] = document_N[1:] != document_N[:-1]
    weights_N = weights_N.masked_fill(is_first, 0.0)
    logprobs_N = token_logprobs(
        model,
        token_ids_N,
        document_N,
        torch.ones_like(weights_N),
        chunk=1024,
        needed_N=weights_N > 0,
        compute_dtype=torch.bfloat16 if dtype == "bfloat16" else None,
    )
    loss = -(torch.where(weights_N > 0, logprobs_N, 0.0) * weights_N).sum() / weights_N.sum()
    torch.autograd.backward(scale * loss)
    return float(loss.detach())
