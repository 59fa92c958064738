"""`swe-rl train`: the consumer alone, on the rollout store that a producer fills."""

import argparse
import os
import sys
from collections.abc import Mapping

HELP = "train the policy on a run's rollout store"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", help="TOML file, or the name of a shipped one")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one key")
    parser.add_argument(
        "--group-timeout", type=float, default=900.0, metavar="S", help="fail when no new group came for so long (900)"
    )


def run(args: argparse.Namespace) -> int:
    from swe_rl.cli.children import die_with_parent
    from swe_rl.config import load_config
    from swe_rl.errors import ConfigError

    config = load_config(args.config, args.set)
    if args.group_timeout <= 0:
        raise ConfigError(f"--group-timeout {args.group_timeout}, expected seconds above 0")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()  # a rank must not outlive a torchrun that was killed
    from swe_rl.train.loop import train_loop
    from swe_rl.train.ranks import join_ranks, leave_ranks

    version = train_loop(config, _report, group_timeout_s=args.group_timeout)
    if join_ranks().is_first:
        print(f"policy version {version} in {config.run.dir}")
    leave_ranks()
    return 0


def _report(step: int, metrics: Mapping[str, float]) -> None:
    """One line a step; a number that the step doesn't have is left out."""
    shown = (
        ("reward", "reward/mean", ".3f"),
        ("loss", "train/loss", ".4f"),
        ("grad", "train/grad_norm", ".3f"),
        ("kept", "mask/kept_fraction", ".4f"),
        ("dlogp", "mismatch/mean_abs_logprob_diff", ".2e"),
        ("tokens", "train/num_tokens", ".0f"),
        ("turns", "rollout/turns_mean", ".1f"),
        ("waited", "time/wait_s", ".1f"),
        ("took", "time/step_s", ".1f"),
    )
    parts = [f"{label} {metrics[name]:{form}}" for label, name, form in shown if name in metrics]
    print(f"step {step}  " + "  ".join(parts), file=sys.stderr, flush=True)
