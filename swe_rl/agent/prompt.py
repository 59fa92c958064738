"""What a policy is told at the start: the messages of an episode's prompt, in one of two kinds.

`full` is for models that know tool calling: role and rules, the tools (listed in the dialect's way), then the task.
`compact` is for tiny policies that learned the tools from demonstrations: no system message, the instruction and the
files. A task's instruction and file names flow in as plain text; nothing of its hidden tests is known here.
"""

from collections.abc import Sequence
from typing import Any, Literal

from swe_rl.agent.dialects.base import Message
from swe_rl.agent.tools import TOOLS

_MAX_FILES = 200  # a large repository's listing would fill the context; the policy can view directories

_SYSTEM = """\
You are a software engineer. You get a repository and an issue. Change the repository so that the issue is solved: \
hidden tests decide. You work through tools, in a sandbox without network.

# Rules

- Every answer must call a tool. Look before you edit, and run the tests before you submit.
- Change the code, not the tests: changes to test files aren't counted.
- Call submit when you are done. What stands in the repository then is graded."""


def build_messages(kind: Literal["full", "compact"], instruction: str, files: Sequence[str]) -> list[Message]:
    """`files`: paths of the repository at the start, relative."""
    if kind == "compact":
        return [Message("user", f"{instruction.strip()}\nFiles:\n" + "\n".join(files))]
    listed = list(files[:_MAX_FILES])
    if len(files) > _MAX_FILES:
        listed.append(f"({len(files) - _MAX_FILES} more)")
    user = f"{instruction.strip()}\n\nThe repository's files:\n" + "\n".join(listed)
    return [Message("system", _SYSTEM, is_ours=True), Message("user", user)]


def list_tools(kind: Literal["full", "compact"]) -> list[dict[str, Any]]:
    """Schemas of the tools that the prompt lists: none in a compact one."""
    return [spec.schema() for spec in TOOLS.values()] if kind == "full" else []
