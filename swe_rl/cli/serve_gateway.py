"""`swe-rl serve gateway`: an OpenAI- and Anthropic-compatible endpoint that records any scaffold, token by token.

Prints one line of JSON with its address once the policy is loaded, then runs until it is told to stop.
"""

import argparse
import asyncio
import json
import os
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
    parser.add_argument(
        "--max-branches", type=int, default=8, metavar="N", help="broken histories that one session may have (8)"
    )


def run(args: argparse.Namespace) -> int:
    """Raises ConfigError without the operator's token."""
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
    renderer = Renderer.from_policy(policy)
    limits = SessionLimits(config.engine.max_context, config.sampling.max_tokens_per_turn, args.max_branches)
    engine = open_engine(config)
    try:
        await engine.load(policy, args.version)
        app = create_app(Gateway(engine, renderer, limits), token)
        with socket.create_server((args.host, args.port)) as listener:
            host, bound = listener.getsockname()[:2]
            print(json.dumps({"url": f"http://{host}:{bound}"}), flush=True)
            await uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off")).serve([listener])
    finally:
        await engine.close()
    return 0
