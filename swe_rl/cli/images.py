"""`swe-rl images`: build the images of the languages, and prove each language by its hello-repository."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swe_rl.images.check import Proof
    from swe_rl.images.record import Record
    from swe_rl.task.language import LanguageSpec

HELP = "build and prove the languages' images"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the sub-verbs."""
    verbs = parser.add_subparsers(dest="images_verb", required=True, metavar="VERB")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=text, description=text)

    verb = add("build", "build images on the Docker engine; one whose content is there already stays")
    _add_selection(verb)
    verb.add_argument(
        "--base", metavar="IMAGE", help="public image to stand on (default: a local Debian, made by mmdebstrap)"
    )
    verb.add_argument("--force", action="store_true", help="build again, with the packages of today")
    verb.add_argument("--jobs", type=int, default=1, metavar="N", help="images at once (default: 1)")

    verb = add("check", "a passing and a failing repository through the service, one line a language")
    _add_selection(verb)
    verb.add_argument(
        "--backend", choices=("bubblewrap", "docker", "docker-runsc"), default="docker", help="default: docker"
    )
    verb.add_argument("--strict", action="store_true", help="a language that can't be checked here fails, too")


def run(args: argparse.Namespace) -> int:
    return _build(args) if args.images_verb == "build" else _check(args)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("language", nargs="*", metavar="LANGUAGE", help="default: all")
    parser.add_argument("--languages", type=Path, default=Path("sandboxes"), metavar="DIR", help="default: sandboxes")
    parser.add_argument("--no-record", action="store_true", help="leave proved.json and docs/environments.md alone")


def _select(args: argparse.Namespace) -> "tuple[dict[str, LanguageSpec], list[LanguageSpec]]":
    from swe_rl.errors import ConfigError
    from swe_rl.task.language import read_languages

    languages = read_languages(args.languages)
    unknown = [name for name in args.language if name not in languages]
    if unknown:
        raise ConfigError(f"language {unknown[0]!r} isn't one of: {', '.join(languages)}")
    return languages, [languages[name] for name in args.language or languages]


def _record(args: argparse.Namespace) -> "Record":
    from swe_rl.images.record import Record

    return Record(args.languages / "proved.json", args.languages.resolve().parent / "docs" / "environments.md")


def _build(args: argparse.Namespace) -> int:
    from swe_rl.errors import SandboxError
    from swe_rl.images.build import Builder

    languages, chosen = _select(args)
    record, num_failed = _record(args), 0
    builder = Builder(args.languages, Path.home() / ".cache" / "swe-rl", args.base, args.force)
    try:
        base = builder.build_base()
        for built in (base, *builder.build(chosen, base, args.jobs)):
            if isinstance(built, SandboxError):
                num_failed += 1
                print(f"failed   {built}", flush=True)
                continue
            how = "cached" if built.is_cached else f"built in {built.seconds:.0f} s"
            own = f"+{built.own_bytes / 1e6:.0f} MB"
            print(f"{built.label:12} {built.size_bytes / 1e6:6.0f} MB {own:>9}  {how}", flush=True)
            record.note_image(built.label, built.size_bytes, built.own_bytes, built.versions)
    finally:
        builder.close()
    if not args.no_record:
        record.save(languages)
    return 1 if num_failed else 0


def _check(args: argparse.Namespace) -> int:
    languages, chosen = _select(args)
    record = _record(args)

    def note(proof: "Proof") -> None:
        record.note_proof(proof, args.backend)
        if not args.no_record:
            record.save(languages)  # at once: the whole list takes minutes

    proofs = asyncio.run(_prove_all(args, chosen, note))
    whole = sum(proof.is_whole for proof in proofs)
    skipped = len(chosen) - len(proofs)
    print(f"{whole} proved, {len(proofs) - whole} failed, {skipped} skipped of {len(chosen)}", file=sys.stderr)
    return 1 if whole < len(proofs) or (args.strict and skipped) else 0


async def _prove_all(
    args: argparse.Namespace, chosen: "list[LanguageSpec]", note: "Callable[[Proof], None]"
) -> "list[Proof]":
    from swe_rl.images.check import hello_service, prove
    from swe_rl.sandbox.backend import default_scratch_dir, open_backend

    proofs = []
    scratch = default_scratch_dir()
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="images-", dir=scratch, ignore_cleanup_errors=True) as name:
        by_name = {language.language: language for language in chosen}
        backend = await open_backend(args.backend, by_name, Path(name))
        async with hello_service(backend, by_name, Path(name)) as client:
            for language in chosen:
                if args.backend == "bubblewrap" and language.missing_tools:
                    print(f"{language.language:12} skipped: lacks {', '.join(language.missing_tools)}", flush=True)
                    continue
                proof = await prove(language, client)
                proofs.append(proof)
                note(proof)
                print(_line(proof), flush=True)
    return proofs


def _line(proof: "Proof") -> str:
    built = "built" if proof.is_built else "NOT BUILT"
    passes = "passes" if proof.passes else "DOESN'T PASS"
    fails = "fails" if proof.fails else "DOESN'T FAIL"
    line = f"{proof.language:12} {built}, passing {passes}, failing {fails}, {proof.seconds:.1f} s"
    return f"{line}: {proof.problem}" if proof.problem else line
