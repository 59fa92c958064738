"""`swe-rl`: finds the verb, imports its module alone, and turns errors into one line.

Exit codes: 0 ok, 1 the run failed, 2 bad usage or configuration.
"""

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence

from swe_rl import __version__
from swe_rl.errors import ConfigError, SweRlError

VERBS = {
    "serve": "start a sandbox service, an inference server or a gateway",
    "images": "build and prove the languages' images",
    "tasks": "list, show, check, make and import tasks",
    "redteam": "play known cheats, each with its honest twin",
    "coldstart": "make a cold-start policy from demonstrations",
    "rollout": "sample groups of episodes into a run's rollout store",
    "train": "train the policy on a run's rollout store",
    "run": "everything: service, evaluation, training, evaluation, report",
    "eval": "evaluate a policy on a split",
    "inspect": "show the state of a run, or one trajectory",
    "doctor": "say what this machine can run",
}

_EPILOG = (
    "`swe-rl VERB --help` has the options of a verb. Exit codes: 0 ok, 1 the run failed, 2 bad usage or configuration. "
    "Environment: SWE_RL_SANDBOX_TOKEN, the secret that a sandbox service and its callers share; SWE_RL_JOURNAL_URL, "
    "the service's database; SWE_RL_GATEWAY_TOKEN, the secret of a gateway's operator; DOCKER_HOST, the container "
    "engine."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verb = next((a for a in arguments if a in VERBS), "")
    parser = argparse.ArgumentParser(
        prog="swe-rl", description="Train software-engineering agents by pure RL.", epilog=_EPILOG
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument(
        "--log-level",
        default="WARNING",
        type=str.upper,
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        metavar="LEVEL",
        help="DEBUG, INFO, WARNING (default), ERROR",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, text in VERBS.items():
        sub = verbs.add_parser(name, help=text, description=text)
        if name == verb:
            importlib.import_module(f"swe_rl.cli.{name}").add_arguments(sub)
    args = parser.parse_args(arguments)
    logging.basicConfig(level=args.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for noisy in ("httpx", "httpcore", "docker", "git", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return _run(args)


def _run(args: argparse.Namespace) -> int:
    try:
        return int(importlib.import_module(f"swe_rl.cli.{args.verb}").run(args))
    except ConfigError as error:
        return _fail(error, 2)
    except SweRlError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        print("swe-rl: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ImportError as error:
        what = _missing(error)
        if not what:
            raise
        return _fail(ConfigError(f"{args.verb} needs {what}"), 2)
    except OSError as error:
        if error.strerror is None:
            raise
        return _fail(error, 1)


def _missing(error: ImportError) -> str:
    """What to install, or nothing if the fault is this package's own."""
    if "git executable" in str(error):  # GitPython looks for it when it is imported
        return "git on the PATH; install it"
    name = error.name or ""
    is_ours = name.startswith("swe_rl") or not isinstance(error, ModuleNotFoundError)
    return "" if is_ours else f"the package {name}; in the clone: pip install -e '.[service,train]'"


def _fail(error: Exception, code: int) -> int:
    logging.getLogger(__name__).debug("failed", exc_info=error)
    print(f"swe-rl: {type(error).__name__}: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
