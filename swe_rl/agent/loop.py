"""One episode: a policy works on a task in a session until it submits or meets a limit, then the tree is graded.

A task and a policy's tokens flow in, a `Trajectory` flows out. However the policy's part ended, the tree is graded as
it stands; after a fault of the engine or the sandbox it isn't, and the verdict is None. No reward is made up here.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import uuid4

from swe_rl.agent.cutoff import Cutoff
from swe_rl.agent.prompt import build_messages, list_tools
from swe_rl.agent.record import Recording, check_completion
from swe_rl.agent.render import ParsedCompletion, Renderer, Result
from swe_rl.agent.tools import Toolbox, ToolResult
from swe_rl.client import SandboxClient
from swe_rl.config import Config
from swe_rl.errors import EngineError, SandboxError, SandboxTimeoutError
from swe_rl.inference.engine import Completion, Engine, SamplingParams
from swe_rl.trajectory import StopReason, Trajectory
from swe_rl.verdict import Verdict
from swe_rl.wire import SessionInfo, TaskInfo

logger = logging.getLogger(__name__)
T = TypeVar("T")

GRADING_ALLOWANCE_S = 600.0
"""A session outlives its episode by this: a sandbox must not expire before it is graded."""
_SETTLE_S = 30.0
FAULTS = frozenset({StopReason.ABORTED, StopReason.ENGINE_ERROR, StopReason.SANDBOX_ERROR})
"""Ends that are no doing of the policy: not graded, and worth another try."""


async def run_episode(
    task: TaskInfo,
    *,
    client: SandboxClient,
    engine: Engine,
    renderer: Renderer,
    config: Config,
    trajectory_id: str,
    group_id: str,
    temperature: float,
    cutoff: Cutoff | None = None,
) -> Trajectory:
    """Runs and grades one episode. A fault after the prompt is data (verdict None); before it, SandboxError is raised.

    The deadline `agent.episode_timeout_s` covers setting up and all turns, not the grading; `cutoff` may bring that of
    the turns nearer.
    """
    deadline = asyncio.get_running_loop().time() + config.agent.episode_timeout_s
    async with _open_session(task, client, config, trajectory_id, deadline) as session:
        policy = _Policy(engine, renderer, config, trajectory_id, temperature)
        toolbox = Toolbox(client, session.session_id, session.workdir, config.sandbox.exec_timeout_s)
        recording = Recording()
        recording.add_rendered(
            renderer.prompt(
                build_messages(config.agent.prompt, task.instruction, session.files), list_tools(config.agent.prompt)
            )
        )
        try:
            stop_reason = await _run_until(deadline, cutoff, recording, policy, toolbox)
        finally:
            await _release(engine, trajectory_id)
        verdict: Verdict | None = None
        if stop_reason not in FAULTS:
            stop_reason, verdict = await _grade(client, session, trajectory_id, stop_reason)
    ids = (trajectory_id, group_id, task.task_id, task.split)
    return recording.to_trajectory(ids=ids, temperature=temperature, stop_reason=stop_reason, verdict=verdict)


@dataclass(frozen=True, slots=True)
class _Policy:
    """The sampler of one episode: engine, renderer and limits bound together."""

    engine: Engine
    renderer: Renderer
    config: Config
    session_id: str
    temperature: float

    def room(self, recording: Recording) -> int:
        return self.config.engine.max_context - len(recording)

    async def sample(self, recording: Recording) -> tuple[Completion, ParsedCompletion]:
        """One completion, checked, parsed and recorded. Raises EngineError."""
        budget = min(self.config.sampling.max_tokens_per_turn, self.room(recording))
        stops = self.renderer.stop_token_ids
        sampling = SamplingParams(self.temperature, budget, stops, recording.num_routed)
        completion = await self.engine.generate(self.session_id, recording.token_ids, sampling)
        check_completion(completion, budget, stops, self.session_id)
        parsed = self.renderer.parse(completion.token_ids.tolist(), offset=len(recording))
        recording.add_completion(completion, parsed)
        return completion, parsed


async def _run_until(
    deadline: float, cutoff: Cutoff | None, recording: Recording, policy: _Policy, toolbox: Toolbox
) -> StopReason:
    """Turns within the deadline, or the nearer one of the group; faults become stop reasons."""
    try:
        async with asyncio.timeout_at(deadline) as scope:
            with nullcontext() if cutoff is None else cutoff.over(scope):
                return await _run_turns(recording, policy, toolbox, policy.config)
    except EngineError as error:
        logger.warning("%s: engine fault: %s", policy.session_id, error)
        return StopReason.ENGINE_ERROR
    except SandboxError as error:
        logger.warning("%s: sandbox fault: %s", policy.session_id, error)
        return StopReason.SANDBOX_ERROR
    except TimeoutError:
        if not scope.expired():
            raise
        return StopReason.TIME_LIMIT if scope.when() == deadline else StopReason.GROUP_LIMIT


async def _run_turns(recording: Recording, policy: _Policy, toolbox: Toolbox, config: Config) -> StopReason:
    num_malformed = 0
    for turn in range(config.agent.max_turns):
        if policy.room(recording) < 1:
            return StopReason.CONTEXT_FULL
        completion, parsed = await policy.sample(recording)
        if completion.finish_reason == "abort":
            return StopReason.ABORTED
        num_malformed = num_malformed + 1 if parsed.problem else 0
        results = await _act(parsed, recording, toolbox)
        if results[-1].is_final:
            return StopReason.SUBMITTED
        if num_malformed >= config.agent.max_malformed:
            was_cut = completion.finish_reason == "length"
            return StopReason.MAX_TOKENS if was_cut else StopReason.MALFORMED
        # The last turn's observation would be read by nobody.
        is_last = turn == config.agent.max_turns - 1
        if not is_last and not _observe(results, parsed, recording, policy):
            return StopReason.CONTEXT_FULL
    return StopReason.MAX_TURNS


async def _act(parsed: ParsedCompletion, recording: Recording, toolbox: Toolbox) -> list[ToolResult]:
    """Runs a turn's calls in order, none of them if one is malformed; at least one result comes back."""
    if parsed.problem:
        return [ToolResult(f"error: {parsed.problem}")]
    started = time.monotonic()
    results: list[ToolResult] = []
    for call in parsed.calls:
        results.append(await toolbox.run(call.name, call.arguments))
        if results[-1].is_final:
            break
    seconds = time.monotonic() - started
    recording.turns[-1] = replace(recording.turns[-1], exit_code=results[-1].exit_code, seconds=seconds)
    return results


def _observe(results: list[ToolResult], parsed: ParsedCompletion, recording: Recording, policy: _Policy) -> bool:
    """Appends what came back; False, and nothing appended, if then no token could follow within the context."""
    limit = policy.config.agent.max_observation_tokens
    names = [""] if parsed.problem else [call.name for call in parsed.calls]
    seen = [Result(policy.renderer.trim(result.text, limit), name) for result, name in zip(results, names, strict=True)]
    rendered = policy.renderer.observation(seen, parsed.stop)
    if len(rendered.token_ids) >= policy.room(recording):
        return False
    recording.add_rendered(rendered)
    return True


async def _grade(
    client: SandboxClient, session: SessionInfo, trajectory_id: str, stop_reason: StopReason
) -> tuple[StopReason, Verdict | None]:
    try:
        return stop_reason, await client.grade(session.session_id)
    except SandboxError as error:
        logger.warning("%s: grading failed: %s", trajectory_id, error)
        return StopReason.SANDBOX_ERROR, None


@asynccontextmanager
async def _open_session(
    task: TaskInfo, client: SandboxClient, config: Config, trajectory_id: str, deadline: float
) -> AsyncIterator[SessionInfo]:
    """A session that is closed in any case. Raises SandboxError if it can't be had before the deadline."""
    ttl_s = max(config.sandbox.session_ttl_s, config.agent.episode_timeout_s + GRADING_ALLOWANCE_S)
    try:
        async with asyncio.timeout_at(deadline) as scope:
            session = await _create_session(task, client, ttl_s, trajectory_id)
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise SandboxTimeoutError(
            f"sandbox service: no session for {trajectory_id} (task {task.task_id}) within the episode's "
            f"{config.agent.episode_timeout_s:g} s; raise agent.episode_timeout_s or lower rollout.concurrency"
        ) from error
    try:
        yield session
    finally:
        await _close_session(client, session, trajectory_id)


async def _create_session(task: TaskInfo, client: SandboxClient, ttl_s: float, trajectory_id: str) -> SessionInfo:
    # The random part keeps a rerun after a crash from being handed the crashed run's session.
    key = f"{trajectory_id}-{uuid4().hex}"
    creation = asyncio.create_task(client.create_session(task.task_id, ttl_s=ttl_s, idempotency_key=key))
    try:
        return await _complete(creation)
    except asyncio.CancelledError:
        if creation.done() and not creation.cancelled() and creation.exception() is None:
            await _close_session(client, creation.result(), trajectory_id)
        creation.cancel()
        raise


async def _close_session(client: SandboxClient, session: SessionInfo, trajectory_id: str) -> None:
    try:
        await _complete(asyncio.create_task(client.close_session(session.session_id)))
    except SandboxError as error:  # the service's reaper ends it later
        logger.warning("%s: session %s can't be closed: %s", trajectory_id, session.session_id, error)


async def _complete(call: asyncio.Task[T]) -> T:
    """Cancelled meanwhile, it first waits a little for the call's end: half a call would leave a session behind."""
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.wait({call}, timeout=_SETTLE_S)
        raise


async def _release(engine: Engine, trajectory_id: str) -> None:
    try:
        await engine.release(trajectory_id)
    except EngineError as error:  # the episode is over either way
        logger.warning("%s: the engine can't release it: %s", trajectory_id, error)
