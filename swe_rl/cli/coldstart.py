"""`swe-rl coldstart`: lets the family's expert work in the sandbox, then trains a fresh tiny policy on what it did."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from swe_rl.config import Config
    from swe_rl.synth.family import SynthTask
    from swe_rl.trajectory import Trajectory

HELP = "make a cold-start policy from demonstrations"
_CONCURRENCY = 16
_SEED_OFFSET = 1000  # the tasks that are shown aren't those that reinforcement learning will meet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", default="quickstart", help="TOML file, or the name of a shipped one (quickstart)")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one key")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the policy directory to write")


def run(args: argparse.Namespace) -> int:
    from swe_rl.config import load_config
    from swe_rl.errors import PolicyError
    from swe_rl.synth.family import make_task

    config = load_config(args.config, args.set)
    if args.out.exists() and any(args.out.iterdir()):
        raise PolicyError(f"{args.out}: isn't empty; name a new directory for the policy")
    recipe = config.coldstart
    seed = recipe.seed + _SEED_OFFSET
    tasks = [make_task("train", index, seed) for index in range(recipe.num_demonstrations)]
    more = [make_task("train", index, seed) for index in range(len(tasks), len(tasks) + recipe.num_documents)]
    tokenizer = _make_tokenizer([*tasks, *more], args.out)
    trajectories = _demonstrate(config, tasks, args.out)
    _train(config, trajectories, more, tokenizer, args.out)
    print(args.out)
    return 0


def _make_tokenizer(tasks: "Sequence[SynthTask]", out_dir: Path) -> "Tokenizer":
    from swe_rl.synth.expert import tokenizer_texts
    from swe_rl.train.tiny import save_tokenizer, train_tokenizer

    tokenizer = train_tokenizer(text for task in tasks for text in tokenizer_texts(task))
    save_tokenizer(tokenizer, out_dir)
    return tokenizer


def _demonstrate(config: "Config", tasks: "Sequence[SynthTask]", out_dir: Path) -> "list[Trajectory]":
    """Runs the expert once on each task, in the real sandbox."""
    import tempfile

    from swe_rl.cli.children import sandbox_service
    from swe_rl.sandbox.backend import default_scratch_dir
    from swe_rl.synth.write import write_task

    parent = default_scratch_dir().parent  # in memory where that is possible: these are many small files
    with tempfile.TemporaryDirectory(prefix="swe-rl-coldstart-", dir=parent) as scratch:
        for task in tasks:
            write_task(task, Path(scratch) / "tasks")
        folders = [Path(scratch) / "tasks"]
        with sandbox_service(config, folders, Path(scratch) / "logs") as (url, token, _):
            return asyncio.run(_collect(config, tasks, url, token, out_dir))


async def _collect(
    config: "Config", tasks: "Sequence[SynthTask]", url: str, token: str, out_dir: Path
) -> "list[Trajectory]":
    from rich.console import Console
    from rich.progress import Progress

    from swe_rl.agent.loop import run_episode
    from swe_rl.agent.render import Renderer
    from swe_rl.client import SandboxClient
    from swe_rl.inference.scripted import ScriptedEngine
    from swe_rl.synth.expert import Expert

    expert = Expert(tasks, config.coldstart.seed, config.agent.max_turns)
    engine = ScriptedEngine(expert.reply, out_dir / "tokenizer.json")
    await engine.load(out_dir, 0)
    renderer = Renderer.from_policy(out_dir, config.agent.dialect)
    client = SandboxClient(url, token)
    slots = asyncio.Semaphore(_CONCURRENCY)
    with Progress(console=Console(file=sys.stderr)) as progress:
        bar = progress.add_task("demonstrations", total=len(tasks))

        async def one(info: "object", index: int) -> "Trajectory":
            async with slots:
                trajectory = await run_episode(
                    info,  # type: ignore[arg-type]
                    client=client,
                    engine=engine,
                    renderer=renderer,
                    config=config,
                    trajectory_id=f"demonstration-{index:05d}",
                    group_id=f"demonstration-{index:05d}",
                    temperature=1.0,
                )
            progress.advance(bar)
            return trajectory

        try:
            infos = await client.list_tasks("train")
            return list(await asyncio.gather(*(one(info, index) for index, info in enumerate(infos))))
        finally:
            await client.aclose()


def _train(
    config: "Config",
    trajectories: "Sequence[Trajectory]",
    documented: "Sequence[SynthTask]",
    tokenizer: "Tokenizer",
    out_dir: Path,
) -> None:
    import random

    import torch
    from rich.console import Console
    from rich.progress import Progress

    from swe_rl.synth.drills import make_drill
    from swe_rl.synth.expert import document_text
    from swe_rl.train.coldstart import Part, cold_start, demonstration, document, drill

    recipe = config.coldstart
    torch.set_num_threads(config.train.num_threads)
    drills = [make_drill(random.Random(f"{recipe.seed}/drill/{index}")) for index in range(recipe.num_drills)]
    parts = [
        Part([demonstration(t) for t in trajectories if t.reward is not None], 1.0),
        Part([document(document_text(task), tokenizer) for task in documented], recipe.document_weight),
        Part([drill(d.context, d.call, tokenizer) for d in drills], recipe.drill_weight),
    ]
    with Progress(console=Console(file=sys.stderr)) as progress:
        bar = progress.add_task("cold start", total=recipe.steps)

        def show(step: int, losses: list[float]) -> None:
            shown = ", ".join(f"{loss:.3f}" for loss in losses)
            progress.update(bar, completed=step + 1, description=f"cold start, losses {shown}")

        cold_start(parts, tokenizer, out_dir, recipe, show)
