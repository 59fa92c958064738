"""What `trainer_update.py` runs as `ours`, and what the mask and the metrics of that update cost.

The plain version beside it is the mask and its metrics as public trainers write them: padded float32 tensors, a masked
mean for each figure.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models

from swe_rl.config import Config, load_config
from swe_rl.model import save_policy
from swe_rl.train.batch import TokenBatch, build_batch
from swe_rl.train.columns import Replay, replay_columns, token_columns
from swe_rl.train.masking import Masking
from swe_rl.train.mismatch import describe_mask, describe_mismatch
from swe_rl.train.trainer import Trainer
from swe_rl.trajectory import Group, Segment, StopReason, Trajectory
from swe_rl.verdict import Outcome, Verdict


def update(args: argparse.Namespace, model: Any, episodes: Sequence[Any], scratch: Path) -> dict[str, float]:
    (scratch / "tokenizer").mkdir()
    Tokenizer(models.BPE()).save(str(scratch / "tokenizer" / "tokenizer.json"))
    save_policy(model, scratch / "tokenizer", scratch / "policy")
    del model
    config = load_config(
        None,
        [
            "mask.rule=none", "rollout.max_staleness=9", "train.lr=1e-5", "train.grad_clip=1e9",
            f"train.row_tokens={args.row_tokens}", f"train.num_threads={args.threads}",
            f"train.shared_prefix={args.shared_prefix}",
        ],
    )  # fmt: skip
    trainer = Trainer(scratch / "policy", config, scratch / "state")
    trainer.update(_batch(episodes[:2], config))
    batch = _batch(episodes, config)
    result = trainer.update(batch)
    mask_s = _best(lambda: _mask_and_metrics(batch, config))
    plain_s = _best(lambda: _plain_mask_and_metrics(batch))
    return {
        "seconds": result.metrics["time/update_s"],
        "loss": result.metrics["train/loss"],
        "grad_norm": result.metrics["train/grad_norm"],
        "computed_tokens": result.metrics["train/num_tokens"],
        "mask_s": mask_s,
        "plain_mask_s": plain_s,
    }


def _batch(episodes: Sequence[Any], config: Config) -> TokenBatch:
    groups: dict[int, list[Trajectory]] = {}
    for episode in episodes:
        members = groups.setdefault(episode.group, [])
        members.append(_trajectory(episode, f"g{episode.group}", len(members)))
    return build_batch(
        [Group(f"g{i}", "task", "train", i, 0, tuple(members)) for i, members in groups.items()],
        row_tokens=config.train.row_tokens,
        shared_prefix=config.train.shared_prefix,
    )


def _trajectory(episode: Any, group: str, member: int) -> Trajectory:
    sampled = episode.sampled
    return Trajectory(
        trajectory_id=f"{group}-{member}",
        group_id=group,
        task_id="task",
        split="train",
        token_ids=episode.token_ids.astype(np.int32),
        sampled=sampled,
        infer_logprobs=np.where(sampled, -12.0, np.nan).astype(np.float32),
        policy_version=np.where(sampled, 0, -1).astype(np.int32),
        segment=np.where(sampled, Segment.TEXT, Segment.OBSERVATION).astype(np.uint8),
        turn=((np.arange(len(sampled)) - episode.prompt) // 100).clip(min=-1).astype(np.int16),
        turns=(),
        temperature=1.0,
        stop_reason=StopReason.SUBMITTED,
        verdict=Verdict(outcome=Outcome.RESOLVED if episode.reward else Outcome.UNRESOLVED, reward=episode.reward),
    )


def _mask_and_metrics(batch: TokenBatch, config: Config) -> None:
    """All that an update does with log-probabilities besides the loss, under the rule with most to compute."""
    masking = Masking(config.mask.model_copy(update={"rule": "kpop"}), 9)
    parts = []
    for row in batch.rows:
        train_logprobs_N = torch.full(row.infer_logprobs_N.shape, -12.1)
        agreement_N = torch.full_like(train_logprobs_N, torch.nan)
        replay = Replay(row, train_logprobs_N, masking(row, train_logprobs_N, 0), agreement_N)
        parts.append(replay_columns(replay, config.mask.eps_p))
    columns = token_columns(batch, parts, 0)
    describe_mask(columns)
    describe_mismatch(columns)


def _plain_mask_and_metrics(batch: TokenBatch) -> None:
    longest = max(len(t) for t in batch.trajectories)
    shape = (len(batch.trajectories), longest)
    train, infer, mask = torch.full(shape, -12.1), torch.full(shape, -12.0), torch.zeros(shape)
    for index, trajectory in enumerate(batch.trajectories):
        mask[index, : len(trajectory)] = torch.from_numpy(trajectory.sampled.astype(np.float32))

    def mean(values: torch.Tensor) -> float:
        return float((values * mask).sum() / mask.sum().clamp(min=1))

    p, q = train.exp().clamp(1e-6, 1 - 1e-6), infer.exp().clamp(1e-6, 1 - 1e-6)
    forward = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    reverse = q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()
    worse = torch.maximum(forward, reverse)
    keep = (worse <= 0.1).float()
    log_ratio = (train - infer).clamp(-20, 20)
    ratio = log_ratio.exp()
    selected = mask.bool()
    for values in (log_ratio, log_ratio.abs(), ratio, ratio - 1 - log_ratio, forward, reverse, worse, keep, 1 - keep):
        mean(values)
        float(values[selected].max())
        float(values[selected].min())
    torch.quantile(worse[selected][:1_000_000], 0.99)


def _best(call: Callable[[], None], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)
