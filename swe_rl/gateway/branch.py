"""One line of a conversation, as tokens: what the scaffold said, and what was sampled after it.

Only appended to. A conversation that goes on elsewhere than at the end of a branch becomes a branch of its own, which
holds the shared tokens as context: what was sampled once is trained on once, in the branch that sampled it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from swe_rl.agent.record import Recording
from swe_rl.agent.render import Message, ParsedCompletion, Rendered, Renderer, Result
from swe_rl.gateway.messages import ChatCall, ChatMessage, RequestError
from swe_rl.inference.engine import Completion
from swe_rl.trajectory import Segment


@dataclass(frozen=True, slots=True)
class Tip:
    """A place where a conversation can go on: behind `num_messages` messages, the last of which is an assistant's, and
    `length` tokens; `stop` ended that message ('': it was cut)."""

    num_messages: int
    length: int
    stop: str


@dataclass(eq=False)
class Branch:
    """`name` is its trajectory's; `is_busy`: a completion is on its way, and nothing else may be said."""

    name: str
    tools: Sequence[Mapping[str, Any]]
    messages: list[ChatMessage] = field(default_factory=list)
    recording: Recording = field(default_factory=Recording)
    tips: list[Tip] = field(default_factory=list)
    is_busy: bool = False

    def tip_within(self, num_messages: int) -> Tip | None:
        """The last place within the first so many messages from which it can go on."""
        return next((tip for tip in reversed(self.tips) if tip.num_messages <= num_messages), None)

    def ends_at(self, tip: Tip) -> bool:
        return not self.is_busy and len(self.messages) == tip.num_messages

    def fits(self, tip: Tip, rest: Sequence[ChatMessage]) -> bool:
        """Can `rest` be said behind `tip`?"""
        return True

    def fork(self, tip: Tip, name: str) -> "Branch":
        """Another branch from `tip` on, all of whose tokens are context."""
        tips = [one for one in self.tips if one.num_messages <= tip.num_messages]
        messages, recording = self.messages[: tip.num_messages], self.recording.as_context(tip.length)
        return type(self)(name, self.tools, messages, recording, tips)

    def say(self, messages: Sequence[ChatMessage], renderer: Renderer, max_context: int) -> None:
        """Appends what isn't sampled here, up to the opening of the next completion.

        An assistant's message among it is written as the policy would have. Raises RequestError, with nothing appended,
        for what can't be rendered or leaves no room for a token.
        """
        parts: list[Rendered] = []
        tips: list[Tip] = []
        heard: list[ChatMessage] = []
        for count, message in enumerate(messages, start=len(self.messages) + 1):
            if message.role != "assistant":
                heard.append(message)
                continue
            written, stop = _write(message, renderer, self.tools)
            parts += [self._hear(heard, [*self.tips, *tips], renderer), written]
            length = len(self.recording) + sum(len(part.token_ids) for part in parts)
            tips.append(Tip(count, length, stop))
            heard = []
        parts.append(self._hear(heard, [*self.tips, *tips], renderer))
        length = len(self.recording) + sum(len(part.token_ids) for part in parts)
        if length >= max_context:
            raise RequestError(
                f"the conversation has {length} tokens, and the context ends at {max_context}",
                "context_length_exceeded",
            )
        for part in parts:
            self.recording.add_rendered(part)
        self.messages += messages
        self.tips += tips

    def unsay(self) -> None:
        """Takes back what was said since the last tip: it was never answered."""
        num_messages, length = (self.tips[-1].num_messages, self.tips[-1].length) if self.tips else (0, 0)
        del self.messages[num_messages:]
        self.recording.cut(length)

    def answer(self, completion: Completion, parsed: ParsedCompletion, message: ChatMessage) -> None:
        """Appends what was sampled, and the message that the scaffold is told of it."""
        self.recording.add_completion(completion, parsed)
        self.messages.append(message)
        self.tips.append(Tip(len(self.messages), len(self.recording), parsed.stop))

    def told(self, token_ids: Sequence[int], parsed: ParsedCompletion, renderer: Renderer) -> ChatMessage:
        """The message that the scaffold is told of what was sampled: prose, and calls that can be read."""
        calls = () if parsed.problem else parsed.calls
        heard = {Segment.TEXT} if calls else {*Segment} - {Segment.REASONING, Segment.STOP}
        text = renderer.decode([t for t, s in zip(token_ids, parsed.segments, strict=True) if s in heard])
        named = tuple(ChatCall(call.name, call.arguments, f"call_{uuid4().hex[:24]}") for call in calls)
        return ChatMessage("assistant", text.strip(), named)

    def _hear(self, heard: Sequence[ChatMessage], tips: Sequence[Tip], renderer: Renderer) -> Rendered:
        if not heard:
            raise RequestError("messages: an assistant's message comes first, last, or after another of its kind")
        if tips:
            return renderer.observation(
                [Result(one.text, one.answers, by_user=one.role != "tool") for one in heard], tips[-1].stop
            )
        if wrong := [one.role for one in heard if one.role == "tool"]:
            raise RequestError(f"messages: a {wrong[0]} message before any of the assistant's")
        return renderer.prompt([Message(one.role, one.text) for one in heard], self.tools)


class TextBranch(Branch):
    """One line of a prompt that the scaffold renders itself: its messages are the pieces of that text, in turn what the
    scaffold wrote and what was sampled, the stop token left out."""

    def pieces_of(self, prompt: str) -> list[ChatMessage]:
        """The pieces that `prompt` begins with, up to the last place from which it can go on."""
        for tip in reversed(self.tips):
            pieces = self.messages[: tip.num_messages]
            said = "".join(piece.text for piece in pieces)
            if prompt.startswith(said + tip.stop):
                return pieces
        return []

    def fits(self, tip: Tip, rest: Sequence[ChatMessage]) -> bool:
        """The stop token was sampled: who goes on without it means another text."""
        return "".join(one.text for one in rest).startswith(tip.stop)

    def told(self, token_ids: Sequence[int], parsed: ParsedCompletion, renderer: Renderer) -> ChatMessage:
        """All of it but the stop token."""
        return ChatMessage("assistant", renderer.decode(token_ids[: len(token_ids) - bool(parsed.stop)]))

    def _hear(self, heard: Sequence[ChatMessage], tips: Sequence[Tip], renderer: Renderer) -> Rendered:
        text = "".join(one.text for one in heard)
        return renderer.raw(text.removeprefix(tips[-1].stop) if tips else text)


def _write(message: ChatMessage, renderer: Renderer, tools: Sequence[Mapping[str, Any]]) -> tuple[Rendered, str]:
    """An assistant's message that isn't ours, as context, and the stop token that ends it."""
    calls = [(call.name, call.arguments) for call in message.calls]
    try:
        token_ids = renderer.completion(calls, prose=message.text, tools=tools)
    except ValueError as error:
        raise RequestError(f"messages: an assistant's message can't be written: {error}") from error
    return Rendered(token_ids, [int(Segment.PROMPT)] * len(token_ids)), renderer.parse(token_ids).stop
