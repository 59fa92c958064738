"""`swe-rl rollout`: produces the groups of a run with a sandbox service that is already up."""

import argparse
import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swe_rl.config import Config

HELP = "sample groups of episodes into a run's rollout store"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", help="TOML file, or the name of a shipped one")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one key")
    parser.add_argument("--steps", type=int, help="stop once groups for this many steps exist (default: train.steps)")
    parser.add_argument(
        "--until-published", action="store_true", help="stay until a trainer has published the last policy"
    )


def run(args: argparse.Namespace) -> int:
    from swe_rl.config import load_config
    from swe_rl.errors import ConfigError

    config = load_config(args.config, args.set)
    steps = config.train.steps if args.steps is None else args.steps
    if steps < 0:
        raise ConfigError(f"--steps is {steps}, expected 0 or more")
    try:
        num_groups = asyncio.run(_rollout(config, steps, args.until_published))
    except asyncio.CancelledError:
        print("swe-rl: terminated; start it again to go on", file=sys.stderr)
        return 128 + signal.SIGTERM
    print(f"{num_groups} groups in {config.run.dir}")
    return 0


async def _rollout(config: "Config", steps: int, until_published: bool) -> int:
    """Runs the worker; returns how many groups the store then holds."""
    from rich.console import Console
    from rich.progress import Progress

    from swe_rl.agent.render import Renderer
    from swe_rl.cli.engines import open_engine
    from swe_rl.client import SandboxClient
    from swe_rl.rollout.worker import Worker
    from swe_rl.store.policies import PolicyStore
    from swe_rl.store.rollouts import RolloutStore

    task = asyncio.current_task()
    assert task is not None
    # Sessions and an engine's server are closed on the way out; the default would leave both behind.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    client = SandboxClient(*_service(config))
    engine = open_engine(config)
    try:
        tasks = await client.list_tasks(config.rollout.split)
        rollouts = RolloutStore(config.run.dir, config.run.store_url)
        with Progress(console=Console(file=sys.stderr)) as progress:
            total = steps * config.rollout.groups_per_step
            bar = progress.add_task("groups", total=total)
            worker = Worker(
                tasks,
                client=client,
                engine=engine,
                renderer=Renderer.from_policy(config.policy.path, config.agent.dialect),
                rollouts=rollouts,
                policies=PolicyStore(config.run.dir, config.run.store_url),
                config=config,
                on_group=lambda _: progress.update(bar, completed=total - worker.num_missing(steps)),
            )
            progress.update(bar, completed=total - worker.num_missing(steps))
            await worker.run(steps, until_published=until_published)
        return rollouts.num_groups()
    finally:
        await engine.close()
        await client.aclose()


def _service(config: "Config") -> tuple[str, str]:
    """Address and token of the sandbox service."""
    from swe_rl.client import TOKEN_VARIABLE
    from swe_rl.errors import ConfigError

    token = os.environ.get(TOKEN_VARIABLE, "")
    if not config.sandbox.url:
        raise ConfigError("sandbox.url is empty, expected the address of a running `swe-rl serve sandbox`")
    if not token:
        raise ConfigError("SWE_RL_SANDBOX_TOKEN isn't set, expected the token of the sandbox service at sandbox.url")
    return config.sandbox.url, token
