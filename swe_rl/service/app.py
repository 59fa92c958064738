"""The sandbox service over HTTP: sessions, commands, files, patches and verdicts. Bodies are those of swe_rl.wire.

Only the environment side runs this. An answer never holds a hidden test, a solution, or a path of the host.
"""

import asyncio
import contextlib
import hashlib
import hmac
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response

import swe_rl
from swe_rl.errors import AuthError, ConfigError, PathError, SandboxTimeoutError
from swe_rl.grade.grader import Grader
from swe_rl.sandbox.backend import default_scratch_dir
from swe_rl.sandbox.base import WORKDIR, Backend, Command, CommandResult
from swe_rl.sandbox.scratch import ScratchDir
from swe_rl.sandbox.tree import MAX_FILE_BYTES
from swe_rl.service.failures import install_handlers
from swe_rl.service.sessions import SLACK_S, Session, Sessions
from swe_rl.task.language import LanguageSpec
from swe_rl.task.spec import TaskSpec
from swe_rl.task.taskset import TaskSet
from swe_rl.wire import CreateSession, ExecRequest, ExecResult, Health, PatchBody, SessionInfo, TaskInfo, VerdictBody

FILE_DEADLINE_S = 60.0
GRADE_DEADLINE_S = 3600.0
MAX_INLINE_BYTES = 100_000
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# A longer script doesn't fit in one argument: it comes first in the standard input, and what follows is the script's.
_FROM_STDIN = 'LC_ALL=C IFS= read -r -N "$1" script; set --; eval "$script"'

router = APIRouter(prefix="/v1")


def create_app(
    *,
    backend: Backend,
    languages: Mapping[str, LanguageSpec],
    tasks: TaskSet,
    token: str,
    max_sessions: int = 256,
    grade_concurrency: int = 4,
    scratch_dir: Path | None = None,
) -> FastAPI:
    """The app owns the backend: its shutdown closes every session and the backend.

    Raises ConfigError without a token, or where a task's language isn't among `languages`.
    `scratch_dir` is where gradings are laid out; on the backend's own file system they are moved instead of copied.
    """
    if not token:
        raise ConfigError("sandbox service: no token; set SWE_RL_SANDBOX_TOKEN to a secret that callers share")
    lacking = sorted({task.language for task in tasks} - set(languages))
    if lacking:
        raise ConfigError(f"sandbox service: tasks of {', '.join(lacking)}, but no such language; give its folder")
    grading = ScratchDir(scratch_dir or default_scratch_dir(), "grading")
    grader = Grader(backend, dict(languages), grade_concurrency, grading.path)
    sessions = Sessions(backend, tasks, languages, grader, max_sessions)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(grading.open)
        reaper = asyncio.create_task(sessions.reap_forever())
        try:
            yield
        finally:
            reaper.cancel()
            await sessions.drain()
            await backend.close()
            await asyncio.to_thread(grading.close)

    app = FastAPI(title="swe-rl sandbox service", version=swe_rl.__version__, lifespan=lifespan)
    app.state.sessions, app.state.token = sessions, token.encode()
    app.include_router(router, dependencies=[Depends(_authenticate)])
    app.get("/health")(_health)
    install_handlers(app)
    return app


async def _authenticate(request: Request) -> None:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), request.app.state.token):
        raise AuthError(
            "sandbox service: the bearer token is missing or wrong; set SWE_RL_SANDBOX_TOKEN as the service has it"
        )


async def _sessions(request: Request) -> Sessions:
    found = request.app.state.sessions  # a coroutine: FastAPI would send a plain function to a thread
    assert isinstance(found, Sessions)
    return found


Live = Annotated[Sessions, Depends(_sessions)]


async def _health(live: Live) -> Health:
    return Health(
        status="ok",
        version=swe_rl.__version__,
        backend=live.backend.name,
        num_sessions=len(live),
        num_tasks=len(live.tasks),
    )


@router.get("/tasks")
async def list_tasks(live: Live, split: str | None = None) -> list[TaskInfo]:
    tasks = live.tasks.tasks(split)
    return await asyncio.to_thread(lambda: [_task_info(task) for task in tasks])  # the first call hashes all folders


@router.post("/sessions", status_code=201)
async def create_session(body: CreateSession, live: Live) -> SessionInfo:
    async with _deadline(FILE_DEADLINE_S, "creating a session"):
        session = await live.create(body.task_id, body.ttl_s, body.idempotency_key)
    return await _session_info(session)


@router.get("/sessions")
async def list_sessions(live: Live) -> list[SessionInfo]:
    return [await _session_info(session) for session in live.list()]


@router.get("/sessions/{session_id}")
async def get_session(session_id: str, live: Live) -> SessionInfo:
    return await _session_info(live.find(session_id))


@router.delete("/sessions/{session_id}", status_code=204)
async def close_session(session_id: str, live: Live) -> None:
    async with _deadline(FILE_DEADLINE_S, f"closing session {session_id}"):
        await live.close(session_id)


@router.post("/sessions/{session_id}/exec")
async def run_command(session_id: str, body: ExecRequest, live: Live) -> ExecResult:
    command = _command(body)
    async with live.use(session_id) as session, _deadline(body.timeout_s + SLACK_S, f"a command in {session_id}"):
        return _exec_result(await session.sandbox.run(command))


@router.post("/sessions/{session_id}/run_tests")
async def run_tests(session_id: str, live: Live) -> ExecResult:
    async with live.use(session_id) as session, _deadline(GRADE_DEADLINE_S, f"the visible tests in {session_id}"):
        return _exec_result(await live.run_visible_tests(session))


@router.get("/sessions/{session_id}/files")
async def read_file(session_id: str, live: Live, path: Annotated[str, Query()]) -> Response:
    async with live.use(session_id) as session, _deadline(FILE_DEADLINE_S, f"reading a file of {session_id}"):
        return Response(await session.sandbox.read_file(path), media_type="application/octet-stream")


@router.put("/sessions/{session_id}/files", status_code=204)
async def write_file(session_id: str, request: Request, live: Live, path: Annotated[str, Query()]) -> None:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_FILE_BYTES:
            raise PathError(f"path {path!r}: more than the {MAX_FILE_BYTES} bytes that a file may have")
    async with live.use(session_id) as session, _deadline(FILE_DEADLINE_S, f"writing a file of {session_id}"):
        await session.sandbox.write_file(path, bytes(data))


@router.get("/sessions/{session_id}/patch")
async def get_patch(session_id: str, live: Live) -> PatchBody:
    async with live.use(session_id) as session, _deadline(FILE_DEADLINE_S, f"the patch of {session_id}"):
        patch = await live.capture_patch(session)
    digest = hashlib.sha256(patch.encode("utf-8", "surrogatepass")).hexdigest()
    return PatchBody(patch=patch, sha256=digest, num_files=len(re.findall(r"^diff --git ", patch, re.MULTILINE)))


@router.post("/sessions/{session_id}/grade")
async def grade(session_id: str, live: Live) -> VerdictBody:
    async with live.use(session_id) as session, _deadline(GRADE_DEADLINE_S, f"grading {session_id}"):
        verdict = await live.grade(session)
    return VerdictBody.model_validate(verdict.to_dict())


@contextlib.asynccontextmanager
async def _deadline(seconds: float, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise SandboxTimeoutError(f"sandbox service: {what} took more than {seconds:g} s") from error


def _command(body: ExecRequest) -> Command:
    unfit = [name for name in body.env if not _VARIABLE.match(name)]
    if unfit:
        raise ConfigError(f"request: env: {unfit[0]!r} isn't a variable's name")
    stdin = body.stdin.encode("utf-8", "replace")
    argv = tuple(body.argv or ())
    if body.script is not None:
        script = body.script.encode("utf-8", "replace")
        if len(script) <= MAX_INLINE_BYTES:
            argv = ("bash", "-c", script.decode())
        else:
            argv, stdin = ("bash", "-c", _FROM_STDIN, "bash", str(len(script))), script + stdin
    return Command(argv, body.cwd, body.env, stdin, body.timeout_s, body.output_limit_bytes)


def _exec_result(result: CommandResult) -> ExecResult:
    return ExecResult(
        exit_code=result.exit_code,
        signal=result.signal,
        stdout=result.stdout.decode(errors="replace"),
        stderr=result.stderr.decode(errors="replace"),
        truncated_bytes=result.truncated_bytes,
        timed_out=result.timed_out,
        oom=result.oom,
        duration_s=result.duration_s,
    )


def _task_info(task: TaskSpec) -> TaskInfo:
    return TaskInfo(
        task_id=task.task_id,
        split=task.split,
        language=task.language,
        instruction=task.instruction,
        content_sha256=task.content_sha256,
        labels=task.labels,
    )


async def _session_info(session: Session) -> SessionInfo:
    return SessionInfo(
        session_id=session.session_id,
        task=await asyncio.to_thread(_task_info, session.task),
        workdir=WORKDIR,
        files=sorted(session.base),
        expires_in_s=session.expires_in_s,
    )
