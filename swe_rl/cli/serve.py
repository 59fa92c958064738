"""`swe-rl serve`: the long-running processes. `sandbox` prints one line of JSON with its address, and serves until told
to stop; `inference` serves a policy, `gateway` serves it to any scaffold and records it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rl.cli import serve_gateway, serve_inference
from swe_rl.client import TOKEN_VARIABLE

if TYPE_CHECKING:
    from swe_rl.service.tokens import Tokens

HELP = "run a service: sandbox, inference or gateway"
BACKEND_HELP = "default: auto, which is bubblewrap, else docker; docker-runsc is gVisor"
JOURNAL_VARIABLE = "SWE_RL_JOURNAL_URL"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the sub-verbs."""
    verbs = parser.add_subparsers(dest="service", required=True, metavar="SERVICE")
    text = "serve tasks, sandboxes and verdicts over HTTP"
    sandbox = verbs.add_parser("sandbox", help=text, description=f"{text}; {TOKEN_VARIABLE} holds the callers' secret")
    sandbox.add_argument(
        "--tasks", type=Path, action="append", required=True, metavar="DIR", help="holds <split>/<task_id>/; repeatable"
    )
    sandbox.add_argument("--languages", type=Path, default=Path("sandboxes"), metavar="DIR", help="default: sandboxes")
    sandbox.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    sandbox.add_argument("--port", type=serve_inference.port, default=0, help="0 (default): a free one")
    sandbox.add_argument(
        "--backend", choices=("auto", "bubblewrap", "docker", "docker-runsc"), default="auto", help=BACKEND_HELP
    )
    sandbox.add_argument("--scratch-dir", type=Path, metavar="DIR", help="default: below /dev/shm, else the temporary")
    _add_bounds(sandbox)
    sandbox.add_argument(
        "--grade-level", choices=("standard", "strict"), default="standard", help="strict: more runs a patch"
    )
    sandbox.add_argument(
        "--tokens", type=Path, metavar="FILE", help=f"TOML of tokens with quotas (default: the one in {TOKEN_VARIABLE})"
    )
    sandbox.add_argument(
        "--journal", metavar="URL", help=f"database that records sessions and verdicts (default: {JOURNAL_VARIABLE})"
    )
    sandbox.add_argument("--log-format", choices=("text", "json"), default="text", help="default: text")
    inference = verbs.add_parser("inference", help=serve_inference.HELP, description=serve_inference.HELP)
    serve_inference.add_arguments(inference)
    gateway = verbs.add_parser("gateway", help=serve_gateway.HELP, description=serve_gateway.HELP)
    serve_gateway.add_arguments(gateway)


def _add_bounds(parser: argparse.ArgumentParser) -> None:
    def add(flag: str, default: int, text: str) -> None:
        kind = _at_least_one if flag in ("--max-sessions", "--max-commands", "--grade-concurrency") else int
        parser.add_argument(flag, type=kind, default=default, metavar="N", help=f"{text} (default: {default})")

    add("--max-sessions", 256, "sessions at once")
    add("--max-commands", 512, "commands at once")
    add("--grade-concurrency", 4, "gradings at once")
    add("--pool-size", 16, "sandboxes made ahead of time, at most; 0: none")
    add("--min-free-mb", 512, "no new session while less is free below the scratch directory")
    add("--drain-s", 10, "seconds that sessions get to end at SIGTERM")


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"is {text!r}, expected at least 1")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Raises ConfigError, TaskError or SandboxUnavailableError before anything listens."""
    if args.service == "inference":
        return serve_inference.run(args)
    if args.service == "gateway":
        return serve_gateway.run(args)
    import asyncio

    return asyncio.run(_serve_sandbox(args))


async def _serve_sandbox(args: argparse.Namespace) -> int:
    import json
    import os

    from swe_rl.sandbox.backend import default_scratch_dir, open_backend
    from swe_rl.service.app import create_app
    from swe_rl.service.logs import log_as_json
    from swe_rl.service.server import serve
    from swe_rl.service.service import ServiceOptions
    from swe_rl.task.language import read_languages
    from swe_rl.task.taskset import TaskSet

    if args.log_format == "json":
        log_as_json()
    tokens = _tokens(args.tokens)
    languages, tasks = read_languages(args.languages), TaskSet.load(args.tasks)
    scratch_dir = args.scratch_dir or default_scratch_dir()
    options = ServiceOptions(
        max_commands=args.max_commands,
        grade_level=args.grade_level,
        pool_size=args.pool_size,
        min_free_mb=args.min_free_mb,
        journal_url=args.journal if args.journal is not None else os.environ.get(JOURNAL_VARIABLE, ""),
    )
    backend = await open_backend(args.backend, languages, scratch_dir)
    try:
        app = create_app(
            backend=backend,
            languages=languages,
            tasks=tasks,
            token=tokens,
            max_sessions=args.max_sessions,
            grade_concurrency=args.grade_concurrency,
            scratch_dir=scratch_dir,
            options=options,
        )
        await serve(
            app, args.host, args.port, lambda url: print(json.dumps({"url": url}), flush=True), drain_s=args.drain_s
        )
    finally:
        await backend.close()
    return 0


def _tokens(file: Path | None) -> "Tokens":
    import os

    from swe_rl.errors import ConfigError
    from swe_rl.service.tokens import Tokens, read_tokens, single_token

    if file is not None:
        return Tokens(read_tokens(file))
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise ConfigError(f"serve sandbox: no token; set {TOKEN_VARIABLE} to a secret that callers share")
    return single_token(token)
