"""The sandbox service over HTTP: sessions, commands, files, patches and verdicts. Bodies are those of swe_rl.wire.

Only the environment side runs this. An answer never holds a hidden test, a solution, or a path of the host.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi

import swe_rl
from swe_rl.errors import ConfigError
from swe_rl.sandbox.base import Backend
from swe_rl.service.failures import documented, install_handlers
from swe_rl.service.gate import Gate
from swe_rl.service.routes import commands, files, grading, mcp, operations, sessions
from swe_rl.service.service import Service, ServiceOptions
from swe_rl.service.tokens import Tokens, single_token
from swe_rl.task.language import LanguageSpec
from swe_rl.task.taskset import TaskSet
from swe_rl.wire import ExecRequest, ProcessEvent

DEFAULTS = ServiceOptions()


def create_app(
    *,
    backend: Backend,
    languages: Mapping[str, LanguageSpec],
    tasks: TaskSet,
    token: str | Tokens,
    max_sessions: int = 256,
    grade_concurrency: int = 4,
    scratch_dir: Path | None = None,
    options: ServiceOptions = DEFAULTS,
) -> FastAPI:
    """The app owns the backend: its shutdown closes every session and the backend. `app.state.service` is the Service.

    `token`: one secret, or tokens with quotas. `max_sessions`, `grade_concurrency` and `scratch_dir` stand for those of
    `options`. Raises ConfigError without a token, or where a task's language isn't among `languages`.
    """
    tokens = token if isinstance(token, Tokens) else single_token(token)
    lacking = sorted({task.language for task in tasks} - set(languages))
    if lacking:
        raise ConfigError(f"sandbox service: tasks of {', '.join(lacking)}, but no such language; give its folder")
    options = replace(options, max_sessions=max_sessions, grade_concurrency=grade_concurrency, scratch_dir=scratch_dir)
    service = Service(backend, languages, tasks, tokens, options)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            await service.open()
            yield
        finally:
            await service.close()

    app = FastAPI(title="swe-rl sandbox service", version=swe_rl.__version__, lifespan=lifespan)
    app.state.service = service
    app.add_middleware(Gate, service=service)
    v1 = APIRouter(prefix="/v1")
    for part in (commands, files, sessions, grading, mcp):  # the routes used most are matched first
        v1.include_router(part.router)
    app.include_router(v1, responses=documented())
    app.include_router(operations.router)
    install_handlers(app)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, and what it can't see: the bearer token, and bodies that are read without it."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes, description=__doc__)
        parts = document.setdefault("components", {})
        parts["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        for model in (ExecRequest, ProcessEvent):
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            parts["schemas"] |= schema.pop("$defs", {}) | {model.__name__: schema}
        for path, methods in document["paths"].items():
            for operation in methods.values():
                if path.startswith("/v1"):
                    operation["security"] = [{"bearer": []}]
        app.openapi_schema = document
    return app.openapi_schema
