"""The MCP endpoint of a session: JSON-RPC by streamable HTTP, without state and without server-sent streams.

Implements initialize, ping, tools/list and tools/call of the protocol's versions in VERSIONS (modelcontextprotocol.io).
It is reached with the service's token or with the session's own pass, which opens nothing else.
"""

import json
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

import swe_rl
from swe_rl.errors import ConfigError, RateLimitError
from swe_rl.service.failures import documented
from swe_rl.service.mcp_tools import TOOLS, SessionTools, ToolResult
from swe_rl.service.routes.context import GRADE_DEADLINE_S, Live, Who, service_of, using
from swe_rl.service.service import Service
from swe_rl.wire import McpAccess

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
MAX_CALLS = 16  # at once in one session; all of them share the service's slots for commands
INVALID_PARAMS, NO_SUCH_METHOD = -32602, -32601
router = APIRouter(prefix="/sessions/{session_id}", responses=documented(404), tags=["mcp"])
_OBJECT = {"content": {"application/json": {"schema": {"type": "object"}}}}
_EXAMPLE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "bash", "arguments": {"command": "ls"}},
}
_BODY = {"required": True, "content": {"application/json": {"schema": {"type": "object", "examples": [_EXAMPLE]}}}}


@router.get("/mcp_access")
async def get_mcp_access(session_id: str, live: Live, who: Who) -> McpAccess:
    """Address and bearer token to hand to an outside agent."""
    session = live.sessions.find(session_id, who.name)
    path = f"/v1/sessions/{session.session_id}/mcp"
    return McpAccess(path=path, token=live.tokens.session_pass(session.session_id))


@router.post(
    "/mcp",
    response_class=JSONResponse,
    openapi_extra={"requestBody": _BODY},
    responses={200: _OBJECT, 202: {"description": "A notification, taken note of."}},
)
async def call_mcp(session_id: str, request: Request) -> Response:
    """One JSON-RPC message. A request is answered; a notification gets 202."""
    message = _parse(await _read(request))
    service = service_of(request)
    owner = request.state.caller.name if request.state.caller else None  # None: with the session's own pass
    service.sessions.find(session_id, owner)
    if "id" not in message:
        return Response(status_code=202)
    method, params = message["method"], message.get("params") or {}
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if not isinstance(params, dict):
        answer["error"] = {"code": INVALID_PARAMS, "message": "params must be an object"}
    elif method == "initialize":
        answer["result"] = _greeting(params)
    elif method == "ping":
        answer["result"] = {}
    elif method == "tools/list":
        answer["result"] = {"tools": TOOLS}
    elif method == "tools/call":
        answer |= await _call_tool(service, session_id, owner, params)
    else:
        answer["error"] = {"code": NO_SUCH_METHOD, "message": f"no method {method[:80]!r}"}
    text = json.dumps(answer).encode()  # ASCII: what isn't text in an output survives as an escape
    return Response(text, media_type="application/json")


async def _call_tool(service: Service, session_id: str, owner: str | None, params: dict[str, Any]) -> dict[str, Any]:
    name, arguments = params.get("name"), params.get("arguments") or {}
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return {"error": {"code": INVALID_PARAMS, "message": "want a string `name` and an object `arguments`"}}
    if service.sessions.find(session_id, owner).num_calls >= MAX_CALLS:
        raise RateLimitError(f"session {session_id}: {MAX_CALLS} calls run; repeat this one later")
    with service.command_slot():
        async with using(service, session_id, owner, GRADE_DEADLINE_S, "a tool") as session:
            result: ToolResult = await SessionTools(session, service.gradings).call(name, arguments)
    return {"result": {"content": [{"type": "text", "text": result.text}], "isError": result.is_error}}


def _greeting(params: dict[str, Any]) -> dict[str, Any]:
    wanted = params.get("protocolVersion")
    return {
        "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": "swe-rl-sandbox", "version": swe_rl.__version__},
        "instructions": "The tools work in one repository; paths are relative to its root.",
    }


async def _read(request: Request) -> bytes:
    """The endpoint is open to agents that nobody vouches for: JSON takes far more memory than its bytes."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_MESSAGE_BYTES:
            raise ConfigError(f"request: more than the {MAX_MESSAGE_BYTES} bytes that a message may have")
    return bytes(body)


def _parse(body: bytes) -> dict[str, Any]:
    """Raises ConfigError for what isn't one JSON-RPC message; batches were removed from the protocol."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConfigError("request: the body isn't JSON, expected one JSON-RPC message") from error
    is_message = isinstance(message, dict) and message.get("jsonrpc") == "2.0"
    if not is_message or not isinstance(message.get("method"), str):
        raise ConfigError('request: want one JSON-RPC 2.0 message: {"jsonrpc": "2.0", "id": ..., "method": ...}')
    if not isinstance(message.get("id", 0), str | int) or isinstance(message.get("id"), bool):
        raise ConfigError("request: id: want a string or an integer")
    return dict(message)
