"""Compares a dialect with a chat template: pieces appended turn by turn, against the whole conversation rendered anew.

A dialect and a template flow in, and for each probe where they differ an excerpt flows out. Probes are small
conversations of the kind that the agent has: one instruction, then calls and what came back. What a difference means
is the caller's business.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from swe_rl.agent.dialects.base import Call, Dialect, Message, Result, Schema
from swe_rl.agent.dialects.json_call import write
from swe_rl.agent.template import ChatTemplate
from swe_rl.agent.tools import TOOLS

LIMITS = {"tools": "the template lists no tools", "calls": "the template knows no calls"}
"""What a template may lack without contradicting a dialect; such parts aren't compared."""
_NEAR = 40


@dataclass(frozen=True, slots=True)
class Exchange:
    """One completion and what came back: a text for each call, or one text where there was no call."""

    reasoning: str
    prose: str
    calls: tuple[Call, ...]
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the agent and its session say to each other; after it the policy speaks."""

    system: str
    user: str
    exchanges: tuple[Exchange, ...] = ()
    tools: tuple[Schema, ...] = ()


_VIEW: Call = ("view", {"path": "a.py", "start": 3})
_EDIT: Call = ("edit", {"path": "a.py", "old": 'x = "é"\n', "new": "y = {1: 2}\n"})
_PROBES = {
    "prompt": (),
    "call": (Exchange("", "", (_VIEW,), ("one\ntwo",)), Exchange("", "", (_EDIT,), ("ok",))),
    "text": (Exchange("", "I look.", (_VIEW,), ("ok",)),),
    "reasoning": (Exchange("Look first.", "", (_VIEW,), ("ok",)), Exchange("Now mend it.", "", (_EDIT,), ("ok",))),
    "parallel": (Exchange("", "", (_VIEW, _EDIT), ("ok", "done")),),
    "error": (Exchange("", "Done.", (), ("error: no tool call",)),),
}


def find_differences(dialect: Dialect, template: ChatTemplate) -> dict[str, str]:
    """Probe -> where the template renders something else; {} if they agree in all of them."""
    tools = tuple(TOOLS[name].schema() for name in ("view", "edit", "submit"))
    bare = Conversation("You mend code.", "Mend it.")
    differences: dict[str, str] = {}
    if _theirs(dialect, template, Conversation(bare.system, bare.user, (), tools)) == _theirs(dialect, template, bare):
        differences["tools"] = LIMITS["tools"]
        tools = ()
    takes_calls = "tool_calls" in template.text
    if not takes_calls:
        differences["calls"] = LIMITS["calls"]
    for name, exchanges in _PROBES.items():
        if exchanges and not takes_calls:
            continue
        if dialect.opens_reasoning:
            exchanges = tuple(Exchange(e.reasoning or "Hm.", e.prose, e.calls, e.results) for e in exchanges)
        conversation = Conversation(bare.system, bare.user, exchanges, tools)
        excerpt = _first_difference(render_by_pieces(dialect, conversation), _theirs(dialect, template, conversation))
        if excerpt:
            differences[name] = excerpt
    return differences


def render_by_pieces(dialect: Dialect, conversation: Conversation) -> str:
    """As an episode does it: the prompt, and then completions and observations one after the other."""
    messages = [Message("system", conversation.system, is_ours=True), Message("user", conversation.user)]
    pieces = dialect.prompt(messages, conversation.tools)
    for exchange in conversation.exchanges:
        completion = dialect.completion(exchange.reasoning, exchange.prose, exchange.calls)
        pieces = [*pieces, *completion, *dialect.observation(list_results(exchange), completion[-1].text)]
    return "".join(piece.text for piece in pieces)


def list_results(exchange: Exchange) -> list[Result]:
    names = [name for name, _ in exchange.calls] or [""]
    return [Result(text, name) for text, name in zip(exchange.results, names, strict=True)]


def render_by_template(template: ChatTemplate, conversation: Conversation, errors_by: str) -> str:
    """All at once; `errors_by`: the role of what comes back without a call. Raises ValueError if it refuses."""
    try:
        return template.render(_messages(conversation, errors_by, as_text=False), conversation.tools, opens=True)
    except ValueError as first:
        try:  # some templates take a call's arguments as JSON text
            return template.render(_messages(conversation, errors_by, as_text=True), conversation.tools, opens=True)
        except ValueError:
            raise first from None


def _theirs(dialect: Dialect, template: ChatTemplate, conversation: Conversation) -> str:
    try:
        return render_by_template(template, conversation, "tool" if dialect.answers_errors else "user")
    except ValueError as error:
        return f"(refused: {error})"


def _messages(conversation: Conversation, errors_by: str, as_text: bool) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": conversation.system},
        {"role": "user", "content": conversation.user},
    ]
    for exchange in conversation.exchanges:
        message: dict[str, Any] = {"role": "assistant", "content": exchange.prose}
        if exchange.reasoning:  # families name it differently
            message |= {"reasoning_content": exchange.reasoning, "thinking": exchange.reasoning}
        if exchange.calls:
            message["tool_calls"] = _calls(exchange.calls, as_text)
        messages.append(message)
        for result in list_results(exchange):
            role = "tool" if result.call else errors_by
            messages.append({"role": role, "content": result.text, **({"name": result.call} if result.call else {})})
    return messages


def _calls(calls: Sequence[Call], as_text: bool) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": name, "arguments": write(dict(a)) if as_text else dict(a)}}
        for name, a in calls
    ]


def _first_difference(ours: str, theirs: str) -> str:
    if ours == theirs:
        return ""
    pairs = zip(ours, theirs, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
    first = max(0, at - _NEAR)
    return f"template {theirs[first : at + _NEAR]!r}, expected {ours[first : at + _NEAR]!r}"
