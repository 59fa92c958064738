"""`swe-rl serve`: the long-running processes. `sandbox` prints one line of JSON with its address, and serves until told
to stop; `inference` serves a policy."""

import argparse
from pathlib import Path

from swe_rl.cli import serve_inference
from swe_rl.client import TOKEN_VARIABLE

HELP = "run a service: sandbox or inference"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the sub-verbs."""
    verbs = parser.add_subparsers(dest="service", required=True, metavar="SERVICE")
    sandbox = verbs.add_parser("sandbox", help="serve tasks, sandboxes and verdicts over HTTP")
    sandbox.add_argument(
        "--tasks", type=Path, action="append", required=True, metavar="DIR", help="holds <split>/<task_id>/; repeatable"
    )
    sandbox.add_argument("--languages", type=Path, default=Path("sandboxes"), metavar="DIR", help="default: sandboxes")
    sandbox.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    sandbox.add_argument("--port", type=int, default=0, help="0 (default): a free one")
    sandbox.add_argument("--backend", choices=("auto", "bubblewrap", "docker"), default="auto")
    sandbox.add_argument("--max-sessions", type=int, default=256, metavar="N", help="sessions at once (default: 256)")
    sandbox.add_argument("--grade-concurrency", type=int, default=4, metavar="N", help="gradings at once (default: 4)")
    sandbox.add_argument("--scratch-dir", type=Path, metavar="DIR", help="default: below /dev/shm, else the temporary")
    inference = verbs.add_parser("inference", help=serve_inference.HELP)
    serve_inference.add_arguments(inference)


def run(args: argparse.Namespace) -> int:
    """Raises ConfigError, TaskError or SandboxUnavailableError before anything listens."""
    if args.service == "inference":
        return serve_inference.run(args)
    import asyncio
    import os

    return asyncio.run(_serve_sandbox(args, os.environ.get(TOKEN_VARIABLE, "")))


async def _serve_sandbox(args: argparse.Namespace, token: str) -> int:
    import json

    from swe_rl.errors import ConfigError
    from swe_rl.sandbox.backend import default_scratch_dir, open_backend
    from swe_rl.service.app import create_app
    from swe_rl.service.server import serve
    from swe_rl.task.language import read_languages
    from swe_rl.task.taskset import TaskSet

    if not token:
        raise ConfigError(f"serve sandbox: no token; set {TOKEN_VARIABLE} to a secret that callers share")
    languages, tasks = read_languages(args.languages), TaskSet.load(args.tasks)
    scratch_dir = args.scratch_dir or default_scratch_dir()
    backend = await open_backend(args.backend, languages, scratch_dir)
    app = create_app(
        backend=backend,
        languages=languages,
        tasks=tasks,
        token=token,
        max_sessions=args.max_sessions,
        grade_concurrency=args.grade_concurrency,
        scratch_dir=scratch_dir,
    )
    try:
        await serve(app, args.host, args.port, lambda url: print(json.dumps({"url": url}), flush=True))
    finally:
        await backend.close()
    return 0
