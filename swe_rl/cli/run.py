"""`swe-rl run`: the whole loop in one command, and the same command again after any crash.

    tasks -> sandbox service -> evaluate version 0 -> rollout worker + trainer -> evaluate the last version -> report

The worker and the trainer are processes of their own that meet in the run directory's stores; this one only starts
them, watches them and shows what they say. Every stage that is already done is found done.
"""

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rl.errors import ConfigError, SweRlError

if TYPE_CHECKING:
    from swe_rl.cli.children import Child
    from swe_rl.config import Config
    from swe_rl.eval.result import EvalResult

HELP = "everything: service, evaluation, training, evaluation, report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", help="TOML file, or the name of a shipped one, e.g. quickstart")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one key")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved configuration and stop")


def run(args: argparse.Namespace) -> int:
    from swe_rl.cli.children import sandbox_service
    from swe_rl.cli.tables import show_report
    from swe_rl.config import load_config

    config = load_config(args.config, args.set)
    _check_ranks(config)
    if args.dry_run:
        print(config.model_dump_json(indent=2))
        return 0
    run_dir = config.run.dir
    with _locked(run_dir), _Stages(run_dir) as stages:
        _write_config(config)
        with stages.time("tasks"):
            tasks = lay_tasks(config)
        with sandbox_service(config, tasks, run_dir / "logs") as (url, token, service):
            version = _publish_cold_start(config)
            with stages.time("evaluate_before"):
                _evaluate(config, 0, "before", url, token)
            if version < config.train.steps:
                with stages.time("train"):
                    _train(config, url, service)
            with stages.time("evaluate_after"):
                _evaluate(config, config.train.steps, "after", url, token)
            with stages.time("evaluate_between"):
                _evaluate_between(config, url, token)
    show_report(run_dir)
    return 0


def _check_ranks(config: "Config") -> None:
    """The trainer would say it, too, but only once the cold start is evaluated."""
    num_ranks, context_ranks = config.train.num_ranks, config.train.context_ranks
    if num_ranks % context_ranks:
        raise ConfigError(
            f"train.num_ranks is {num_ranks}, expected a multiple of train.context_ranks, which is {context_ranks}"
        )


@contextlib.contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """One command a run directory at a time; the lock dies with the process."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"{run_dir}: another command runs in this directory; wait for it or stop it") from error
        yield


class _Stages:
    """Seconds by stage, added up over resumed attempts, in `stages.json`: the report reads it."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "stages.json"
        self._seconds: dict[str, float] = {}

    def __enter__(self) -> "_Stages":
        with contextlib.suppress(FileNotFoundError, ValueError):
            self._seconds = json.loads(self._path.read_text())
        return self

    def __exit__(self, *_: object) -> None: ...

    @contextlib.contextmanager
    def time(self, stage: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + time.monotonic() - started
            temporary = self._path.with_suffix(".tmp")
            temporary.write_text(json.dumps(self._seconds, indent=1))
            os.replace(temporary, self._path)


def _write_config(config: "Config") -> None:
    """The resolved configuration; a run directory belongs to one, or a resumed run would be none of the two.

    Values are compared, not texts: a key that came with a newer version and has its default is no difference.
    """
    from swe_rl.config import load_config
    from swe_rl.store.files import write_durably

    path = config.run.dir / "config.json"
    if path.exists():
        before, now = load_config(path).model_dump(), config.model_dump()
        differing = [f"{part}.{key}" for part in now for key in now[part] if now[part][key] != before[part][key]]
        if differing := [key for key in differing if key != "run.dir"]:  # it may have been moved
            raise ConfigError(
                f"{path}: this directory holds a run of another configuration, which differs in "
                f"{', '.join(differing)}; set another run.dir"
            )
    write_durably(path, (config.model_dump_json(indent=1) + "\n").encode())


def lay_tasks(config: "Config") -> list[Path]:
    """The folders of tasks; the parametric family is written first, if it is asked for."""
    folders = list(config.sandbox.tasks)
    if config.synth.num_train or config.synth.num_verified:
        from swe_rl.synth.write import write_family

        folders.append(config.run.dir / "tasks")
        synth = config.synth
        write_family(folders[-1], num_train=synth.num_train, num_verified=synth.num_verified, seed=synth.seed)
    if not folders:
        raise ConfigError("no tasks: set sandbox.tasks to folders of tasks, or synth.num_train and synth.num_verified")
    return folders


def _publish_cold_start(config: "Config") -> int:
    """Version 0 exists after this; returns the latest version."""
    from swe_rl.store.policies import PolicyStore
    from swe_rl.train.loop import publish_cold_start

    policies = PolicyStore(config.run.dir, config.run.store_url)
    try:
        return publish_cold_start(config, policies).version
    finally:
        policies.close()


def _train(config: "Config", url: str, service: "Child | None") -> None:
    """Runs worker and trainer until the trainer is done. Raises SweRlError with the last words of one that fails.

    `service`: the run's own, without which nobody need wait for it to come back.
    """
    from swe_rl.cli.children import Child

    arguments = ["--config", str(config.run.dir / "config.json"), "--set", f"sandbox.url={url}"]
    logs = config.run.dir / "logs"
    worker = Child("rollout worker", ["rollout", "--until-published", *arguments], logs / "rollout.log", stdout=_null())
    trainer = Child("trainer", ["train", *arguments], logs / "train.log", num_ranks=config.train.num_ranks)
    try:
        while trainer.process.poll() is None:
            if worker.process.poll() not in (None, 0):
                raise SweRlError(_describe(worker))
            if service is not None and service.process.poll() is not None:
                raise SweRlError(_describe(service))
            _show_steps(trainer)
            time.sleep(0.2)
        _show_steps(trainer)
        if trainer.process.returncode:
            raise SweRlError(_describe(trainer))
    finally:
        trainer.stop()
        worker.stop()


def _show_steps(trainer: "Child") -> None:
    for line in trainer.new_lines():
        if line.startswith("step ") or " WARNING swe_rl." in line:
            print(line, file=sys.stderr, flush=True)


def _null() -> int:
    import subprocess

    return subprocess.DEVNULL


def _describe(child: "Child") -> str:
    ended = f"ended with {child.process.returncode}: {child.last_words()}"
    return f"the {child.name} {ended} (log: {child.log}); the same command goes on from here"


def _evaluate_between(config: "Config", url: str, token: str) -> None:
    """Policies on the way, one sample a task, for the curve of the held-out pass rate."""
    if not config.eval.every:
        return
    sparse = config.model_copy(
        update={"eval": config.eval.model_copy(update={"samples_per_task": 1, "ks": [1], "greedy": False})}
    )
    for version in range(config.eval.every, config.train.steps, config.eval.every):
        _evaluate(sparse, version, f"step_{version:05d}", url, token)


def _evaluate(config: "Config", version: int, name: str, url: str, token: str) -> "EvalResult":
    from swe_rl.store.policies import PolicyStore

    policies = PolicyStore(config.run.dir, config.run.store_url)
    try:
        policy_dir = policies.get(version).path
    finally:
        policies.close()
    return asyncio.run(_evaluate_policy(config, policy_dir, name, url, token))


async def _evaluate_policy(config: "Config", policy_dir: Path, name: str, url: str, token: str) -> "EvalResult":
    from rich.console import Console
    from rich.progress import Progress

    from swe_rl.agent.render import Renderer
    from swe_rl.cli.engines import open_engine
    from swe_rl.client import SandboxClient
    from swe_rl.eval.evaluate import evaluate

    client, engine = SandboxClient(url, token), open_engine(config)
    with Progress(console=Console(file=sys.stderr)) as progress:
        bar = progress.add_task(f"evaluate {name}", total=None)
        try:
            return await evaluate(
                config,
                policy_dir,
                client,
                engine,
                Renderer.from_policy(policy_dir, config.agent.dialect),
                name=name,
                on_episode=lambda _, done, total: progress.update(bar, completed=done, total=total),
            )
        finally:
            await engine.close()
            await client.aclose()
