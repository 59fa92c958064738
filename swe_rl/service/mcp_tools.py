"""The tools of one session as an outside agent sees them by MCP: names, schemas, and what each call does.

A mistake of the agent's is a result with `isError`, never an exception; a fault of the environment passes through.
Nothing here gives a verdict: whoever owns the session grades it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from swe_rl.errors import PathError
from swe_rl.sandbox.base import Command, CommandResult
from swe_rl.service.grading import Gradings
from swe_rl.service.session import Session

MAX_TIMEOUT_S = 600
MAX_SHOWN_BYTES = 64 * 1024
MAX_DIFF = 1024 * 1024
_LINE_END = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # as str.splitlines has them
_TYPES: dict[str, type] = {"string": str, "integer": int}
_PATH = {"type": "string", "description": "path relative to the repository root"}


def _tool(name: str, description: str, required: tuple[str, ...], **properties: dict[str, str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"name": name, "description": description, "inputSchema": schema}


TOOLS: tuple[dict[str, Any], ...] = (
    _tool(
        "bash", "Run a command with bash in the repository root.", ("command",),
        command={"type": "string", "description": "the command line"},
        timeout_s={"type": "integer", "description": f"seconds it may take, up to {MAX_TIMEOUT_S} (default 60)"},
    ),
    _tool(
        "view", "Show a file, lines numbered.", ("path",), path=_PATH,
        start={"type": "integer", "description": "first line, counted from 1"},
        end={"type": "integer", "description": "last line, included"},
    ),
    _tool(
        "edit", "Replace the one place where `old` occurs in a file by `new`.", ("path", "old", "new"), path=_PATH,
        old={"type": "string", "description": "exact text that occurs once"},
        new={"type": "string", "description": "text to put in its place"},
    ),
    _tool(
        "create", "Write a whole file, new or in place of the old one.", ("path", "content"), path=_PATH,
        content={"type": "string", "description": "the file's text"},
    ),
    _tool("run_tests", "Run the repository's visible tests.", ()),
    _tool("diff", "Show all that was changed so far, as a unified diff.", ()),
)  # fmt: skip
_SCHEMAS: dict[str, dict[str, Any]] = {tool["name"]: tool["inputSchema"] for tool in TOOLS}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """`is_error`: the call was wrong, or what it ran failed."""

    text: str
    is_error: bool = False


def find_mistake(name: str, arguments: Mapping[str, Any]) -> str:
    """Says what is wrong with a call in a few words; '' if it can run."""
    schema = _SCHEMAS.get(name)
    if schema is None:
        return f"no tool {name!r}; there are: {', '.join(_SCHEMAS)}"
    for key, value in arguments.items():
        if key not in schema["properties"]:
            return f"{name} has no argument {key!r}"
        kind = schema["properties"][key]["type"]
        if isinstance(value, bool) or not isinstance(value, _TYPES[kind]):
            return f"{key} must be of type {kind}"
        if key in ("command", "path") and "\0" in str(value):
            return f"{key} holds a NUL"
        if isinstance(value, str) and not _is_text(value):
            return f"{key} holds half a character"
    missing = [key for key in schema["required"] if key not in arguments]
    return f"{name} needs {missing[0]!r}" if missing else ""


def _is_text(value: str) -> bool:
    """False for a lone surrogate; those that stand for bytes which aren't UTF-8 are all right, `view` shows them."""
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


class SessionTools:
    """The tools bound to one session."""

    def __init__(self, session: Session, gradings: Gradings) -> None:
        self._session = session
        self._gradings = gradings
        self._run: dict[str, Callable[..., Awaitable[ToolResult]]] = {
            "bash": self._bash,
            "view": self._view,
            "edit": self._edit,
            "create": self._create,
            "run_tests": self._run_tests,
            "diff": self._diff,
        }

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Raises SandboxError for a fault of the environment only."""
        if mistake := find_mistake(name, arguments):
            return ToolResult(mistake, True)
        try:
            return await self._run[name](**arguments)
        except PathError as error:
            return ToolResult(str(error), True)

    async def _bash(self, command: str, timeout_s: int = 60) -> ToolResult:
        if not 0 < timeout_s <= MAX_TIMEOUT_S:
            return ToolResult(f"timeout_s must be from 1 to {MAX_TIMEOUT_S}", True)
        argv = ("bash", "-c", command.encode("utf-8", "replace").decode())
        return _shown(await self._session.sandbox.run(Command(argv, timeout_s=timeout_s)))

    async def _view(self, path: str, start: int = 1, end: int | None = None) -> ToolResult:
        text = await self._text(path)
        return await asyncio.to_thread(_numbered, path, text, start, end)

    async def _edit(self, path: str, old: str, new: str) -> ToolResult:
        text = await self._text(path)
        count = text.count(old) if old else 0
        if count != 1:
            return ToolResult(f"{path}: `old` occurs {count} times, expected once", True)
        return await self._create(path, text.replace(old, new))

    async def _create(self, path: str, content: str) -> ToolResult:
        await self._session.sandbox.write_file(path, content.encode("utf-8", "surrogateescape"))
        return ToolResult(f"{path}: written")

    async def _run_tests(self) -> ToolResult:
        return _shown(await self._gradings.run_visible_tests(self._session))

    async def _diff(self) -> ToolResult:
        text = await self._gradings.capture_patch(self._session) or "nothing was changed"
        cut = f"\n[... {len(text) - MAX_DIFF} characters left out ...]" if len(text) > MAX_DIFF else ""
        return ToolResult(text[:MAX_DIFF] + cut)

    async def _text(self, path: str) -> str:
        """Bytes that aren't UTF-8 come back as they were when the text is written again."""
        return (await self._session.sandbox.read_file(path)).decode("utf-8", "surrogateescape")


def _numbered(path: str, text: str, start: int, end: int | None) -> ToolResult:
    """Made line by line and no further than what is shown: a file may consist of line ends alone."""
    shown: list[str] = []
    room, number, at = MAX_SHOWN_BYTES, 0, 0
    while at < len(text) and room > 0 and (end is None or number < end):
        found = _LINE_END.search(text, at)
        stop, after = found.span() if found else (len(text), len(text))
        number += 1
        if number >= start:
            shown.append(f"{number:6}\t{text[at : min(stop, at + room)]}")
            room -= len(shown[-1]) + 1
        at = after
    return ToolResult("\n".join(shown)[:MAX_SHOWN_BYTES] or f"{path}: no lines there; it has {number}")


def _shown(result: CommandResult) -> ToolResult:
    parts = [result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace")]
    text = "\n".join(part.rstrip("\n") for part in parts if part)
    notes = ["time limit"] if result.timed_out else []
    notes += [flag for flag in ("oom", "pids_exceeded", "disk_full") if getattr(result, flag)]
    if result.exit_code is None:
        notes.append(f"signal {result.signal}" if result.signal else "killed")
    elif result.exit_code:
        notes.append(f"exit code {result.exit_code}")
    return ToolResult("\n".join([*([text] if text else []), *(f"[{note}]" for note in notes)]), bool(notes))
