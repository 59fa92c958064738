"""What a policy is told at the start: the messages of an episode's prompt, in one of two kinds.

`full` is for models that know tool calling: role, tools in Hermes form and rules, then the task. `compact` is for tiny
policies that learned the tools from demonstrations: no system message, the instruction and the files. A task's
instruction and file names flow in as plain text; nothing of its hidden tests is known here.
"""

import json
from collections.abc import Sequence
from typing import Literal

from swe_rl.agent.render import Message
from swe_rl.agent.tools import TOOLS

_MAX_FILES = 200  # a large repository's listing would fill the context; the policy can view directories

_SYSTEM = """\
You are a software engineer. You get a repository and an issue. Change the repository so that the issue is solved: \
hidden tests decide. You work through tools, in a sandbox without network.

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>

# Rules

- Every answer must call a tool. Look before you edit, and run the tests before you submit.
- Change the code, not the tests: changes to test files aren't counted.
- Call submit when you are done. What stands in the repository then is graded."""


def build_messages(kind: Literal["full", "compact"], instruction: str, files: Sequence[str]) -> list[Message]:
    """`files`: paths of the repository at the start, relative."""
    if kind == "compact":
        return [Message("user", f"{instruction.strip()}\nFiles:\n" + "\n".join(files))]
    tools = "\n".join(json.dumps(spec.schema()) for spec in TOOLS.values())
    listed = list(files[:_MAX_FILES])
    if len(files) > _MAX_FILES:
        listed.append(f"({len(files) - _MAX_FILES} more)")
    user = f"{instruction.strip()}\n\nThe repository's files:\n" + "\n".join(listed)
    return [Message("system", _SYSTEM.format(tools=tools), is_ours=True), Message("user", user)]
