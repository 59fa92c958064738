"""The consumer: takes groups from the rollout store, updates the policy, publishes it.

    rollouts.take -> build_batch -> trainer.update -> logs and state -> policies.publish (consumes the groups)

Step s (from 0) turns policy version s into s + 1; version 0 is the cold start. Publishing is the commit point: whatever
was written before it for a step that never got published is written again, identically, by the next process. A state is
written while the next steps run; a process that finds no state of the newest policy begins at an older one, or at the
cold start, and repeats the steps since on the groups that they consumed. The producer is another process or thread,
never called from here.
"""

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from swe_rl.config import Config
from swe_rl.errors import StoreError
from swe_rl.metrics import MetricsWriter
from swe_rl.model import check_policy_dir
from swe_rl.returns import ReturnRule
from swe_rl.store.policies import PolicyManifest, PolicyStore
from swe_rl.store.rollouts import RolloutStore
from swe_rl.store.steps import StepRule
from swe_rl.train.adapters import ADAPTER_DIR
from swe_rl.train.alarm import check_mismatch
from swe_rl.train.batch import TokenBatch, build_batch
from swe_rl.train.checkpoint import saved_versions
from swe_rl.train.ranks import join_ranks
from swe_rl.train.token_log import TokenColumns, write_token_log
from swe_rl.train.trainer import Trainer
from swe_rl.trajectory import Group

logger = logging.getLogger(__name__)

OnStep = Callable[[int, Mapping[str, float]], None]


def train_loop(
    config: Config, on_step: OnStep | None = None, *, group_timeout_s: float = 900.0, poll_s: float = 0.1
) -> int:
    """Runs from the latest published version to `train.steps`; returns the version that is then the latest.

    `on_step(step, metrics)` is called after each publish. Raises StoreError if the producer stores no new group for
    `group_timeout_s`.
    """
    needed = StepRule.of(config.rollout, ReturnRule.of(config).has_signal)
    with _stores(config) as (rollouts, policies):
        trainer = _start(config, rollouts, policies)
        ranks = trainer.ranks
        with _Log(config.run.dir, trainer) as log:
            for step in range(trainer.version, config.train.steps):
                started = time.perf_counter()
                groups = ranks.share(partial(_wait_for_groups, rollouts, config, step, needed, group_timeout_s, poll_s))
                waited = time.perf_counter()
                result = trainer.update(_batch(groups, config, step))
                log.tokens(step, result.tokens)
                alarm = ranks.share(partial(check_mismatch, result.tokens, step, config))
                if trainer.version % config.train.save_every == 0 or trainer.version == config.train.steps:
                    trainer.save_state(is_awaited=False)
                metrics = {
                    **result.metrics,
                    **alarm,
                    "rollout/num_backfilled": float(len(groups) - needed.num_groups),
                    "time/wait_s": waited - started,
                    "time/step_s": time.perf_counter() - started,
                }
                log.metrics(step, metrics)
                write, consumed = trainer.export(), [group.group_id for group in groups]
                ranks.share(partial(policies.publish, write, trainer.version, consumed))
                if on_step is not None and ranks.is_first:
                    on_step(step, metrics)
            trainer.finish_saving()
        return trainer.version


class _Log:
    """What a run keeps of each step besides weights; the first rank writes."""

    def __init__(self, run_dir: Path, trainer: Trainer) -> None:
        self._run_dir, self._is_first = run_dir, trainer.ranks.is_first
        if self._is_first:
            self._board = SummaryWriter(str(run_dir / "tensorboard"), purge_step=trainer.version)
            self._file = MetricsWriter(run_dir / "metrics.jsonl")

    def __enter__(self) -> "_Log":
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_first:
            self._board.close()

    def tokens(self, step: int, tokens: TokenColumns) -> None:
        if self._is_first:
            write_token_log(self._run_dir, step, tokens)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._is_first:
            self._file.write(step, metrics)
            for name, value in metrics.items():
                self._board.add_scalar(name, value, step)


def publish_cold_start(config: Config, policies: PolicyStore) -> PolicyManifest:
    """Version 0 is a copy of `policy.path`; does nothing if a version is already published."""
    latest = policies.latest()
    if latest is not None:
        return latest
    source = config.policy.path
    check_policy_dir(source)
    # adapters that lie beside its weights are merged into them already, and of another run's cold start
    other = shutil.ignore_patterns(ADAPTER_DIR)
    return policies.publish(lambda out_dir: shutil.copytree(source, out_dir, dirs_exist_ok=True, ignore=other), 0)


def _start(config: Config, rollouts: RolloutStore, policies: PolicyStore) -> Trainer:
    latest = join_ranks().share(lambda: publish_cold_start(config, policies))
    state_dir = config.run.dir / "state"
    trainer = Trainer(policies.get(0).path, config, state_dir)
    saved = trainer.ranks.share(partial(saved_versions, state_dir))
    if begun := [version for version in saved if version <= latest.version]:
        trainer.load_state(begun[-1])
        logger.info("resumed at policy version %d of %s", trainer.version, config.run.dir)
    while trainer.version < latest.version:
        groups = trainer.ranks.share(partial(_consumed, rollouts, trainer.version + 1))
        trainer.update(_batch(groups, config, trainer.version))
        logger.info("repeated the step to version %d, whose state was not written", trainer.version)
    return trainer


def _consumed(rollouts: RolloutStore, version: int) -> list[Group]:
    """The groups that made `version`, in the order in which they were taken."""
    return [rollouts.get(row.index) for row in rollouts.groups() if row.consumed_by == version]


def _batch(groups: list[Group], config: Config, step: int) -> TokenBatch:
    train = config.train
    return build_batch(
        groups,
        row_tokens=train.row_tokens,
        rule=ReturnRule.of(config),
        shared_prefix=train.shared_prefix,
        replay_routing=train.replay_routing,
        shuffle_seed=(config.run.seed, step) if train.shuffle_rewards else None,
    )


def _wait_for_groups(
    rollouts: RolloutStore, config: Config, version: int, needed: StepRule, timeout_s: float, poll_s: float
) -> list[Group]:
    """Polls until a step's groups are there; each newly stored group is a heartbeat of the producer."""
    num_written, beat = -1, time.monotonic()
    while True:
        groups = rollouts.take(needed, version, config.rollout.max_staleness)
        if groups is not None:
            _tell_a_shortage(groups, version, needed)
            return groups
        counts = rollouts.counts()
        if counts.written != num_written:
            num_written, beat = counts.written, time.monotonic()
        if time.monotonic() - beat > timeout_s:
            kind = " with a signal" if needed.max_extra else ""
            raise StoreError(
                f"{config.run.dir}: no new group for {timeout_s:.0f} s at policy version {version}; {counts.waiting} "
                f"waiting, {needed.num_groups}{kind} needed: is the producer (swe-rl rollout) alive?"
            )
        time.sleep(poll_s)


def _tell_a_shortage(groups: list[Group], version: int, needed: StepRule) -> None:
    """One line for a step that back-fill could not fill."""
    num_found = sum(needed.has_signal(group.trajectories) for group in groups) if needed.max_extra else len(groups)
    if num_found < needed.num_groups:
        logger.warning(
            "step %d: %d groups with a signal, %d wanted; %d carry none, and rollout.max_backfill adds no more",
            version, num_found, needed.num_groups, len(groups) - num_found,
        )  # fmt: skip


@contextmanager
def _stores(config: Config) -> Iterator[tuple[RolloutStore, PolicyStore]]:
    rollouts = RolloutStore(Path(config.run.dir), config.run.store_url)
    policies = PolicyStore(Path(config.run.dir), config.run.store_url)
    try:
        yield rollouts, policies
    finally:
        rollouts.close()
        policies.close()
