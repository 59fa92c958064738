"""`swe-rl serve inference`: one vLLM server of a policy, with the routes that weight updates need.

Prints one line of JSON with its address once it is healthy, then runs until it is told to stop.
"""

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swe_rl.inference.vllm_server import VllmServer

HELP = "serve a policy with vLLM"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", help="TOML file, or the name of a shipped one")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one key")
    parser.add_argument("--policy", type=Path, metavar="DIR", help="Hugging Face directory; default: policy.path")
    parser.add_argument(
        "--host", default="127.0.0.1", help="default: 127.0.0.1; no route asks for a token: keep it private"
    )
    parser.add_argument("--port", type=port, default=0, help="0 (default): a free one")
    parser.add_argument("--work-dir", type=Path, metavar="DIR", help="for the log; default: <run directory>/inference")


def port(text: str) -> int:
    """The value of a flag `--port`."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"is {text!r}, expected 0 to 65535")
    return int(text)


def run(args: argparse.Namespace) -> int:
    from swe_rl.config import load_config
    from swe_rl.inference.vllm_server import VllmServer

    config = load_config(args.config, args.set)
    server = VllmServer(
        config.engine,
        args.policy or config.policy.path,
        args.work_dir or config.run.dir / "inference",
        host=args.host,
        port=args.port,
    )
    return asyncio.run(_serve(server))


async def _serve(server: "VllmServer") -> int:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    starting = asyncio.create_task(server.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
    try:
        print(json.dumps({"url": await starting}), flush=True)
        while server.is_alive and not stop.is_set():
            await asyncio.wait({stopping}, timeout=0.5)
    except asyncio.CancelledError:
        return 0
    finally:
        stopping.cancel()
        await asyncio.to_thread(server.stop)
    if stop.is_set():
        return 0
    print(f"vllm {server.url}: {server.describe_end()}", file=sys.stderr)
    return 1
