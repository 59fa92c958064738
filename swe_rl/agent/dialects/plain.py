"""Headings in plain text, for models that were taught no chat: no template, or one of an unknown family.

    prompt       ### System\\n\\n..\\n\\n### User\\n\\n..\\n\\n### Assistant\\n\\n
    completion   prose\\n<tool_call>\\n{"name": .., "arguments": {..}}\\n</tool_call>  and the end token
    observation  \\n\\n### Result\\n\\n..\\n\\n### Assistant\\n\\n

Here nothing but the markers' spelling tells our text from others': a heading in a file looks like one of ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from swe_rl.agent.dialects.base import (
    Call,
    Message,
    Piece,
    Reading,
    Result,
    Sampled,
    Schema,
    listing,
    ours,
    split_system,
    told,
)
from swe_rl.agent.dialects.hermes import CALL_CLOSE, CALL_OPEN, hermes_calls, list_tools, read_json_call
from swe_rl.agent.dialects.marked import Markers, read_marked, think
from swe_rl.trajectory import Segment

_OPENING = "### Assistant\n\n"


@dataclass(frozen=True, slots=True)
class Plain:
    """`stops` and `needs` hold the tokenizer's own end token."""

    stops: tuple[str, ...]
    needs: tuple[str, ...]
    name: str = "plain"
    opens_reasoning: bool = False
    answers_errors: bool = True
    differences: Mapping[str, str] = field(default_factory=dict)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Schema]) -> list[Piece]:
        pieces: list[Piece] = []
        if tools:
            system, messages = split_system(messages)
            gap = "\n\n" if system.text else ""
            pieces += [ours("### System\n\n"), told(system), listing(gap + list_tools(tools)), ours("\n\n")]
        for message in messages:
            pieces += [ours(f"### {message.role.capitalize()}\n\n"), told(message), ours("\n\n")]
        return [*pieces, ours(_OPENING)]

    def completion(self, reasoning: str, prose: str, calls: Sequence[Call]) -> list[Piece]:
        pieces = [*think(reasoning, False), Piece(prose, Segment.TEXT), *hermes_calls(calls, after_prose=bool(prose))]
        return [*pieces, ours(self.stops[0])]

    def observation(self, results: Sequence[Result], stop: str) -> list[Piece]:
        pieces = [ours("" if stop else self.stops[0])]
        for result in results:
            heading = "User" if result.by_user else "Result"
            pieces += [ours(f"\n\n### {heading}\n\n"), Piece(result.text, Segment.OBSERVATION)]
        return [*pieces, ours(f"\n\n{_OPENING}")]

    def read(self, sampled: Sampled) -> Reading:
        return read_marked(sampled, Markers(CALL_OPEN, CALL_CLOSE), read_json_call, False)
