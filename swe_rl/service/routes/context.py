"""What every route needs: the service, who calls, a deadline, and bodies of wire made from the service's nouns."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel

from swe_rl.errors import AuthError, ConfigError, SandboxTimeoutError
from swe_rl.sandbox.base import WORKDIR, Command, CommandResult
from swe_rl.service.logs import SESSION_ID
from swe_rl.service.service import Service
from swe_rl.service.session import Session, Started
from swe_rl.service.tokens import Caller
from swe_rl.task.spec import TaskSpec
from swe_rl.wire import ExecRequest, ExecResult, ProcessInfo, SessionInfo, TaskInfo

FILE_DEADLINE_S = 60.0
GRADE_DEADLINE_S = 3600.0
SLACK_S = 60.0
MAX_INLINE_BYTES = 100_000
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# A longer script doesn't fit in one argument: it comes first in the standard input, and what follows is the script's.
_FROM_STDIN = 'LC_ALL=C IFS= read -r -N "$1" script; set --; eval "$script"'
M = TypeVar("M", bound=BaseModel)


def service_of(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


def caller_of(request: Request) -> Caller:
    """Raises AuthError on a route that the gate left open."""
    caller = request.state.caller
    if not isinstance(caller, Caller):
        raise AuthError("sandbox service: this path needs the service's own token")
    return caller


async def _service(request: Request) -> Service:
    return service_of(request)  # a coroutine: FastAPI would send a plain function to a thread


async def _caller(request: Request) -> Caller:
    return caller_of(request)


Live = Annotated[Service, Depends(_service)]
Who = Annotated[Caller, Depends(_caller)]


@contextlib.asynccontextmanager
async def using(
    service: Service, session_id: str, owner: str | None, deadline_s: float, what: str
) -> AsyncIterator[Session]:
    """The session for one call of `what`, that ends at the deadline with SandboxTimeoutError."""
    SESSION_ID.set(session_id)
    async with service.sessions.use(session_id, owner) as session, deadline(deadline_s, f"{what} in {session_id}"):
        yield session


@contextlib.asynccontextmanager
async def deadline(seconds: float, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except SandboxTimeoutError:  # of an operation within: it says itself which
        raise
    except TimeoutError as error:
        raise SandboxTimeoutError(f"sandbox service: {what} took more than {seconds:g} s") from error


async def read_body(request: Request, model: type[M]) -> M:
    """The body, read without the framework's own steps; pydantic's error becomes a 422 as everywhere."""
    return model.model_validate_json(await request.body(), strict=True)


def check_env(env: dict[str, str]) -> None:
    """Raises ConfigError for a name that no shell could set."""
    unfit = [name for name in env if not _VARIABLE.match(name)]
    if unfit:
        raise ConfigError(f"request: env: {unfit[0][:80]!r} isn't a variable's name")
    if any("\0" in value for value in env.values()):
        raise ConfigError("request: env: a NUL byte in a variable's value")


def command_of(body: ExecRequest) -> Command:
    if body.env:
        check_env(body.env)
    stdin = body.stdin.encode("utf-8", "replace")
    argv = tuple(body.argv or ())
    if body.script is not None:
        script = body.script.encode("utf-8", "replace")
        if len(script) <= MAX_INLINE_BYTES:
            argv = ("bash", "-c", script.decode())
        else:
            argv, stdin = ("bash", "-c", _FROM_STDIN, "bash", str(len(script))), script + stdin
    return Command(argv, body.cwd, body.env, stdin, body.timeout_s, body.output_limit_bytes)


def exec_result(result: CommandResult) -> ExecResult:
    return ExecResult(
        exit_code=result.exit_code,
        signal=result.signal,
        stdout=result.stdout.decode(errors="replace"),
        stderr=result.stderr.decode(errors="replace"),
        truncated_bytes=result.truncated_bytes,
        timed_out=result.timed_out,
        oom=result.oom,
        pids_exceeded=result.pids_exceeded,
        disk_full=result.disk_full,
        duration_s=result.duration_s,
    )


def command_outcome(result: CommandResult) -> str:
    """One word for the metrics."""
    if result.timed_out:
        return "timeout"
    for flag in ("oom", "pids_exceeded", "disk_full"):
        if getattr(result, flag):
            return flag
    return "signal" if result.exit_code is None else "ok" if result.exit_code == 0 else "failed"


async def process_info(started: Started, wait_s: float) -> ProcessInfo:
    result = await started.process.wait(wait_s)
    return ProcessInfo(
        process_id=started.process.process_id,
        command=started.command.encode("utf-8", "replace").decode(),
        is_running=result is None,
        result=None if result is None else exec_result(result),
    )


def task_info(task: TaskSpec) -> TaskInfo:
    """Blocks: hashes the task's folder when it is asked for first."""
    return TaskInfo(
        task_id=task.task_id,
        split=task.split,
        language=task.language,
        instruction=task.instruction,
        content_sha256=task.content_sha256,
        labels=task.labels,
    )


async def session_info(session: Session) -> SessionInfo:
    return SessionInfo(
        session_id=session.session_id,
        task=None if session.task is None else await asyncio.to_thread(task_info, session.task),
        language=session.blueprint.language.language,
        workdir=WORKDIR,
        files=sorted(session.base),
        expires_in_s=session.expires_in_s,
        lease_id=session.terms.lease_id,
    )
