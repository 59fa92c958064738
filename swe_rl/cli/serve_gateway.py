"""`swe-rl serve gateway`: an OpenAI- and Anthropic-compatible endpoint that records any scaffold, token by token.

Prints one line of JSON with its address once the policy is loaded, then runs until it is told to stop.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rl.cli.serve_inference import port

if TYPE_CHECKING:
    from swe_rl.config import Config

TOKEN_VARIABLE = "SWE_RL_GATEWAY_TOKEN"
HELP = "serve a policy to any scaffold and record what it samples"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", help="TOML file, or the name of a shipped one")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one key")
    parser.add_argument("--policy", type=Path, metavar="DIR", help="Hugging Face directory; default: policy.path")
    parser.add_argument("--version", type=int, default=0, help="its version (default: 0)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=port, default=0, help="0 (default): a free one")
    parser.add_argument("--max-branches", type=int, default=8, metavar="N", help="branches of one session (default: 8)")


def run(args: argparse.Namespace) -> int:
    """Raises ConfigError without the operator's token, and for an address that can't be bound."""
    from swe_rl.config import load_config
    from swe_rl.errors import ConfigError

    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise ConfigError(f"{TOKEN_VARIABLE} is empty; expected the operator's secret, which opens and closes sessions")
    return asyncio.run(_serve(args, load_config(args.config, args.set), token))


async def _serve(args: argparse.Namespace, config: "Config", token: str) -> int:
    import uvicorn

    from swe_rl.agent.render import Renderer
    from swe_rl.cli.engines import open_engine
    from swe_rl.gateway.app import create_app
    from swe_rl.gateway.gateway import Gateway
    from swe_rl.gateway.session import SessionLimits

    policy = args.policy or config.policy.path
    renderer = Renderer.from_policy(policy, config.agent.dialect)
    limits = SessionLimits(config.engine.max_context, config.sampling.max_tokens_per_turn, args.max_branches)
    with _bind(args.host, args.port) as listener:
        engine = open_engine(config)
        loading = asyncio.create_task(engine.load(policy, args.version))
        # uvicorn takes signals while it serves, and raises them again at its end: the engine is yet to be closed.
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, loading.cancel)
        try:
            await loading
            host, bound = listener.getsockname()[:2]
            print(json.dumps({"url": f"http://{host}:{bound}"}), flush=True)
            app = create_app(Gateway(engine, renderer, limits), token)
            await uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off")).serve([listener])
        except asyncio.CancelledError:
            return 0
        finally:
            await engine.close()
    return 0


def _bind(host: str, port: int) -> socket.socket:
    from swe_rl.errors import ConfigError

    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise ConfigError(f"serve gateway: {host}:{port} can't be bound: {error}; use port 0 for a free one") from error
