"""An `Engine` over a real vLLM server: token ids in; sampled ids, log-probabilities and versions out, over HTTP.

The server is ours (started at the first `load`, restarted when an update fails) or, with `engine.url`, somebody's who
started it with `swe-rl serve inference`. Weights flow by path: server and engine must see the same policy directory.
One engine a server drives the updates. Text never appears here, and neither does torch.

Written against vLLM 0.32: `weight_versions` spans and `/inference/v1/generate` are needed.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from swe_rl.config import EngineConfig
from swe_rl.connections import SpreadTransport
from swe_rl.errors import ConfigError, EngineError, EngineUnavailableError, PolicyError
from swe_rl.inference.engine import Completion, SamplingParams
from swe_rl.inference.vllm_server import VllmServer
from swe_rl.inference.vllm_wire import (
    empty_completion,
    error_message,
    generate_body,
    join_completions,
    read_completion,
)

logger = logging.getLogger(__name__)

# vLLM silently raises a lower positive temperature to this one.
MIN_TEMPERATURE = 0.01
_PAUSE_MODES = {"keep": "keep", "drain": "wait", "abort": "abort"}
_MAX_CUTS = 8
_TIMEOUT = httpx.Timeout(600.0, connect=10.0)


@dataclass(eq=False)
class _Request:
    """One call of `generate` on its way; `is_released`: nobody wants the rest of it."""

    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    is_done: asyncio.Event = field(default_factory=asyncio.Event)
    is_released: bool = False


class VllmEngine:
    """Samples from one policy at a time; concurrent calls of `generate` share the server's batch.

    `work_dir` receives the log of a server of ours; `seed` feeds its sampler (None: a fresh one). `replica`: its index
    among servers of ours on one machine, which share the processors out.
    """

    def __init__(self, config: EngineConfig, work_dir: Path, *, seed: int | None = None, replica: int = 0) -> None:
        self._config = config
        self._work_dir = work_dir
        self._seed = seed
        self._replica = replica
        self._server: VllmServer | None = None
        self._client: httpx.AsyncClient | None = None
        self._version: int | None = None
        self._policy_dir: Path | None = None
        self._vocab_size = 0
        self._fault = "no policy is loaded; call load first"
        self._loading = asyncio.Lock()
        self._running: dict[str, list[_Request]] = {}

    @property
    def url(self) -> str:
        """Address of the server; empty before the first load."""
        return self._config.url or (self._server.url if self._server else "")

    async def load(self, policy_dir: Path, version: int) -> None:
        """Serves `policy_dir` as `version`; `engine.in_flight` says what becomes of generations that run.

        Raises PolicyError if the directory doesn't fit the served model (nothing has changed then), and EngineError if
        the update failed and the server could not be restarted: no token is sampled until a load succeeds.
        """
        directory = policy_dir.resolve()
        async with self._loading:
            if not self._config.url and not (self._server and self._server.is_alive):
                await self._start_server(directory, version)
                return
            try:
                await self._open_client(self.url)
                await self._check(directory)
                await self._replace_weights(directory, version)
            except EngineError as error:
                await self._recover(directory, version, error)
            except asyncio.CancelledError:
                self._version, self._fault = None, f"the update to version {version} was cancelled; load again"
                raise

    async def generate(self, session_id: str, token_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Continues `token_ids`. Temperature 0 is greedy with log-probabilities at temperature 1.

        A context of `max_context` tokens or more gives an empty completion that ended by `length`. A server of ours
        that has died is started again first. Raises EngineUnavailableError if the server doesn't answer, EngineError
        for a refused request, for a log-probability that isn't finite and for tokens of an unknown policy version.
        """
        await self._ready()
        if self._version is None:
            raise EngineError(f"vllm {self.url}: {self._fault}")
        self._check_request(token_ids, sampling)
        room = self._config.max_context - len(token_ids)
        if room < 1:
            return empty_completion()
        budget = min(sampling.max_tokens, room)
        completion, num_cuts = empty_completion(), 0
        with self._tracked(session_id) as request:
            while True:
                if self._version is None:
                    raise EngineUnavailableError(f"vllm {self.url}: {self._fault}")
                num_before = len(completion.token_ids)
                context = [*token_ids, *completion.token_ids.tolist()]
                known = completion.routed_experts.end if completion.routed_experts else sampling.experts_from
                left = replace(sampling, max_tokens=budget - len(completion.token_ids), experts_from=known)
                asks = self._config.return_routed_experts
                body = generate_body(request.request_id, context, left, self._version, asks)
                answer = await self._call("POST", "/inference/v1/generate", json=body)
                completion = join_completions(completion, read_completion(answer, self.url, body))
                was_cut = completion.finish_reason == "abort" and not request.is_released
                if not was_cut or len(completion.token_ids) >= budget:
                    return replace(completion, finish_reason="length") if was_cut else completion
                num_cuts = num_cuts + 1 if len(completion.token_ids) == num_before else 0
                if num_cuts > _MAX_CUTS:
                    raise EngineError(f"vllm {self.url}: cut {num_cuts} times before it sampled a token")

    async def release(self, session_id: str) -> None:
        """Aborts what runs for the session; its cached blocks are evicted when room is needed or weights change."""
        for request in list(self._running.get(session_id, ())):
            request.is_released = True
            # Repeated, because an abort that overtakes its request on the way is lost.
            while not request.is_done.is_set():
                ids = [f"generate-tokens-{request.request_id}"]
                await self._call("POST", "/abort_requests", json={"request_ids": ids})
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(request.is_done.wait(), 0.2)

    async def close(self) -> None:
        """Ends a server of ours and leaves somebody else's alone. Idempotent."""
        self._version, self._fault = None, "the engine is closed"
        await self._close_client()
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)
            self._server = None

    async def _ready(self) -> None:
        """Waits while a server of ours starts, and starts one that died since it last served."""
        server = self._server
        if server is None or (server.is_alive and self._version is not None):
            return
        async with self._loading:
            if self._policy_dir is None or self._version is None or self._server is None or self._server.is_alive:
                return
            logger.warning("vllm %s: %s; starting it again", self.url, self._server.describe_end())
            await self._start_server(self._policy_dir, self._version)

    async def _start_server(self, directory: Path, version: int) -> None:
        self._version, self._fault = None, "its server didn't start; see the error of the load"
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)
        self._server = VllmServer(self._config, directory, self._work_dir, seed=self._seed, replica=self._replica)
        await self._open_client(await self._server.start())
        await self._call("POST", "/update_weight_version", json={"new_version": str(version)})
        await self._probe(directory, version)
        self._policy_dir, self._version = directory, version

    async def _open_client(self, url: str) -> None:
        if self._client is not None and str(self._client.base_url).rstrip("/") != url.rstrip("/"):
            await self._close_client()
        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
            # The server is reached directly: a proxy of the environment isn't for it.
            transport = SpreadTransport(limits)
            self._client = httpx.AsyncClient(base_url=url, timeout=_TIMEOUT, transport=transport, trust_env=False)

    async def _close_client(self) -> None:
        """Requests under way fail as unavailable."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _check(self, directory: Path) -> None:
        """Before anything is touched: a tensor that doesn't fit would leave the server without weights."""
        report = await self._worker_call("swe_rl_check", directory)
        if report["num_problems"]:
            raise PolicyError(
                f"policy {directory}: {report['num_problems']} differences from the model that vllm {self.url} "
                f"serves: {'; '.join(report['problems'])}; nothing was loaded"
            )
        if self._config.return_routed_experts and not report["returns_routed_experts"]:
            raise ConfigError(
                f"engine.return_routed_experts is true, but vllm {self.url} was started without it; start it with it"
            )

    async def _replace_weights(self, directory: Path, version: int) -> None:
        # clear_cache: running requests recompute their keys and values under the new weights instead of mixing both.
        mode = _PAUSE_MODES[self._config.in_flight]
        await self._call("POST", "/pause", params={"mode": mode, "clear_cache": "true"})
        await self._call("POST", "/start_weight_update")
        await self._call("POST", "/update_weights", json={"update_info": {"path": str(directory)}})
        await self._call("POST", "/finish_weight_update", json={"weight_version": str(version)})
        await self._probe(directory, version)
        self._policy_dir, self._version = directory, version
        await self._call("POST", "/resume")
        logger.info("vllm %s: serves policy version %d from %s", self.url, version, directory)

    async def _probe(self, directory: Path, version: int) -> None:
        """The server says that it has the version, and its layers compute with exactly the tensors of the files."""
        served = (await self._call("GET", "/weight_info"))["weight_version"]
        if served != str(version):
            raise EngineError(f"vllm {self.url}: serves version {served!r}, expected {version}")
        report = await self._worker_call("swe_rl_probe", directory)
        if report["num_stale"] or not report["num_checked"]:
            raise EngineError(
                f"vllm {self.url}: {report['num_stale']} parameters differ from {directory} after loading "
                f"({report['num_checked']} tensors checked): {', '.join(report['stale'])}"
            )
        self._vocab_size = int(report["vocab_size"])
        if report["num_unchecked"]:
            logger.warning(
                "vllm %s: %d tensors of %s can't be read back, e.g. %s",
                self.url,
                report["num_unchecked"],
                directory,
                ", ".join(report["unchecked"]),
            )

    async def _recover(self, directory: Path, version: int, error: EngineError) -> None:
        """A half-loaded model must not answer: ours is restarted on the new weights, somebody else's is given up."""
        self._version = None
        self._fault = f"the update to version {version} failed; restart the server: {error}"
        if self._config.url:
            await self._close_client()  # a paused server never answers what runs there: it fails now and goes elsewhere
            raise type(error)(f"vllm {self.url}: {self._fault}") from error
        logger.warning("vllm %s: update to version %d failed, restarting: %s", self.url, version, error)
        await self._start_server(directory, version)

    async def _worker_call(self, method: str, directory: Path) -> dict[str, Any]:
        body = {"method": method, "kwargs": {"path": str(directory)}}
        answer = await self._call("POST", "/collective_rpc", json=body)
        try:
            report = answer["results"][0]
            return dict(report)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(f"vllm {self.url}: {method} answered {str(answer)[:200]!r}") from error

    async def _call(self, method: str, path: str, **request: Any) -> Any:
        client, server = self._client, self._server
        if client is None:
            raise EngineError(f"vllm {self.url}: {self._fault}")
        where = f"vllm {self.url}{path}"
        try:
            response = await client.request(method, path, **request)
            is_healthy = response.status_code < 500 or (await client.get("/health")).status_code == 200
        except (httpx.HTTPError, httpx.InvalidURL, RuntimeError) as error:
            raise await self._unavailable(where, f"no answer, {error!r}", server) from error
        if not is_healthy:
            raise await self._unavailable(where, error_message(response), server)
        if response.status_code != 200:
            raise EngineError(f"{where}: status {response.status_code}: {error_message(response)}")
        return response.json()

    async def _unavailable(self, where: str, what: str, server: VllmServer | None) -> EngineUnavailableError:
        if server is None:
            return EngineUnavailableError(f"{where}: {what}; is the server of engine.url running?")
        # What doesn't answer is ended, so that the next call starts anew instead of asking a dying process again.
        await asyncio.to_thread(server.stop)
        return EngineUnavailableError(f"{where}: {what}; {server.describe_end()}")

    def _check_request(self, token_ids: Sequence[int], sampling: SamplingParams) -> None:
        """What vLLM would change silently, or die of."""
        if 0 < sampling.temperature < MIN_TEMPERATURE:
            raise EngineError(
                f"vllm {self.url}: temperature is {sampling.temperature}, expected 0 or at least {MIN_TEMPERATURE}"
            )
        if not len(token_ids):
            raise EngineError(f"vllm {self.url}: the context is empty, expected at least 1 token")
        low, high = min(token_ids), max(token_ids)
        if low < 0 or high >= self._vocab_size:
            wrong = low if low < 0 else high
            raise EngineError(f"vllm {self.url}: token {wrong} isn't in the vocabulary of {self._vocab_size}")

    @contextlib.contextmanager
    def _tracked(self, session_id: str) -> Iterator[_Request]:
        request = _Request()
        self._running.setdefault(session_id, []).append(request)
        try:
            yield request
        finally:
            request.is_done.set()
            self._running[session_id].remove(request)
            if not self._running[session_id]:
                del self._running[session_id]
