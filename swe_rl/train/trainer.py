"""One optimiser step on one batch: replay, mask, loss, AdamW.

A `TokenBatch` goes in; the weights of the model change in place, and metrics and per-token columns come out. Three
log-probabilities are kept apart: infer_logprobs (the engine's, in the batch), train_logprobs (the replay under the
weights about to be updated) and new_logprobs (during the update). The trainer reads no store and publishes nothing.

Shapes: N tokens of one microbatch (rows joined end to end).
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from swe_rl.config import Config
from swe_rl.errors import StoreError
from swe_rl.model import TokenScores
from swe_rl.train.batch import PackedRow, TokenBatch, join_rows
from swe_rl.train.checkpoint import StateWriter, load_state
from swe_rl.train.columns import Replay, replay_columns, token_columns
from swe_rl.train.loss import num_units, policy_loss, reference_kl, token_scale
from swe_rl.train.masking import Masking
from swe_rl.train.mismatch import describe_mask, describe_mismatch
from swe_rl.train.ranks import join_ranks
from swe_rl.train.token_log import TokenColumns
from swe_rl.train.weights import Weights

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """`is_skipped`: the weights did not move, as nothing was kept or a gradient was not finite."""

    metrics: Mapping[str, float]
    tokens: TokenColumns
    is_skipped: bool


@dataclass(slots=True)
class _Totals:
    """Sums over the optimiser updates of one step."""

    loss: float = 0.0
    grad_norm: float = 0.0
    entropy: float = 0.0
    reference_kl: float = 0.0
    num_clipped: int = 0
    num_updates: int = 0
    num_skipped: int = 0


class Trainer:
    """One policy's training. `version` is the number of steps behind the weights.

    Under `torchrun` every rank has one and calls the same methods with the same batch; each trains on its share, which
    the ranks of a context have in common.
    """

    def __init__(self, policy_dir: Path, config: Config, state_dir: Path) -> None:
        """`policy_dir` is the cold start: what training begins with, and the reference of `loss.kl_coef`."""
        torch.set_num_threads(config.train.num_threads)
        torch.manual_seed(config.run.seed)
        self.version = 0
        self.ranks = join_ranks(config.train.context_ranks)
        self._config = config
        self._policy_dir, self._state_dir = policy_dir, state_dir
        self._writer = StateWriter(state_dir, config.train.keep_last, config.train.keep_every)
        self._masking = Masking(config.mask, config.rollout.max_staleness)
        self._weights = Weights(policy_dir, config.train, self.ranks)
        self._reference = self._weights.reference() if config.loss.kl_coef > 0 else None

    def update(self, batch: TokenBatch) -> StepResult:
        """Trains on all rows once, in `train.minibatches` optimiser updates; the version rises by one."""
        started = time.perf_counter()
        totals = _Totals()
        minibatches = self._split(batch.rows)
        if len(minibatches) == 1:
            # One update: its own forward is the replay, so the ratio is exactly 1 and a second forward would be waste.
            done = self._update_once(minibatches[0], None, totals)
        else:
            replays = [[self._replay(row) for row in self._mine(rows)] for rows in minibatches]
            updates = zip(minibatches, replays, strict=True)
            done = [replay for rows, group in updates for replay in self._update_once(rows, group, totals)]
        mine = [replay_columns(replay, self._config.mask.eps_p) for replay in done]
        parts = [part for of_rank in self.ranks.gather(mine) for part in of_rank]
        columns = token_columns(batch, parts, self.version)
        metrics = dict(batch.metrics) | describe_mask(columns) | describe_mismatch(columns)
        metrics |= self._describe(totals, columns, batch) | {"time/update_s": time.perf_counter() - started}
        self._masking.adapt(columns)
        self.version += 1
        return StepResult(metrics, columns, is_skipped=totals.num_skipped == totals.num_updates)

    def export(self) -> Callable[[Path], None]:
        """Gathers the weights; what is returned writes a policy directory, rounded to what the engine computes with."""
        return self._weights.export(self._config.engine.dtype)

    def save_state(self, is_awaited: bool = True) -> None:
        """The first rank writes all that an exact resume needs; see `checkpoint`. Not awaited: while training goes on.

        Raises StoreError if the disk refuses, or refused the state before.
        """
        state = self._weights.state() | {
            "version": self.version,
            "random": torch.get_rng_state(),
            "masking": self._masking.state(),
        }
        self.ranks.share(lambda: self._writer.start(self.version, state))
        if is_awaited:
            self.finish_saving()

    def finish_saving(self) -> None:
        """Until the last state is on the disk; raises StoreError if it was refused."""
        self.ranks.share(self._writer.wait)

    def load_state(self, version: int) -> None:
        """Goes on from the state of `version`; raises StoreError if it isn't there or doesn't fit the model."""
        state = load_state(self._state_dir, version)
        try:
            self._weights.load_state(state)
            self._masking.load_state(state["masking"])
        except (KeyError, RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise StoreError(
                f"{self._state_dir}: state of version {version} is of another model than {self._policy_dir}: {reason}; "
                "give the run the policy.path, train.frozen and train.lora_* that it was started with"
            ) from error
        torch.set_rng_state(state["random"])
        self.version = int(state["version"])

    def _split(self, rows: Sequence[PackedRow]) -> list[list[PackedRow]]:
        """Rows of each optimiser update, joined to microbatches; striding spreads long rows over the updates."""
        num = max(1, min(self._config.train.minibatches, len(rows)))
        size = self._config.train.rows_per_microbatch
        parts = [rows[i::num] for i in range(num)]
        device = self.ranks.device
        return [[join_rows(part[j : j + size]).to(device) for j in range(0, len(part), size)] for part in parts]

    def _mine(self, rows: Sequence[PackedRow]) -> list[PackedRow]:
        """This rank's microbatches; ranks with one fewer get a silent one, as sharded weights are gathered by all."""
        return self.ranks.part(rows, PackedRow.silenced) if rows else []

    def _replay(self, row: PackedRow) -> Replay:
        with torch.no_grad():
            return self._replay_of(row, self._weights.scores(row), None)

    def _update_once(
        self, rows: Sequence[PackedRow], replays: Sequence[Replay] | None, totals: _Totals
    ) -> list[Replay]:
        """Sums the gradients of all microbatches, then steps; without `replays` each forward is its own replay."""
        denominator = sum(self._num_units(row, row.trainable_N) for row in rows)
        self._weights.zero_grad()
        done: list[Replay] = []
        value = 0.0
        for index, row in enumerate(self._mine(rows)):
            reference_N = None if self._reference is None else self._reference.logprobs(row)
            scores = self._weights.scores(row)
            replay = self._replay_of(row, scores, None if replays is None else replays[index])
            loss = self._loss(replay, scores.logprobs, reference_N, denominator, totals)
            torch.autograd.backward(loss)
            value += float(loss.detach())
            totals.entropy += float(scores.entropy.detach()[row.trainable_N].nansum())
            done.append(replay)
        num_kept = sum(self._num_units(replay.row, replay.mask.keep) for replay in done)
        value, all_kept = self.ranks.sum(value, num_kept)
        self._step(value, denominator, int(all_kept), totals)
        return done

    def _loss(
        self, replay: Replay, new_logprobs_N: Tensor, reference_N: Tensor | None, denominator: int, totals: _Totals
    ) -> Tensor:
        config, row, keep_N = self._config.loss, replay.row, replay.mask.keep
        counted_N = keep_N if config.denominator == "kept" else row.trainable_N
        scale_N = token_scale(config.aggregation, counted_N, row.document_N)
        loss = policy_loss(
            new_logprobs_N,
            replay.train_logprobs_N,
            row.advantage_N,
            replay.mask.weight * scale_N,
            keep_N,
            denominator=denominator,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
        )
        totals.num_clipped += loss.num_clipped
        if reference_N is None:
            return loss.value
        kl_N = reference_kl(config.kl_estimator, new_logprobs_N, reference_N, keep_N)
        totals.reference_kl += float(kl_N.detach().sum())
        return loss.value + config.kl_coef * (kl_N * scale_N).sum() / max(denominator, 1)

    def _num_units(self, row: PackedRow, counted_N: Tensor) -> int:
        config = self._config.loss
        return num_units(config.aggregation, counted_N, row.document_N, config.constant_length)

    def _replay_of(self, row: PackedRow, scores: TokenScores, before: Replay | None) -> Replay:
        """Of the only update of a step its own forward is the replay; `reference` = theta masks by it in any case."""
        if before is not None and self._config.mask.reference == "theta_old":
            return before
        new_logprobs_N = scores.logprobs.detach()
        mask = self._masking(row, new_logprobs_N, self.version)
        if before is not None:
            return replace(before, mask=mask)
        return Replay(row, new_logprobs_N, mask, scores.router_agreement)

    def _step(self, value: float, denominator: int, num_kept: int, totals: _Totals) -> None:
        """Clips and applies the summed gradient. Without a kept token there is nothing to learn: no step, no decay."""
        totals.num_updates += 1
        if num_kept == 0:
            totals.num_skipped += 1
            return
        if self._config.loss.denominator == "kept":
            # The loss is linear in its denominator, and what is kept is known only after the last forward.
            scale = denominator / num_kept
            value *= scale
            self._weights.scale_gradient(scale)
        totals.loss += value
        norm = self._weights.step(self._learning_rate())
        if not math.isfinite(norm):
            logger.warning("step %d: gradient norm is %s, the update is skipped", self.version, norm)
            totals.num_skipped += 1
            return
        totals.grad_norm = max(totals.grad_norm, norm)

    def _learning_rate(self) -> float:
        """Of the update that makes `version` + 1: warm-up, then the schedule; a function of the version alone."""
        train = self._config.train
        warm = min(1.0, (self.version + 1) / train.warmup_steps) if train.warmup_steps else 1.0
        if train.schedule == "constant":
            return train.lr * warm
        progress = (self.version - train.warmup_steps) / max(1, train.steps - train.warmup_steps)
        return train.lr * warm * (1.0 - 0.9 * min(1.0, max(0.0, progress)))

    def _describe(self, totals: _Totals, columns: TokenColumns, batch: TokenBatch) -> dict[str, float]:
        num_kept = max(int(columns.kept.sum()), 1)
        num_clipped, entropy, kl = self.ranks.sum(totals.num_clipped, totals.entropy, totals.reference_kl)
        of_reference = {} if self._reference is None else {"train/reference_kl": kl / num_kept}
        return of_reference | {
            "train/loss": totals.loss / totals.num_updates,
            "train/grad_norm": totals.grad_norm,
            "train/clip_fraction": num_clipped / num_kept,
            "train/entropy": entropy / max(len(columns), 1),
            "train/num_tokens": float(sum(len(row) for row in batch.rows)),
            "train/num_trainable_tokens": float(len(columns)),
            "train/num_trajectories": float(len(batch.trajectories)),
            "train/num_skipped_updates": float(totals.num_skipped),
            "train/lr": self._learning_rate(),
            "mask/phi": self._masking.phi,
        }
