"""Updates of a server that speaks as vLLM does but fails, lies or never ends: no token comes of doubtful weights.

What real servers do is in tests/vllm; these are the faults that a real one shows too rarely to be tested by.
"""

import asyncio
import base64
import io
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from swe_rl.config import EngineConfig
from swe_rl.errors import ConfigError, EngineError, EngineUnavailableError, PolicyError
from swe_rl.inference.engine import SamplingParams
from swe_rl.inference.replicas import ReplicatedEngine
from swe_rl.inference.vllm import VllmEngine

PARAMS = SamplingParams(1.0, 8, ())
UPDATE = ["/pause", "/start_weight_update", "/update_weights", "/finish_weight_update"]
GENERATE = "/inference/v1/generate"


def experts_of(context: Sequence[int]) -> NDArray[np.uint8]:
    """[tokens, 2 layers, 2]: each token's tell its position and itself."""
    return np.array([[[position, token], [token, position]] for position, token in enumerate(context, 1)], np.uint8)


def as_text(array: NDArray[np.uint8]) -> str:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return base64.b64encode(buffer.getvalue()).decode()


class Server:
    """Speaks the routes that the engine uses; `refuses` are routes that fail, `answers` what generations come to."""

    def __init__(self) -> None:
        self.url = ""
        self.version = "default"
        self.refuses: set[str] = set()
        self.is_deaf = False  # to the new version
        self.report: dict[str, Any] = {}
        self.num_problems = 0
        self.tells_experts = False
        self.answers: list[tuple[list[int], str]] = []
        self.hangs = asyncio.Event()  # set: generations are never answered
        self.is_asked = asyncio.Event()
        self.ignored_aborts = 0
        self.aborted = asyncio.Event()
        self.calls: list[tuple[str, Any]] = []

    @property
    def routes(self) -> list[str]:
        return [route for route, _ in self.calls]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ")[1].decode().partition("?")[0]
                length = next((int(h.split(b":")[1]) for h in head.lower().split(b"\r\n") if b"content-length" in h), 0)
                body = json.loads(await reader.readexactly(length)) if length else None
                status, answer = (
                    (500, {"error": "refused"}) if path in self.refuses else (200, await self.act(path, body))
                )
                data = json.dumps(answer).encode()
                writer.write(b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n%s" % (status, len(data), data))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def act(self, path: str, body: Any) -> Any:
        self.calls.append((path, body))
        if path == "/finish_weight_update" and not self.is_deaf:
            self.version = body["weight_version"]
        if path == "/weight_info":
            return {"weight_version": self.version}
        if path == "/collective_rpc" and body["method"] == "swe_rl_check":
            problems = ["a tensor is missing"][: self.num_problems]
            told = {"num_problems": self.num_problems, "returns_routed_experts": self.tells_experts}
            return {"results": [{"problems": problems, **told}]}
        if path == "/collective_rpc":
            good = {
                "num_checked": 5,
                "num_stale": 0,
                "stale": [],
                "num_unchecked": 0,
                "unchecked": [],
                "vocab_size": 99,
            }
            return {"results": [good | self.report]}
        if path == "/abort_requests":
            self.ignored_aborts -= 1
            if self.ignored_aborts < 0:
                self.aborted.set()
        if path == GENERATE:
            return await self.generate(body)
        return {}

    async def generate(self, body: Any) -> Any:
        self.is_asked.set()
        if self.hangs.is_set():
            await self.aborted.wait()
            ids, reason = [], "abort"
        else:
            ids, reason = self.answers.pop(0) if self.answers else ([1], "stop")
        content = [{"token_id": token, "logprob": -token / 10} for token in ids]
        spans = [{"version": self.version, "start": 0, "end": len(ids)}]
        choice = {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": reason, "weight_versions": spans}
        start = body["sampling_params"].get("routed_experts_prompt_start")
        if self.tells_experts and start is not None and ids:
            context = [*body["token_ids"], *ids]
            choice["routed_experts"] = as_text(experts_of(context)[start:-1])
        return {"choices": [choice]}


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    yield server
    listener.close()


@pytest.fixture
async def engine(server: Server, tmp_path: Path) -> AsyncIterator[VllmEngine]:
    """Serves version 3."""
    engine = VllmEngine(EngineConfig(kind="vllm", url=server.url), tmp_path)
    await engine.load(tmp_path, 3)
    yield engine
    await engine.close()


async def sample(engine: VllmEngine | ReplicatedEngine, ids: Sequence[int] = (5,)) -> list[int]:
    return (await engine.generate("s", ids, PARAMS)).token_ids.tolist()


async def test_generation_is_paused_before_the_first_tensor_and_goes_on_after_the_weights_were_looked_at(
    server: Server, engine: VllmEngine
) -> None:
    probes = ["/weight_info", "/collective_rpc"]
    assert server.routes == ["/collective_rpc", *UPDATE, *probes, "/resume"]


LIES = {
    "says the version that it had": {"is_deaf": True},
    "computes with old parameters": {"report": {"num_stale": 1, "stale": ["lm_head.weight"]}},
    "has nothing that can be looked at": {"report": {"num_checked": 0}},
    **{f"refuses {route}": {"refuses": {route}} for route in [*UPDATE, "/weight_info", "/resume"]},
}


@pytest.mark.parametrize("fault", LIES.values(), ids=LIES)
async def test_after_an_update_that_is_not_proved_nothing_is_sampled_until_one_is(
    server: Server, engine: VllmEngine, tmp_path: Path, fault: dict[str, Any]
) -> None:
    honest = {name: getattr(server, name) for name in fault}
    server.calls.clear()
    vars(server).update(fault)
    with pytest.raises(EngineError, match="update to version 4 failed"):
        await engine.load(tmp_path, 4)
    with pytest.raises(EngineError, match="update to version 4 failed"):
        await sample(engine)
    assert GENERATE not in server.routes and "/resume" not in server.routes
    vars(server).update(honest)
    await engine.load(tmp_path, 5)
    assert (await engine.generate("s", [5], PARAMS)).policy_version.tolist() == [5]


async def test_a_policy_that_does_not_fit_touches_nothing(server: Server, engine: VllmEngine, tmp_path: Path) -> None:
    server.calls.clear()
    server.num_problems = 1
    with pytest.raises(PolicyError, match="a tensor is missing"):
        await engine.load(tmp_path, 4)
    assert server.routes == ["/collective_rpc"]
    assert (await engine.generate("s", [5], PARAMS)).policy_version.tolist() == [3]


async def test_a_generation_that_runs_when_an_update_fails_is_given_up_and_can_go_on_elsewhere(
    server: Server, engine: VllmEngine, tmp_path: Path
) -> None:
    """The server stays paused and would never answer it: the episode would be blamed for the time."""
    server.hangs.set()
    running = asyncio.create_task(sample(engine))
    await server.is_asked.wait()
    server.refuses = {"/update_weights"}
    with pytest.raises(EngineError):
        await engine.load(tmp_path, 4)
    async with asyncio.timeout(30):
        with pytest.raises(EngineUnavailableError):
            await running


async def test_a_cut_generation_is_one_completion_of_all_its_parts_within_its_budget(
    server: Server, engine: VllmEngine
) -> None:
    server.calls.clear()
    server.answers = [([1, 2], "abort"), ([], "abort"), ([3, 4, 5], "abort"), ([6, 7], "stop")]
    versions = iter("3457")
    generate = server.generate

    async def next_version(body: Any) -> Any:
        server.version = next(versions)
        return await generate(body)

    server.generate = next_version
    completion = await engine.generate("s", [50, 51], PARAMS)
    assert completion.finish_reason == "stop"
    assert completion.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert completion.logprobs.tolist() == pytest.approx([-0.1, -0.2, -0.3, -0.4, -0.5, -0.6, -0.7])
    assert completion.policy_version.tolist() == [3, 3, 5, 5, 5, 7, 7]
    asked = [(body["token_ids"], body["sampling_params"]["max_tokens"]) for _, body in server.calls]
    assert asked == [
        ([50, 51], 8),
        ([50, 51, 1, 2], 6),
        ([50, 51, 1, 2], 6),
        ([50, 51, 1, 2, 3, 4, 5], 3),
    ]


async def test_a_generation_cut_at_the_end_of_its_budget_ended_by_length(server: Server, engine: VllmEngine) -> None:
    server.answers = [([1, 2, 3, 4, 5, 6, 7, 8], "abort")]
    completion = await engine.generate("s", [50], PARAMS)
    assert (len(completion.token_ids), completion.finish_reason) == (8, "length")


async def test_a_release_is_repeated_until_the_generation_has_really_ended(server: Server, engine: VllmEngine) -> None:
    server.hangs.set()
    server.ignored_aborts = 2
    running = asyncio.create_task(engine.generate("s", [5], PARAMS))
    await server.is_asked.wait()
    async with asyncio.timeout(30):
        await engine.release("s")
        assert (await running).finish_reason == "abort"
    assert Counter(server.routes)["/abort_requests"] == 3


async def test_requests_of_two_versions_never_share_cached_blocks(
    server: Server, engine: VllmEngine, tmp_path: Path
) -> None:
    for version in (4, 5):
        await sample(engine)
        await engine.load(tmp_path, version)
    await sample(engine)
    salts = [body["cache_salt"] for route, body in server.calls if route == GENERATE]
    assert len(set(salts)) == len(salts) == 3


async def test_a_replica_that_fails_an_update_gives_its_generations_to_one_that_did_not(
    server: Server, engine: VllmEngine, tmp_path: Path
) -> None:
    other = Server()
    listener = await asyncio.start_server(other.serve, "127.0.0.1", 0)
    other.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    other.answers = [([42], "stop")]
    both = ReplicatedEngine([engine, VllmEngine(EngineConfig(kind="vllm", url=other.url), tmp_path)])
    await both.load(tmp_path, 4)
    server.hangs.set()
    running = asyncio.create_task(sample(both))
    await server.is_asked.wait()
    server.refuses = {"/finish_weight_update"}
    await both.load(tmp_path, 5)
    async with asyncio.timeout(30):
        assert await running == [42]
    await both.close()
    listener.close()


@pytest.fixture
async def telling(server: Server, tmp_path: Path) -> AsyncIterator[VllmEngine]:
    """Asks for experts of a server that tells them."""
    server.tells_experts = True
    engine = VllmEngine(EngineConfig(kind="vllm", url=server.url, return_routed_experts=True), tmp_path)
    await engine.load(tmp_path, 3)
    yield engine
    await engine.close()


@pytest.mark.parametrize("start", [0, 2, 3])
async def test_experts_of_a_generation_that_was_cut_are_put_together_by_position(
    server: Server, telling: VllmEngine, start: int
) -> None:
    server.answers = [([], "abort"), ([11, 12], "abort"), ([13], "abort"), ([], "abort"), ([14, 15], "stop")]
    completion = await telling.generate("s", [7, 8, 9], replace(PARAMS, experts_from=start))
    assert completion.token_ids.tolist() == [11, 12, 13, 14, 15]
    asked = [body["sampling_params"]["routed_experts_prompt_start"] for path, body in server.calls if path == GENERATE]
    assert asked == [start, start, 4, 5, 5]
    assert completion.routed_experts is not None and completion.routed_experts.start == start
    expected = experts_of([7, 8, 9, 11, 12, 13, 14, 15])[start:-1]
    np.testing.assert_array_equal(completion.routed_experts.experts, expected)


async def test_a_server_that_stops_telling_experts_gives_no_completion(server: Server, telling: VllmEngine) -> None:
    server.tells_experts = False
    with pytest.raises(EngineError, match="no routed_experts in the answer"):
        await sample(telling)


async def test_a_server_that_tells_no_experts_is_refused_before_it_gets_weights(server: Server, tmp_path: Path) -> None:
    engine = VllmEngine(EngineConfig(kind="vllm", url=server.url, return_routed_experts=True), tmp_path)
    with pytest.raises(ConfigError, match=r"return_routed_experts is true, but vllm .* was started without it"):
        await engine.load(tmp_path, 3)
    assert server.routes == ["/collective_rpc"]
    await engine.close()
