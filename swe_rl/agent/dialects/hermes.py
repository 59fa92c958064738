"""ChatML with Hermes calls: Qwen 2.5, Qwen 3, SmolLM2, and every ChatML model that says nothing else.

prompt       <|im_start|>system\\n..<|im_end|>\\n<|im_start|>user\\n..<|im_end|>\\n<|im_start|>assistant\\n
completion   <think>\\n..\\n</think>\\n\\nprose\\n<tool_call>\\n{"name": .., "arguments": {..}}\\n</tool_call><|im_end|>
observation  \\n<|im_start|>user\\n<tool_response>\\n..\\n</tool_response><|im_end|>\\n<|im_start|>assistant\\n
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from swe_rl.agent.dialects.base import (
    Call,
    Malformed,
    Message,
    Piece,
    ReadCall,
    Reading,
    Result,
    Sampled,
    Schema,
    blocks,
    listing,
    ours,
    split_system,
    told,
)
from swe_rl.agent.dialects.json_call import check_encodable, read_object, skip, tag_arguments, write
from swe_rl.agent.dialects.marked import THINK_OPEN, Markers, read_marked, think
from swe_rl.trajectory import Segment

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

_EXAMPLE = '{"name": <function-name>, "arguments": <args-json-object>}'
_TOOLS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{example}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class Hermes:
    """`opens_reasoning`: models that always think, whose prompt ends with `<think>\\n`; `doubles_braces`: in the list
    of tools, as Qwen 2.5 Coder's template does by mistake, and as the model was shown."""

    name: str = "hermes"
    opens_reasoning: bool = False
    doubles_braces: bool = False
    needs: tuple[str, ...] = (IM_START, IM_END)
    stops: tuple[str, ...] = (IM_END, "<|endoftext|>")
    answers_errors: bool = True
    differences: Mapping[str, str] = field(
        default_factory=lambda: {"reasoning": "a template that knows no reasoning leaves it out of the history"}
    )

    def prompt(self, messages: Sequence[Message], tools: Sequence[Schema]) -> list[Piece]:
        pieces: list[Piece] = []
        if tools:
            system, messages = split_system(messages)
            text = list_tools(tools)
            if self.doubles_braces:
                text = text.replace(_EXAMPLE, f"{{{_EXAMPLE}}}")
            gap = "\n\n" if system.text else ""
            pieces = [ours(f"{IM_START}system\n"), told(system), listing(gap + text), ours(f"{IM_END}\n")]
        for message in messages:
            pieces += [ours(f"{IM_START}{message.role}\n"), told(message), ours(f"{IM_END}\n")]
        return [*pieces, self._opening()]

    def completion(self, reasoning: str, prose: str, calls: Sequence[Call]) -> list[Piece]:
        pieces = [*think(reasoning, self.opens_reasoning), Piece(prose, Segment.TEXT)]
        return [*pieces, *hermes_calls(calls, after_prose=bool(prose)), ours(IM_END)]

    def observation(self, results: Sequence[Result], stop: str) -> list[Piece]:
        pieces = [ours("" if stop else IM_END)]
        for block in blocks(results):
            pieces += [ours(f"\n{IM_START}user")]
            for result in block:
                before, after = ("", "") if result.by_user else ("<tool_response>\n", "\n</tool_response>")
                pieces += [ours(f"\n{before}"), Piece(result.text, Segment.OBSERVATION), ours(after)]
            pieces += [ours(IM_END)]
        return [*pieces, ours("\n"), self._opening()]

    def read(self, sampled: Sampled) -> Reading:
        return read_marked(sampled, Markers(CALL_OPEN, CALL_CLOSE), read_json_call, self.opens_reasoning)

    def _opening(self) -> Piece:
        return ours(f"{IM_START}assistant\n" + (f"{THINK_OPEN}\n" if self.opens_reasoning else ""))


def list_tools(tools: Sequence[Schema]) -> str:
    return _TOOLS.format(tools="\n".join(write(tool) for tool in tools), example=_EXAMPLE)


def hermes_calls(calls: Sequence[Call], after_prose: bool) -> list[Piece]:
    pieces: list[Piece] = []
    for index, (name, arguments) in enumerate(calls):
        pieces += [ours(("\n" if index or after_prose else "") + f"{CALL_OPEN}\n")]
        pieces += [Piece(write({"name": name, "arguments": dict(arguments)}), Segment.TOOL_ARGS)]
        pieces += [ours(f"\n{CALL_CLOSE}")]
    return pieces


def read_json_call(sampled: Sampled, start: int, segments: NDArray[np.uint8]) -> ReadCall:
    """Reads the call whose opening marker begins at `start`, and tags it. Raises Malformed, segments untouched."""
    body = start + len(CALL_OPEN)
    text = sampled.text[body:]
    fields, after = read_object(text, skip(text, 0))
    if sorted(fields) != ["arguments", "name"]:
        raise Malformed(f"a tool call has the keys name and arguments, got {', '.join(sorted(fields))[:60]}")
    name, arguments = fields["name"], fields["arguments"]
    if not isinstance(name.value, str) or not isinstance(arguments.value, dict):
        raise Malformed("name must be a string and arguments an object")
    close = body + skip(text, after)
    if sampled.find(CALL_CLOSE, close) != close:
        raise Malformed(f"{CALL_CLOSE} must follow the JSON object")
    check_encodable(name.value, arguments.value)

    end = close + len(CALL_CLOSE)
    segments[start:end] = Segment.TOOL_ARGS
    inside = segments[body:]
    name.tag(inside, Segment.TOOL_NAME)
    tag_arguments(text, arguments.start, name.value, inside)
    return ReadCall(name.value, arguments.value, start, end)
