"""The agent's tools: what a policy may call, and what each call does to its session.

A call's name and arguments flow in, one short observation flows out; a mistake of the policy is an observation too,
never an exception. Faults of the environment (SandboxError, but not PathError, which the policy's path caused) pass
through. Nothing here knows tokens; observations are trimmed by the loop.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from swe_rl.client import SandboxClient
from swe_rl.errors import PathError
from swe_rl.wire import ExecRequest, ExecResult

_MAX_PATH = 1000  # no repository has longer ones, and a URL of the service's has to hold it
_JSON_TYPES: dict[str, type] = {"string": str, "integer": int}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a tool; `is_diff`: its text is a change to the repository (tokens tagged DIFF)."""

    type: str
    description: str
    required: bool = True
    is_diff: bool = False


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the policy sees it."""

    name: str
    description: str
    arguments: Mapping[str, Argument]

    def schema(self) -> dict[str, Any]:
        """The JSON schema in the form that Hermes prompts list."""
        properties = {k: {"type": a.type, "description": a.description} for k, a in self.arguments.items()}
        required = [k for k, a in self.arguments.items() if a.required]
        parameters = {"type": "object", "properties": properties, "required": required}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call came to. `exit_code` is that of the command where one ran; `is_final` ends the episode."""

    text: str
    exit_code: int | None = None
    is_final: bool = False


_PATH = Argument("string", "path relative to the repository root")
TOOLS: Mapping[str, ToolSpec] = {
    spec.name: spec
    for spec in (
        ToolSpec(
            "view",
            "Show a file, or the entries of a directory.",
            {
                "path": _PATH,
                "start": Argument("integer", "first line, counted from 1", required=False),
                "end": Argument("integer", "last line, included", required=False),
            },
        ),
        ToolSpec(
            "edit",
            "Replace the one place where `old` occurs in a file by `new`.",
            {
                "path": _PATH,
                "old": Argument("string", "exact text that occurs once", is_diff=True),
                "new": Argument("string", "text to put in its place", is_diff=True),
            },
        ),
        ToolSpec(
            "create",
            "Write a whole file, new or in place of the old one.",
            {"path": _PATH, "content": Argument("string", "the file's text", is_diff=True)},
        ),
        ToolSpec(
            "bash",
            "Run a command with bash in the repository root.",
            {"command": Argument("string", "the command line")},
        ),
        ToolSpec("run_tests", "Run the repository's visible tests.", {}),
        ToolSpec("submit", "Hand in the repository as it stands; ends the task.", {}),
    )
}


def find_mistake(name: str, arguments: Mapping[str, Any]) -> str:
    """Says what is wrong with a call in a few words; '' if it can run."""
    spec = TOOLS.get(name)
    if spec is None:
        return f"no tool `{name}`; tools: {', '.join(TOOLS)}"
    for key in arguments:
        if key not in spec.arguments:
            return f"{name} has no argument `{key}`"
    for key, argument in spec.arguments.items():
        if key not in arguments:
            if argument.required:
                return f"{name} needs `{key}`"
            continue
        value = arguments[key]
        if isinstance(value, bool) or not isinstance(value, _JSON_TYPES[argument.type]):
            return f"`{key}` must be of type {argument.type}"
        if key in ("path", "command") and (not str(value).strip() or "\0" in str(value)):
            return f"`{key}` is empty or holds a NUL"
        if key == "path" and len(str(value)) > _MAX_PATH:
            return f"`path` has more than {_MAX_PATH} characters"
    return ""


class Toolbox:
    """The tools bound to one session."""

    def __init__(self, client: SandboxClient, session_id: str, workdir: str, exec_timeout_s: float) -> None:
        self._client = client
        self._session_id = session_id
        self._workdir = workdir.rstrip("/")
        self._exec_timeout_s = exec_timeout_s
        self._run: dict[str, Callable[..., Awaitable[ToolResult]]] = {
            "view": self._view,
            "edit": self._edit,
            "create": self._create,
            "bash": self._bash,
            "run_tests": self._run_tests,
            "submit": self._submit,
        }

    async def run(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Runs one call. Raises SandboxError for a fault of the environment only."""
        mistake = find_mistake(name, arguments)
        if mistake:
            return _error(mistake)
        return await self._run[name](**arguments)

    def _relative(self, path: str) -> str:
        """Policies name files by absolute paths too; the service takes relative ones."""
        if path.rstrip("/") == self._workdir:
            return "."
        return path.removeprefix(f"{self._workdir}/")

    async def _view(self, path: str, start: int | None = None, end: int | None = None) -> ToolResult:
        path = self._relative(path)
        try:
            data = await self._client.read_file(self._session_id, path)
        except PathError:
            return await self._list(path)
        text = data.decode("utf-8", "replace")
        if start is None and end is None:
            return ToolResult(text or "(empty file)")
        lines = text.splitlines(keepends=True)
        first, last = start if start is not None else 1, end if end is not None else len(lines)
        if not 1 <= first <= last or first > len(lines):
            return _error(f"lines {first}-{last} of {path}, which has {len(lines)}")
        return ToolResult("".join(lines[first - 1 : last]))

    async def _list(self, path: str) -> ToolResult:
        # The slash makes `ls` refuse everything that isn't a directory.
        argv = ["ls", "-1Ap", "--", path.rstrip("/") + "/"]
        request = ExecRequest(argv=argv, timeout_s=self._exec_timeout_s)
        result = await self._client.exec(self._session_id, request)
        if result.exit_code != 0:
            return _error(f"no file {path}")
        entries = [entry for entry in result.stdout.splitlines() if entry != ".git/"]
        return ToolResult("\n".join(entries) or "(empty directory)")

    async def _edit(self, path: str, old: str, new: str) -> ToolResult:
        path = self._relative(path)
        if not old:
            return _error("`old` is empty")
        if old == new:
            return _error("`old` and `new` are equal")
        try:
            data = await self._client.read_file(self._session_id, path)
        except PathError:
            return _error(f"no file {path}")
        before = old.encode()
        # Bytes, not text: files of any encoding stay intact around the change.
        count = data.count(before)
        if count == 0:
            return _error(f"`old` is not in {path}")
        if count > 1 or data.find(before, data.find(before) + 1) >= 0:  # the second test sees overlapping places
            return _error(f"`old` is more than once in {path}; give more of it")
        return await self._write(path, data.replace(before, new.encode()))

    async def _create(self, path: str, content: str) -> ToolResult:
        return await self._write(self._relative(path), content.encode())

    async def _write(self, path: str, data: bytes) -> ToolResult:
        try:
            await self._client.write_file(self._session_id, path, data)
        except PathError:
            return _error(f"{path} can't be written")
        return ToolResult("ok")

    async def _bash(self, command: str) -> ToolResult:
        request = ExecRequest(script=command, timeout_s=self._exec_timeout_s)
        return _report(await self._client.exec(self._session_id, request))

    async def _run_tests(self) -> ToolResult:
        return _report(await self._client.run_tests(self._session_id))

    async def _submit(self) -> ToolResult:
        return ToolResult("submitted", is_final=True)


def _error(mistake: str) -> ToolResult:
    return ToolResult(f"error: {mistake}")


def _report(result: ExecResult) -> ToolResult:
    """Output as it is; how the command ended only where it ended badly."""
    if result.timed_out:
        ending = "timed out"
    elif result.oom:
        ending = "out of memory"
    elif result.signal is not None:
        ending = f"signal {result.signal}"
    else:
        ending = f"exit {result.exit_code}" if result.exit_code else ""
    output = [part.strip("\n") for part in (result.stdout, result.stderr)]
    text = "\n".join(part for part in [*output, ending] if part)
    return ToolResult(text or "ok", exit_code=result.exit_code)
