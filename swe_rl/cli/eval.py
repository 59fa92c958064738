"""`swe-rl eval`: evaluates a policy on a held-out split and prints the rates with their intervals."""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from swe_rl.config import Config
    from swe_rl.eval.result import EvalResult, Rate

HELP = "evaluate a policy on a split"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", help="TOML file, or the name of a shipped one")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one key")
    parser.add_argument("--policy", type=Path, metavar="DIR", help="default: the run's latest version, or policy.path")
    parser.add_argument("--split", help="split to evaluate on (default: eval.split)")
    greedy = argparse.BooleanOptionalAction
    parser.add_argument("--greedy", action=greedy, default=None, help="also one greedy pass (default: eval.greedy)")
    parser.add_argument("--name", help="name of the result file (default: the policy's directory and the split)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from swe_rl.cli.children import sandbox_service
    from swe_rl.cli.run import lay_tasks
    from swe_rl.config import load_config

    config = load_config(args.config, args.set)
    policy_dir = _policy(config, args.policy)
    split = args.split or config.eval.split
    name = args.name or f"{policy_dir.name}-{split}"
    tasks = [] if config.sandbox.url else lay_tasks(config)
    with sandbox_service(config, tasks, config.run.dir / "logs") as (url, token, _):
        result = asyncio.run(_evaluate(config, policy_dir, split, args.greedy, name, (url, token)))
    if args.json:
        print(json.dumps(result.to_dict()))
    else:
        Console().print(_table(result))
    return 0


def _policy(config: "Config", given: Path | None) -> Path:
    """The directory to evaluate. Raises PolicyError if it isn't there."""
    from swe_rl.errors import PolicyError
    from swe_rl.store.policies import PolicyStore

    policy_dir = given
    if policy_dir is None and (config.run.dir / "policies").is_dir():
        policies = PolicyStore(config.run.dir, config.run.store_url)
        latest = policies.latest()
        policies.close()
        policy_dir = None if latest is None else latest.path
    policy_dir = config.policy.path if policy_dir is None else policy_dir
    if not policy_dir.is_dir():
        raise PolicyError(f"policy {policy_dir}: no such directory; name one with --policy")
    return policy_dir.resolve()


async def _evaluate(
    config: "Config", policy_dir: Path, split: str, is_greedy: bool | None, name: str, service: tuple[str, str]
) -> "EvalResult":
    from rich.console import Console
    from rich.progress import Progress

    from swe_rl.agent.render import Renderer
    from swe_rl.cli.engines import open_engine
    from swe_rl.client import SandboxClient
    from swe_rl.eval.evaluate import evaluate

    renderer = Renderer.from_policy(policy_dir, config.agent.dialect)
    async with SandboxClient(*service) as client:
        engine = open_engine(config)
        with Progress(console=Console(file=sys.stderr)) as progress:
            bar = progress.add_task("episodes", total=None)
            try:
                return await evaluate(
                    config,
                    policy_dir,
                    client,
                    engine,
                    renderer,
                    name=name,
                    split=split,
                    is_greedy=is_greedy,
                    on_episode=lambda _, done, total: progress.update(bar, completed=done, total=total),
                )
            finally:
                await engine.close()


def _table(result: "EvalResult") -> "Table":
    from rich.table import Table

    table = Table(
        title=f"{result.policy} on {result.split}: {result.num_tasks} tasks x {result.samples_per_task} samples "
        f"x {result.num_runs} runs"
    )
    table.add_column("")
    table.add_column("rate", justify="right")
    table.add_column("95 % interval over tasks", justify="right")
    table.add_column("tasks", justify="right")
    rates: list[tuple[str, Rate]] = [(f"pass@{k}", rate) for k, rate in result.pass_at_k.items()]
    if result.greedy is not None:
        rates.append(("greedy", result.greedy))
    for label, values in result.by_label.items():
        rates += [(f"  {label} {value}", rate) for value, rate in values.items() if len(values) > 1]
    for name, rate in rates:
        table.add_row(name, f"{rate.value:.1%}", f"{rate.ci95[0]:.1%} to {rate.ci95[1]:.1%}", str(rate.num_tasks))
    table.caption = (
        f"{result.num_episodes} episodes, {result.num_faults} faults (not resolved), {result.num_retries} retries, "
        f"{result.mean_sampled_tokens:.0f} sampled tokens, malformed turns {result.malformed_rate:.1%}; "
        + ", ".join(f"{reason} {count}" for reason, count in sorted(result.stop_reasons.items()))
    )
    return table
