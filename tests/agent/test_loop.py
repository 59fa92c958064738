"""Whole episodes: a scripted policy in a real session, and how each of them ends."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swe_rl.agent.loop import run_episode
from swe_rl.agent.render import Renderer
from swe_rl.client import SandboxClient
from swe_rl.config import Config
from swe_rl.errors import SandboxTimeoutError, SandboxUnavailableError
from swe_rl.inference.engine import Completion, SamplingParams
from swe_rl.inference.scripted import Reply, ScriptedEngine, ScriptedReply
from swe_rl.trajectory import Segment, StopReason, Trajectory
from swe_rl.verdict import Outcome
from swe_rl.wire import TaskInfo

Run = Callable[..., Any]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def script(*replies: str | ScriptedReply) -> Reply:
    """The replies in order, the last of them again and again."""
    return lambda _, turn, __: replies[min(turn, len(replies) - 1)]


def settings(**sections: dict[str, Any]) -> Config:
    base: dict[str, dict[str, Any]] = {
        "agent": {"prompt": "compact", "episode_timeout_s": 60.0},
        "engine": {"max_context": 4096},
        "sandbox": {"exec_timeout_s": 5.0},
        "sampling": {"max_tokens_per_turn": 512},
    }
    return Config.model_validate({k: base.get(k, {}) | sections.get(k, {}) for k in {*base, *sections}})


@pytest.fixture
def run(client: SandboxClient, service: Any, renderer: Renderer, policy_dir: Path) -> Run:
    """Runs one episode of the first task; nothing may be left in the service or the engine."""

    async def run_one(reply: Reply | ScriptedEngine, config: Config | None = None) -> Trajectory:
        engine = reply if isinstance(reply, ScriptedEngine) else ScriptedEngine(reply, policy_dir / "tokenizer.json")
        await engine.load(policy_dir, 5)
        try:
            return await run_episode(
                await _task(client),
                client=client,
                engine=engine,
                renderer=renderer,
                config=config or settings(),
                trajectory_id="t0",
                group_id="g0",
                temperature=0.7,
            )
        finally:
            assert engine.open_sessions == ()
            assert (await client.health()).num_sessions == 0

    return run_one


async def _task(client: SandboxClient) -> TaskInfo:
    return (await client.list_tasks("train"))[0]


def fix(service: Any) -> str:
    task = service.tasks[0]
    return call("edit", path=task.source_path, old=task.broken_line, new=task.fixed_line)


async def test_a_policy_that_mends_the_task_is_rewarded(run: Run, service: Any, renderer: Renderer) -> None:
    task = service.tasks[0]
    replies = [call("view", path=task.source_path), "I see. " + fix(service), call("run_tests"), call("submit")]
    t = await run(script(*replies))

    assert t.stop_reason is StopReason.SUBMITTED
    assert t.verdict.outcome is Outcome.RESOLVED and t.reward == 1.0
    assert (t.trajectory_id, t.group_id, t.task_id, t.split) == ("t0", "g0", task.task_id, "train")
    assert [[c.name for c in turn.calls] for turn in t.turns] == [["view"], ["edit"], ["run_tests"], ["submit"]]
    assert t.turns[2].exit_code == 0 and t.turns[0].exit_code is None
    assert t.temperature == 0.7 and set(t.policy_version[t.sampled]) == {5}
    spelled = renderer.decode([i for i, s in zip(t.token_ids, t.segment, strict=True) if s == Segment.DIFF])
    assert spelled == task.broken_line + task.fixed_line


async def test_an_episode_is_the_whole_conversation_append_only(run: Run, service: Any, renderer: Renderer) -> None:
    task = service.tasks[0]
    contexts: list[str] = []
    replies = [call("view", path=task.source_path), call("submit")]

    def reply(_: str, turn: int, context: str) -> str:
        contexts.append(context)
        return replies[turn]

    t = await run(reply)
    files = "\n".join(sorted(task.files))
    prompt = f"<|im_start|>user\n{task.instruction}\nFiles:\n{files}<|im_end|>\n<|im_start|>assistant\n"
    observation = (
        f"\n<|im_start|>user\n<tool_response>\n{task.files[task.source_path]}\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    second = f"{prompt}{replies[0]}<|im_end|>{observation}"
    assert contexts == [prompt, second]
    assert renderer.decode(t.token_ids.tolist()) == f"{second}{replies[1]}<|im_end|>"
    seen = [i for i, s in zip(t.token_ids, t.segment, strict=True) if s == Segment.OBSERVATION]
    assert renderer.decode(seen) == task.files[task.source_path]


async def test_submitting_nothing_is_an_empty_patch_without_reward(run: Run) -> None:
    t = await run(script(call("submit")))
    assert (t.verdict.outcome, t.reward) == (Outcome.EMPTY_PATCH, 0.0)


async def test_a_tree_is_graded_as_it_stands_when_the_turns_run_out(run: Run, service: Any) -> None:
    t = await run(script(fix(service), call("run_tests")), settings(agent={"max_turns": 2}))
    assert t.stop_reason is StopReason.MAX_TURNS and t.reward == 1.0
    assert t.turns[-1].end == len(t)  # no observation that nobody reads


async def test_several_calls_run_in_order_and_each_is_answered(run: Run, service: Any, renderer: Renderer) -> None:
    path = service.tasks[0].source_path
    both = call("bash", command="echo one") + "\n" + call("view", path="no.py")
    contexts: list[str] = []

    def reply(_: str, turn: int, context: str) -> str:
        contexts.append(context)
        return [both, fix(service) + call("submit") + call("create", path=path, content="broken(")][turn]

    t = await run(reply)
    answers = "<tool_response>\none\n</tool_response>\n<tool_response>\nerror: no file no.py\n</tool_response>"
    assert answers in contexts[1]
    assert t.stop_reason is StopReason.SUBMITTED and t.reward == 1.0  # nothing runs after submit


async def test_malformed_completions_in_a_row_end_the_episode_and_the_tree_is_graded(run: Run, service: Any) -> None:
    t = await run(script(fix(service), "no call at all"), settings(agent={"max_malformed": 2}))
    assert t.stop_reason is StopReason.MALFORMED and t.reward == 1.0
    assert [turn.is_malformed for turn in t.turns] == [False, True, True]


async def test_a_well_formed_completion_begins_the_count_of_malformed_ones_anew(run: Run) -> None:
    replies = ["what?", call("run_tests"), "what?", call("submit")]
    t = await run(script(*replies), settings(agent={"max_malformed": 2}))
    assert t.stop_reason is StopReason.SUBMITTED and len(t.turns) == 4


async def test_a_malformed_call_is_told_to_the_policy_and_nothing_of_the_turn_runs(run: Run) -> None:
    contexts: list[str] = []

    def reply(_: str, turn: int, context: str) -> str:
        contexts.append(context)
        return [call("create", path="x.py", content="x") + "<tool_call>{oops</tool_call>", call("submit")][turn]

    t = await run(reply)
    assert "<tool_response>\nerror: not JSON" in contexts[1]
    assert t.verdict.outcome is Outcome.EMPTY_PATCH


async def test_a_completion_cut_by_its_budget_is_closed_by_the_template_and_told(run: Run) -> None:
    contexts: list[str] = []

    def reply(_: str, turn: int, context: str) -> str:
        contexts.append(context)
        return ["word " * 200, call("submit")][turn]

    t = await run(reply, settings(sampling={"max_tokens_per_turn": 40}))
    assert t.turns[0].end - t.turns[0].start == 40 and t.turns[0].is_malformed
    assert "error: no tool call" in contexts[1]
    assert t.segment[t.turns[0].end] == Segment.TEMPLATE and t.token_ids[t.turns[0].end] == 2
    assert t.stop_reason is StopReason.SUBMITTED


async def test_a_cut_completion_whose_call_is_complete_runs(run: Run, service: Any) -> None:
    t = await run(script(ScriptedReply(fix(service), "length"), call("submit")))
    assert not t.turns[0].is_malformed and t.reward == 1.0


async def test_a_policy_that_never_ends_its_turns_meets_max_tokens(run: Run) -> None:
    config = settings(sampling={"max_tokens_per_turn": 20}, agent={"max_malformed": 2})
    t = await run(script("word " * 200), config)
    assert t.stop_reason is StopReason.MAX_TOKENS and len(t.turns) == 2 and t.reward == 0.0


async def test_an_observation_that_does_not_fit_ends_the_episode_without_a_part_of_it(run: Run, service: Any) -> None:
    config = settings(agent={"max_observation_tokens": 600}, engine={"max_context": 700})
    t = await run(script(fix(service), call("bash", command="seq 1 2000")), config)
    assert t.stop_reason is StopReason.CONTEXT_FULL and t.reward == 1.0
    assert len(t) <= 700 and t.sampled[-1] and len(t.turns) == 2


async def test_a_completion_never_leaves_the_context(run: Run) -> None:
    config = settings(engine={"max_context": 300}, sampling={"max_tokens_per_turn": 512}, agent={"max_malformed": 9})
    t = await run(script("word " * 500), config)
    assert t.stop_reason is StopReason.CONTEXT_FULL and len(t) == 300


async def test_a_prompt_that_fills_the_context_is_a_trajectory_without_turns(run: Run) -> None:
    t = await run(script(call("submit")), settings(engine={"max_context": 30}))
    assert t.stop_reason is StopReason.CONTEXT_FULL and t.turns == () and t.reward == 0.0


async def test_a_long_observation_is_trimmed(run: Run) -> None:
    config = settings(agent={"max_observation_tokens": 60})
    t = await run(script(call("bash", command="seq 1 2000"), call("submit")), config)
    assert 20 < int((t.segment == Segment.OBSERVATION).sum()) <= 62


async def test_the_time_limit_ends_a_hanging_tool_and_the_tree_is_graded(run: Run, service: Any) -> None:
    config = settings(agent={"episode_timeout_s": 3.0}, sandbox={"exec_timeout_s": 30.0})
    t = await run(script(fix(service), call("bash", command="sleep 25")), config)
    assert t.stop_reason is StopReason.TIME_LIMIT and t.reward == 1.0


class _BrokenEngine(ScriptedEngine):
    """Plays one turn, then gives what an engine must never give."""

    def __init__(self, reply: Reply, tokenizer_json: Path, fault: Exception | float) -> None:
        super().__init__(reply, tokenizer_json)
        self._fault = fault

    async def generate(self, session_id: str, token_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        is_first = session_id not in self.open_sessions
        completion = await super().generate(session_id, token_ids, sampling)
        if is_first:
            return completion
        if isinstance(self._fault, Exception):
            raise self._fault
        logprobs = np.full_like(completion.logprobs, self._fault)
        return Completion(completion.token_ids, logprobs, completion.policy_version, "stop")


@pytest.mark.parametrize("fault", ["engine", "nan", "abort"])
async def test_a_fault_of_the_engine_is_data_without_a_verdict(
    run: Run, service: Any, policy_dir: Path, fault: str
) -> None:
    from swe_rl.errors import EngineUnavailableError

    tokenizer_json = policy_dir / "tokenizer.json"
    first = fix(service)
    engine: ScriptedEngine = ScriptedEngine(script(first, ScriptedReply("", "abort")), tokenizer_json)
    if fault != "abort":
        error: Exception | float = EngineUnavailableError("engine: gone") if fault == "engine" else float("nan")
        engine = _BrokenEngine(script(first, call("submit")), tokenizer_json, error)
    t = await run(engine)
    assert t.stop_reason is (StopReason.ABORTED if fault == "abort" else StopReason.ENGINE_ERROR)
    assert t.verdict is None and t.reward is None
    assert len(t.turns) == (2 if fault == "abort" else 1) and t.turns[0].calls[0].name == "edit"


async def test_a_session_that_dies_is_a_sandbox_fault_without_a_verdict(
    client: SandboxClient, service: Any, renderer: Renderer, policy_dir: Path
) -> None:
    """The service ends the session behind the episode's back."""
    async with SandboxClient(service.url, service.token) as other:
        engine = _Closing(script(call("run_tests")), policy_dir / "tokenizer.json", other)
        await engine.load(policy_dir, 0)
        t = await run_episode(
            await _task(client),
            client=client,
            engine=engine,
            renderer=renderer,
            config=settings(),
            trajectory_id="t0",
            group_id="g0",
            temperature=1.0,
        )
    assert t.stop_reason is StopReason.SANDBOX_ERROR and t.verdict is None and len(t.turns) == 1


class _Closing(ScriptedEngine):
    """Closes every session of the service before it answers."""

    def __init__(self, reply: Reply, tokenizer_json: Path, client: SandboxClient) -> None:
        super().__init__(reply, tokenizer_json)
        self._client = client

    async def generate(self, session_id: str, token_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        for session in await self._client.list_sessions():
            await self._client.close_session(session.session_id)
        return await super().generate(session_id, token_ids, sampling)


class _Hanging(ScriptedEngine):
    """Never answers."""

    async def generate(self, session_id: str, token_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        await super().generate(session_id, token_ids, sampling)
        self.is_asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    @property
    def is_asked(self) -> asyncio.Event:
        return self.__dict__.setdefault("_asked", asyncio.Event())


async def test_a_cancelled_episode_leaves_no_session_behind(run: Run, policy_dir: Path) -> None:
    engine = _Hanging(script("x"), policy_dir / "tokenizer.json")
    episode = asyncio.create_task(run(engine))
    await engine.is_asked.wait()
    episode.cancel()
    with pytest.raises(asyncio.CancelledError):  # and `run` has looked for leftovers
        await episode


async def test_the_time_limit_ends_a_hanging_engine(run: Run, policy_dir: Path) -> None:
    engine = _Hanging(script("x"), policy_dir / "tokenizer.json")
    t = await run(engine, settings(agent={"episode_timeout_s": 2.0}))
    assert t.stop_reason is StopReason.TIME_LIMIT and t.turns == () and t.reward == 0.0


async def test_without_a_service_there_is_no_prompt_and_the_error_is_raised(
    renderer: Renderer, policy_dir: Path
) -> None:
    task = TaskInfo(task_id="t", split="train", language="python", instruction="Fix.", content_sha256="0")
    engine = ScriptedEngine(script(call("submit")), policy_dir / "tokenizer.json")

    async def run_against_nothing(timeout_s: float) -> None:
        async with SandboxClient("http://127.0.0.1:9", "token") as nobody:
            await run_episode(
                task,
                client=nobody,
                engine=engine,
                renderer=renderer,
                config=settings(agent={"episode_timeout_s": timeout_s}),
                trajectory_id="t0",
                group_id="g0",
                temperature=1.0,
            )

    with pytest.raises(SandboxUnavailableError):
        await run_against_nothing(60.0)
    with pytest.raises(SandboxTimeoutError, match="no session for t0"):
        await run_against_nothing(0.05)
