"""One evaluation: a policy works on every task of a held-out split, several times, and once greedily.

A policy directory and a split flow in, an `EvalResult` flows out. Episodes aren't stored as rollouts: nothing can train
on them. A finished evaluation of the same weights, tasks and settings is reused; a killed one goes on.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.agent.loop import run_episode
from swe_rl.agent.render import Renderer
from swe_rl.config import Config
from swe_rl.errors import ConfigError, EngineUnavailableError, SandboxError, SandboxUnavailableError
from swe_rl.eval.guard import check_held_out
from swe_rl.eval.result import EpisodeLog, EpisodeRow, EvalResult, read_result, summarise, write_result
from swe_rl.inference.engine import Engine
from swe_rl.store.files import sha256_bytes
from swe_rl.store.policies import hash_weights
from swe_rl.trajectory import StopReason, Trajectory
from swe_rl.wire import TaskInfo

if TYPE_CHECKING:
    from swe_rl.client import SandboxClient

logger = logging.getLogger(__name__)

OnEpisode = Callable[[EpisodeRow, int, int], None]
"""(the episode that ended, how many have, how many there are)"""


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """What every episode shares."""

    name: str
    client: "SandboxClient"
    engine: Engine
    renderer: Renderer
    config: Config
    slots: asyncio.Semaphore
    retry_delay_s: float


async def evaluate(
    config: Config,
    policy_dir: Path,
    client: "SandboxClient",
    engine: Engine,
    renderer: Renderer,
    *,
    name: str,
    split: str | None = None,
    is_greedy: bool | None = None,
    on_episode: OnEpisode | None = None,
    retry_delay_s: float = 1.0,
) -> EvalResult:
    """Evaluates `policy_dir`, which the engine is told to load; `split` and `is_greedy` default to the config's.

    Raises SplitError if the policy was trained on the split or on one of its tasks, TaskError or ConfigError if there
    are too few tasks, ConfigError if a k exceeds the samples, and the environment's or the engine's error if every
    single episode was a fault of it.
    """
    split = config.eval.split if split is None else split
    is_greedy = config.eval.greedy if is_greedy is None else is_greedy
    _check_ks(config)
    tasks = _choose(await client.list_tasks(split), config, split)
    manifest = check_held_out(policy_dir, split, [task.task_id for task in tasks])
    key = _key(config, policy_dir, tasks, split, is_greedy)
    done = read_result(config.run.dir, name)
    if done is not None and done.key == key:
        logger.info("evaluation %s is done already: %s", name, config.run.dir)
        return done
    started = time.monotonic()
    version = 0 if manifest is None else manifest.version
    await engine.load(policy_dir, version)
    slots = asyncio.Semaphore(config.rollout.concurrency)
    shared = _Evaluation(name, client, engine, renderer, config, slots, retry_delay_s)
    rows = await _run_all(shared, tasks, EpisodeLog(config.run.dir, name, key), is_greedy, on_episode)
    _check_faults(rows)
    labels = {task.task_id: {**task.labels, "language": task.language} for task in tasks}
    result = EvalResult(
        name=name,
        policy=str(policy_dir),
        version=version,
        key=key,
        split=split,
        num_tasks=len(tasks),
        samples_per_task=config.eval.samples_per_task,
        num_runs=config.eval.num_runs,
        wall_s=time.monotonic() - started,
        **summarise(rows, labels, config.eval.ks, config.run.seed),
    )
    write_result(config.run.dir, result)
    return result


def _check_ks(config: Config) -> None:
    n = config.eval.samples_per_task
    if not all(1 <= k <= n for k in config.eval.ks):
        raise ConfigError(f"eval.ks = {config.eval.ks}, expected 1 to eval.samples_per_task = {n}")


def _choose(tasks: Sequence[TaskInfo], config: Config, split: str) -> list[TaskInfo]:
    """All tasks of the split, or a fixed sample of them; the order of `tasks` plays no part."""
    ordered = sorted((task for task in tasks if task.split == split), key=lambda task: task.task_id)
    if not ordered:
        raise ConfigError(f"eval.split = {split!r}: the sandbox service has no task in it; check sandbox.tasks")
    if config.eval.num_tasks > len(ordered):
        raise ConfigError(f"eval.num_tasks = {config.eval.num_tasks}, but split {split!r} has {len(ordered)} tasks")
    if not config.eval.num_tasks:
        return ordered
    chosen = random.Random(config.run.seed).sample(ordered, config.eval.num_tasks)
    return sorted(chosen, key=lambda task: task.task_id)


def _key(config: Config, policy_dir: Path, tasks: Sequence[TaskInfo], split: str, is_greedy: bool) -> dict[str, Any]:
    """All that decides the numbers, as plain JSON."""
    contents = "".join(f"{task.task_id} {task.content_sha256}\n" for task in tasks)
    return {
        "weights_sha256": hash_weights(policy_dir),
        "split": split,
        "tasks_sha256": sha256_bytes(contents.encode()),
        "greedy": is_greedy,
        "seed": config.run.seed,
        "samples_per_task": config.eval.samples_per_task,
        "num_runs": config.eval.num_runs,
        "ks": list(config.eval.ks),
        "agent": config.agent.model_dump(mode="json"),
        "sampling": config.sampling.model_dump(mode="json"),
        "engine": [config.engine.kind, config.engine.dtype, config.engine.max_context],
        "exec_timeout_s": config.sandbox.exec_timeout_s,
    }


async def _run_all(
    shared: _Evaluation, tasks: Sequence[TaskInfo], log: EpisodeLog, is_greedy: bool, on_episode: OnEpisode | None
) -> list[EpisodeRow]:
    """Every episode that the log doesn't hold yet; the rows of all, in a fixed order."""
    settings = shared.config.eval
    places = [(run, sample) for run in range(settings.num_runs) for sample in range(settings.samples_per_task)]
    places += [(-1, -1)] if is_greedy else []
    wanted = [(task, run, sample) for run, sample in places for task in tasks]

    async def run_one(task: TaskInfo, run: int, sample: int) -> None:
        row = await _run_patiently(shared, task, run, sample)
        log.add(row)
        if on_episode is not None:
            on_episode(row, len(log.rows), len(wanted))

    try:
        async with asyncio.TaskGroup() as group:
            for task, run, sample in wanted:
                if (task.task_id, run, sample) not in log.rows:
                    group.create_task(run_one(task, run, sample))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [log.rows[task.task_id, run, sample] for task, run, sample in wanted]


async def _run_patiently(shared: _Evaluation, task: TaskInfo, run: int, sample: int) -> EpisodeRow:
    """One episode; a fault of the engine or the environment is tried again, and stays a row if it stays."""
    place = "greedy" if run < 0 else f"r{run}-s{sample}"
    retries = shared.config.rollout.max_episode_retries
    for attempt in range(retries + 1):
        trajectory_id = f"eval-{shared.name}-{task.task_id}-{place}-a{attempt}"
        async with shared.slots:
            started = time.monotonic()
            trajectory = await _run_once(shared, task, trajectory_id, 0.0 if run < 0 else None)
            seconds = time.monotonic() - started
        if (trajectory is not None and trajectory.reward is not None) or attempt == retries:
            break
        await asyncio.sleep(shared.retry_delay_s * 2**attempt)
    return _row(task, run, sample, trajectory_id, trajectory, attempt, seconds)


async def _run_once(
    shared: _Evaluation, task: TaskInfo, trajectory_id: str, temperature: float | None
) -> Trajectory | None:
    """None if the environment failed before there was a token."""
    try:
        return await run_episode(
            task,
            client=shared.client,
            engine=shared.engine,
            renderer=shared.renderer,
            config=shared.config,
            trajectory_id=trajectory_id,
            group_id=f"eval-{shared.name}",
            temperature=shared.config.sampling.temperature if temperature is None else temperature,
        )
    except SandboxError as error:
        logger.warning("%s: can't begin: %s", trajectory_id, error)
        return None


def _row(
    task: TaskInfo, run: int, sample: int, trajectory_id: str, t: Trajectory | None, num_retries: int, seconds: float
) -> EpisodeRow:
    verdict = None if t is None else t.verdict
    turns = () if t is None else t.turns
    return EpisodeRow(
        task_id=task.task_id,
        run=run,
        sample=sample,
        trajectory_id=trajectory_id,
        is_resolved=verdict is not None and verdict.is_resolved,
        is_fault=verdict is None or verdict.reward is None,
        outcome=None if verdict is None else verdict.outcome.value,
        stop_reason=StopReason.SANDBOX_ERROR.value if t is None else t.stop_reason.value,
        num_tokens=0 if t is None else len(t),
        num_sampled=0 if t is None else t.num_sampled,
        num_turns=len(turns),
        num_malformed=sum(turn.is_malformed for turn in turns),
        num_retries=num_retries,
        seconds=seconds,
    )


def _check_faults(rows: Sequence[EpisodeRow]) -> None:
    """A pass rate of 0 from a dead service would be a lie."""
    if not all(row.is_fault for row in rows):
        return
    is_engine = all(row.stop_reason == StopReason.ENGINE_ERROR for row in rows)
    kind = EngineUnavailableError if is_engine else SandboxUnavailableError
    raise kind(
        f"evaluation: all {len(rows)} episodes failed for a fault of the {'engine' if is_engine else 'environment'}; "
        "nothing was measured: see the log, mend it and start again"
    )
