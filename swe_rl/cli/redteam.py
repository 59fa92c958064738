"""`swe-rl redteam`: play known cheats through the service; none may be rewarded, and every honest twin must pass."""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swe_rl.redteam.attack import Attack
    from swe_rl.redteam.run import Played
    from swe_rl.task.language import LanguageSpec

HELP = "play known cheats through the service, each with its honest twin"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", choices=("auto", "bubblewrap", "docker", "docker-runsc"), default="auto")
    parser.add_argument("--language", action="append", metavar="L", help="only this language; may be repeated")
    parser.add_argument(
        "--class", dest="class_name", action="append", metavar="C", help="only this class of attacks; may be repeated"
    )
    parser.add_argument("--name", action="append", metavar="N", help="only this attack; may be repeated")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="what names, paths and wording vary by")
    parser.add_argument(
        "--attacks",
        type=Path,
        default=Path("tests/attacks"),
        metavar="DIR",
        help="<class>/<name>.toml (default: tests/attacks)",
    )
    parser.add_argument("--languages", type=Path, default=Path("sandboxes"), metavar="DIR", help="default: sandboxes")
    parser.add_argument("--json", action="store_true", help="one JSON object on the standard output")


def run(args: argparse.Namespace) -> int:
    from swe_rl.errors import ConfigError
    from swe_rl.redteam.attack import read_attacks
    from swe_rl.task.language import read_languages

    languages = read_languages(args.languages)
    unknown = [name for name in args.language or () if name not in languages]
    if unknown:
        raise ConfigError(f"language {unknown[0]!r} isn't one of: {', '.join(languages)}")
    if args.backend in ("auto", "bubblewrap"):
        for name in args.language or languages:
            if languages[name].missing_tools:
                print(f"{name}: skipped: lacks {', '.join(languages[name].missing_tools)}", file=sys.stderr)
        languages = {name: language for name, language in languages.items() if not language.missing_tools}
    chosen = {name: languages[name] for name in args.language or languages if name in languages}
    attacks = [
        attack
        for attack in read_attacks(args.attacks, chosen)
        if args.class_name is None or attack.class_name in args.class_name
        if args.name is None or attack.name in args.name
    ]
    if not attacks:
        where = ", ".join(chosen) or "no language"
        raise ConfigError(
            f"{args.attacks}: no attack of that class and name on: {where}; folders there are classes, files names"
        )
    played = asyncio.run(_play(args, attacks, chosen, _print_nothing if args.json else _print_line))
    if args.json:
        print(json.dumps({"attacks": [_row(one) for one in played]}, indent=1))
    num_rewarded = sum(one.rewarded for one in played)
    num_passed = sum(one.honest_twin_passed for one in played)
    num_problems = sum(bool(one.problem) for one in played)
    print(
        f"{len(played)} attacks: {num_rewarded} rewarded, {num_passed} honest twins passed, {num_problems} problems",
        file=sys.stderr,
    )
    return 0 if all(one.is_withstood for one in played) else 1


async def _play(
    args: argparse.Namespace,
    attacks: "list[Attack]",
    languages: "dict[str, LanguageSpec]",
    note: "Callable[[Played], None]",
) -> "list[Played]":
    from swe_rl.redteam.field import open_field
    from swe_rl.redteam.run import play_all
    from swe_rl.sandbox.backend import default_scratch_dir, open_backend

    scratch = default_scratch_dir()
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    played = []
    with tempfile.TemporaryDirectory(prefix="redteam-", dir=scratch, ignore_cleanup_errors=True) as name:
        backend = await open_backend(args.backend, languages, Path(name))
        async with open_field(backend, languages, Path(name), args.seed) as client:
            async for one in play_all(attacks, languages, client, args.seed):
                played.append(one)
                note(one)
    return played


def _print_line(one: "Played") -> None:
    caught = "REWARDED" if one.rewarded else f"caught by {one.caught_by}"
    twin = "twin passed" if one.honest_twin_passed else "TWIN FAILED"
    problem = f"  {one.problem}" if one.problem else ""
    name = f"{one.class_name}/{one.name}"
    print(f"{name:44} {one.language:12} {caught:34} {twin}  {one.seconds:5.1f} s{problem}", flush=True)


def _print_nothing(one: "Played") -> None:
    pass


def _row(one: "Played") -> dict[str, Any]:
    return {key if key != "class_name" else "class": value for key, value in asdict(one).items()}
