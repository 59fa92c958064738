"""Routes that run something in a session: commands that are waited for, and processes that run on their own.

A command whose caller goes away is ended: nobody could ever read its result. Who wants it to go on starts a process.
"""

import asyncio
import codecs
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive

from swe_rl.errors import SandboxError
from swe_rl.sandbox.base import CommandResult, Process, StreamName
from swe_rl.service.failures import documented
from swe_rl.service.routes.context import (
    FILE_DEADLINE_S,
    GRADE_DEADLINE_S,
    SLACK_S,
    Live,
    Who,
    caller_of,
    command_of,
    command_outcome,
    exec_result,
    process_info,
    read_body,
    service_of,
    using,
)
from swe_rl.service.session import Started
from swe_rl.wire import ExecRequest, ExecResult, ProcessEvent, ProcessInfo, Stream

MAX_WAIT_S = 60.0
POLL_S = 0.1
CALLER_GONE = 499  # for the metrics and the log: nobody is there to read it
CHUNK_BYTES = 64 * 1024
NDJSON = "application/x-ndjson"
router = APIRouter(prefix="/sessions/{session_id}", responses=documented(404), tags=["commands"])
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ExecRequest"}}},
    }
}


@router.post("/exec", response_model=ExecResult, openapi_extra=_BODY)
async def run_command(session_id: str, request: Request) -> Response:
    """Runs one command and waits for it. What it leaves in the background lives on until the session ends."""
    body = await read_body(request, ExecRequest)
    service, caller = service_of(request), caller_of(request)
    command = command_of(body)
    with service.command_slot():
        async with (
            using(service, session_id, caller.name, body.timeout_s + SLACK_S, "a command") as session,
            _while_connected(request),
        ):
            result = await session.sandbox.run(command)
    service.metrics.commands.labels(command_outcome(result)).inc()
    return _json(exec_result(result))


@router.post("/run_tests")
async def run_tests(session_id: str, request: Request, live: Live, who: Who) -> ExecResult:
    """Runs the tests that the agent may see."""
    with live.command_slot():
        async with (
            using(live, session_id, who.name, GRADE_DEADLINE_S, "the visible tests") as session,
            _while_connected(request),
        ):
            return exec_result(await live.gradings.run_visible_tests(session))


@router.post("/processes", status_code=201, response_model=ProcessInfo, openapi_extra=_BODY)
async def start_process(session_id: str, request: Request) -> Response:
    """Starts a command and returns at once; it ends at its own `timeout_s`, or with the session."""
    body = await read_body(request, ExecRequest)
    service, caller = service_of(request), caller_of(request)
    async with using(service, session_id, caller.name, FILE_DEADLINE_S, "starting a process") as session:
        started = await session.start_process(command_of(body))
        return _json(await process_info(started, 0), 201)


@router.get("/processes")
async def list_processes(session_id: str, live: Live, who: Who) -> list[ProcessInfo]:
    """Those that run, and those that ended lately."""
    async with using(live, session_id, who.name, FILE_DEADLINE_S, "listing processes") as session:
        return [await process_info(started, 0) for started in list(session.processes.values())]


@router.get("/processes/{process_id}")
async def get_process(
    session_id: str,
    process_id: str,
    live: Live,
    who: Who,
    wait_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="waits so long for its end")] = 0.0,
) -> ProcessInfo:
    async with using(live, session_id, who.name, wait_s + SLACK_S, "waiting for a process") as session:
        return await process_info(session.find_process(process_id), wait_s)


@router.post("/processes/{process_id}/kill")
async def kill_process(session_id: str, process_id: str, live: Live, who: Who) -> ProcessInfo:
    """Kills its whole tree; safe to call twice."""
    async with using(live, session_id, who.name, FILE_DEADLINE_S, "killing a process") as session:
        started = session.find_process(process_id)
        await started.process.kill()
        return await process_info(started, SLACK_S)


@router.get("/processes/{process_id}/output", response_class=Response, responses={
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
          "headers": {name: {"schema": {"type": "string"}} for name in ("X-Offset", "X-Dropped-Bytes", "X-Is-End")}}
})  # fmt: skip
async def read_output(
    session_id: str,
    process_id: str,
    live: Live,
    who: Who,
    stream: Stream = "stdout",
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=16 * 1024 * 1024)] = 1024 * 1024,
) -> Response:
    """The bytes of a stream from `offset` on, at once. X-Offset says where they begin: older ones may be gone."""
    async with using(live, session_id, who.name, FILE_DEADLINE_S, "reading output") as session:
        chunk = await session.find_process(process_id).process.read(stream, offset, limit)
    headers = {
        "X-Offset": str(chunk.offset),
        "X-Dropped-Bytes": str(chunk.dropped_bytes),
        "X-Is-End": str(chunk.is_end).lower(),
    }
    return Response(chunk.data, media_type="application/octet-stream", headers=headers)


@router.get("/processes/{process_id}/stream", response_class=StreamingResponse, responses={
    200: {"content": {NDJSON: {"schema": {"$ref": "#/components/schemas/ProcessEvent"}}}}
})  # fmt: skip
async def stream_process(session_id: str, process_id: str, live: Live, who: Who) -> StreamingResponse:
    """Lines of JSON: output as it comes, text split at no character, and the result at the end."""
    started = live.sessions.find(session_id, who.name).find_process(process_id)

    async def lines() -> AsyncIterator[bytes]:
        with contextlib.suppress(SandboxError):  # the session ended: so does its stream, without a result
            async with live.sessions.use(session_id, who.name):
                async for event in _events(started):
                    yield event.model_dump_json(exclude_defaults=True).encode() + b"\n"

    return StreamingResponse(lines(), media_type=NDJSON)


async def _events(started: Started) -> AsyncIterator[ProcessEvent]:
    streams: tuple[StreamName, StreamName] = ("stdout", "stderr")
    offsets = dict.fromkeys(streams, 0)
    decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in streams}
    result: CommandResult | None = None
    while True:
        is_over = result is not None
        for stream in streams:
            async for event in _new_output(started.process, stream, offsets, decoders[stream], is_over):
                yield event
        if result is not None:
            yield ProcessEvent(result=exec_result(result))
            return
        result = await started.process.wait(POLL_S)


async def _new_output(
    process: Process,
    stream: StreamName,
    offsets: dict[StreamName, int],
    decoder: codecs.IncrementalDecoder,
    is_over: bool,
) -> AsyncIterator[ProcessEvent]:
    while True:
        chunk = await process.read(stream, offsets[stream], CHUNK_BYTES)
        text = decoder.decode(chunk.data, is_over and not chunk.data)
        offsets[stream] = chunk.offset + len(chunk.data)
        if text:
            yield ProcessEvent(stream=stream, offset=chunk.offset, text=text)
        if not chunk.data:
            return


@contextlib.asynccontextmanager
async def _while_connected(request: Request) -> AsyncIterator[None]:
    """Cancels the block when the caller's connection is gone."""
    block = asyncio.current_task()
    assert block is not None
    is_gone = False

    def leave(_: object) -> None:
        nonlocal is_gone
        if not gone.cancelled():
            is_gone = True
            block.cancel()

    gone = asyncio.create_task(_disconnection(request.receive))
    gone.add_done_callback(leave)
    try:
        yield
    except asyncio.CancelledError:
        if not is_gone:
            raise
        block.uncancel()
        raise HTTPException(CALLER_GONE, "the caller has gone; its command was ended") from None
    finally:
        gone.remove_done_callback(leave)
        gone.cancel()


async def _disconnection(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _json(body: ExecResult | ProcessInfo, status: int = 200) -> Response:
    return Response(body.model_dump_json(), status, media_type="application/json")
