"""One episode of an outside scaffold: its requests become completions, and in the end trajectories.

Messages flow in and an answer flows out; every token that was sampled stands in one trajectory, with its
log-probability and version. How requests look on the wire isn't known here, nor what became of the task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from swe_rl.agent.record import check_completion
from swe_rl.agent.render import ParsedCompletion, Renderer
from swe_rl.errors import EngineError
from swe_rl.gateway.branch import Branch, TextBranch
from swe_rl.gateway.messages import ChatMessage, RequestError, same_start
from swe_rl.inference.engine import Completion, Engine, SamplingParams
from swe_rl.trajectory import Segment, StopReason, Trajectory
from swe_rl.verdict import Verdict


@dataclass(frozen=True, slots=True)
class SessionIds:
    """Of the trajectories: that of branch 0 is `trajectory_id`, of branch 1 `<trajectory_id>#1`, and so on."""

    trajectory_id: str
    group_id: str
    task_id: str
    split: str


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """`max_branches`: broken histories are followed so often; `max_context`: tokens of one branch."""

    max_context: int
    max_tokens_per_turn: int
    max_branches: int = 8


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What was sampled, as the scaffold is told it. `finish_reason` is OpenAI's word."""

    message: ChatMessage
    reasoning: str
    finish_reason: str
    num_prompt_tokens: int
    num_sampled_tokens: int
    num_cached_tokens: int
    num_reasoning_tokens: int


class GatewaySession:
    """Several requests may come at once: one that finds its branch busy goes on in a branch of its own."""

    def __init__(
        self, ids: SessionIds, *, engine: Engine, renderer: Renderer, temperature: float, limits: SessionLimits
    ) -> None:
        self.ids = ids
        self._engine, self._renderer = engine, renderer
        self._temperature, self._limits = temperature, limits
        self._branches: list[Branch] = []

    @property
    def num_branches(self) -> int:
        """Above 1: histories were broken."""
        return len(self._branches)

    async def complete_text(self, prompt: str, max_tokens: int | None) -> Answer:
        """Goes on with a text that the scaffold renders itself; raises as `complete` does."""
        texts = [branch.pieces_of(prompt) for branch in self._branches if isinstance(branch, TextBranch)]
        pieces = max(texts, key=lambda known: sum(len(piece.text) for piece in known), default=[])
        rest = prompt[sum(len(piece.text) for piece in pieces) :]
        said = [ChatMessage("user", rest)] if rest else []
        return await self.complete([*pieces, *said], (), max_tokens, TextBranch)

    async def complete(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]],
        max_tokens: int | None,
        kind: type[Branch] = Branch,
    ) -> Answer:
        """Raises RequestError for a conversation that can't be rendered or has no room, EngineError for a fault."""
        branch = self._branch_for(messages, tools, kind)
        num_prompt_tokens = len(branch.recording)
        room = self._limits.max_context - num_prompt_tokens
        budget = min(max_tokens or self._limits.max_tokens_per_turn, self._limits.max_tokens_per_turn, room)
        stops = self._renderer.stop_token_ids
        branch.is_busy = True
        try:
            # the token that the next one is drawn after is computed again, though a fork may know its experts
            experts_from = min(branch.recording.num_routed, num_prompt_tokens - 1)
            sampling = SamplingParams(self._temperature, budget, stops, experts_from)
            completion = await self._engine.generate(branch.name, branch.recording.token_ids, sampling)
            check_completion(completion, budget, stops, branch.name)
            if completion.finish_reason == "abort":
                raise EngineError(f"gateway: the completion of {branch.name} was aborted; is its session closed?")
            parsed = self._renderer.parse(completion.token_ids.tolist(), num_prompt_tokens, tools)
            message = branch.told(completion.token_ids.tolist(), parsed, self._renderer)
            answer = self._answer(completion, parsed, message, num_prompt_tokens)
            branch.answer(completion, parsed, answer.message)
        except BaseException:
            branch.unsay()
            if not branch.messages:
                self._branches.remove(branch)
            raise
        finally:
            branch.is_busy = False
        return answer

    async def release(self) -> None:
        """The engine drops what it holds for the session; what still runs is aborted."""
        for branch in tuple(self._branches):  # one whose first request is aborted leaves them meanwhile
            await self._engine.release(branch.name)

    def trajectories(self, stop_reason: StopReason, verdict: Verdict | None) -> list[Trajectory]:
        """One of each branch in which something was sampled; all carry the episode's end and verdict."""
        return [
            branch.recording.to_trajectory(
                ids=(branch.name, self.ids.group_id, self.ids.task_id, self.ids.split),
                temperature=self._temperature,
                stop_reason=stop_reason,
                verdict=verdict,
            )
            for branch in self._branches
            if branch.recording.turns
        ]

    def _branch_for(
        self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]], kind: type[Branch]
    ) -> Branch:
        """The branch that the conversation goes on with, all of it said."""
        places = [
            (branch, tip)
            for branch in self._branches
            if type(branch) is kind
            and branch.tools == tools
            and (tip := branch.tip_within(same_start(branch.messages, messages)))
            and branch.fits(tip, messages[tip.num_messages :])
        ]
        if not places:
            return self._begin(kind(self._free_name(), tools), messages)
        branch, tip = max(places, key=lambda place: (place[1].num_messages, place[0].ends_at(place[1])))
        rest = messages[tip.num_messages :]
        if not branch.ends_at(tip):
            return self._begin(branch.fork(tip, self._free_name()), rest)
        branch.say(rest, self._renderer, self._limits.max_context)
        return branch

    def _begin(self, branch: Branch, messages: Sequence[ChatMessage]) -> Branch:
        if len(self._branches) >= self._limits.max_branches:
            raise RequestError(
                f"the conversation was changed or begun anew too often: it has {len(self._branches)} branches, at most "
                f"{self._limits.max_branches} are followed",
                "too_many_branches",
            )
        branch.say(messages, self._renderer, self._limits.max_context)
        self._branches.append(branch)
        return branch

    def _free_name(self) -> str:
        names = {branch.name for branch in self._branches}
        ours = self.ids.trajectory_id
        return next(name for name in chain([ours], (f"{ours}#{i}" for i in count(1))) if name not in names)

    def _answer(
        self, completion: Completion, parsed: ParsedCompletion, message: ChatMessage, num_prompt_tokens: int
    ) -> Answer:
        token_ids = completion.token_ids.tolist()
        thought = [t for t, s in zip(token_ids, parsed.segments, strict=True) if s == Segment.REASONING]
        ended = "length" if completion.finish_reason == "length" else "stop"
        return Answer(
            message=message,
            reasoning=self._renderer.decode(thought),
            finish_reason="tool_calls" if message.calls else ended,
            num_prompt_tokens=num_prompt_tokens,
            num_sampled_tokens=len(token_ids),
            num_cached_tokens=completion.cached_tokens,
            num_reasoning_tokens=len(thought),
        )
