"""A gateway over a scripted engine, and the SDKs that talk to it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from swe_rl.agent.render import Renderer
from swe_rl.gateway.app import create_app
from swe_rl.gateway.gateway import Gateway
from swe_rl.gateway.session import SessionIds, SessionLimits
from swe_rl.inference.scripted import ScriptedEngine, ScriptedReply
from swe_rl.trajectory import Trajectory

TOKEN = "operator"
IDS = SessionIds("t0", "g0", "task", "train")


@dataclass(frozen=True)
class Field:
    """One gateway; `replies` are played in order, the last one for ever. `contexts` are what the engine was given;
    `ids` are those of the session of `key`."""

    gateway: Gateway
    renderer: Renderer
    engine: ScriptedEngine
    http: httpx.AsyncClient
    replies: list[str | ScriptedReply | Exception]
    contexts: list[str]
    url: str
    token: str = TOKEN
    ids: SessionIds = IDS

    async def post(self, key: str, body: dict[str, Any], path: str = "/v1/chat/completions") -> httpx.Response:
        return await self.http.post(path, json=body, headers={"Authorization": f"Bearer {key}"})

    async def chat(self, key: str, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        response = await self.post(key, {"model": "policy", "messages": messages, **more})
        assert response.status_code == 200, response.text
        return dict(response.json()["choices"][0]["message"])

    async def close(self, name: str = "t0") -> list[Trajectory]:
        return await self.gateway.close(name)

    def sampled_texts(self, trajectory: Trajectory) -> list[str]:
        ids = trajectory.token_ids.tolist()
        return [self.renderer.decode(ids[turn.start : turn.end]) for turn in trajectory.turns]


@pytest.fixture
def limits() -> SessionLimits:
    return SessionLimits(max_context=4000, max_tokens_per_turn=400, max_branches=4)


@pytest.fixture
async def stage(policy_dir: Path, limits: SessionLimits) -> AsyncIterator[Field]:
    replies: list[str | ScriptedReply | Exception] = ["All done."]
    contexts: list[str] = []

    def reply(session_id: str, turn: int, context: str) -> str | ScriptedReply:
        contexts.append(context)
        now = replies.pop(0) if len(replies) > 1 else replies[0]
        if isinstance(now, Exception):
            raise now
        return now

    renderer = Renderer.from_policy(policy_dir)
    engine = ScriptedEngine(reply, policy_dir / "tokenizer.json")
    await engine.load(policy_dir, 7)
    gateway = Gateway(engine, renderer, limits)
    async with serving(create_app(gateway, TOKEN)) as url, httpx.AsyncClient(base_url=url, timeout=120) as http:
        yield Field(gateway, renderer, engine, http, replies, contexts, url)


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    """Over a real socket, as clients bring their own connections."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    running = asyncio.create_task(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running


@pytest.fixture
def key(stage: Field) -> str:
    return stage.gateway.open(IDS)


@pytest.fixture
def script(stage: Field) -> Callable[..., None]:
    """script(reply, ...): what the engine says next."""

    def play(*replies: str | ScriptedReply | Exception) -> None:
        stage.replies[:] = replies

    return play
