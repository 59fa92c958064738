"""One group: G episodes of one task at once.

A task flows in, a `Group` flows out. An episode that failed for a fault of the engine or the environment is tried
again, any other end stands; a fault that stays is a member without a reward. Once most members have ended the others
have a while left, see `Cutoff`. Advantages aren't computed here.
"""

import asyncio
import logging
from dataclasses import dataclass

from swe_rl.agent.cutoff import Cutoff
from swe_rl.agent.loop import run_episode
from swe_rl.agent.render import Renderer
from swe_rl.client import SandboxClient
from swe_rl.config import Config
from swe_rl.errors import SandboxError, SweRlError
from swe_rl.inference.engine import Engine
from swe_rl.trajectory import Group, Trajectory
from swe_rl.wire import TaskInfo

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Collector:
    """What every episode of a run shares; `slots` bounds the episodes in flight, of all groups together."""

    client: SandboxClient
    engine: Engine
    renderer: Renderer
    config: Config
    slots: asyncio.Semaphore
    retry_delay_s: float = 1.0


async def collect_group(task: TaskInfo, index: int, policy_version: int, collector: Collector) -> Group:
    """Group `index`, stamped with the version at its dispatch; each token carries its own.

    Raises SandboxError if a member can't even begin after all retries; the other members are cancelled then.
    """
    group_id = f"g{index:06d}"
    rollout = collector.config.rollout
    cutoff = Cutoff(rollout.group_size, rollout.group_quorum, rollout.group_grace_s)
    try:
        async with asyncio.TaskGroup() as tasks:
            members = [
                tasks.create_task(_collect_member(task, group_id, member, collector, cutoff))
                for member in range(rollout.group_size)
            ]
    except BaseExceptionGroup as errors:
        raise _first(errors) from errors
    trajectories = tuple(member.result() for member in members)
    return Group(group_id, task.task_id, task.split, index, policy_version, trajectories)


async def _collect_member(
    task: TaskInfo, group_id: str, member: int, collector: Collector, cutoff: Cutoff
) -> Trajectory:
    """One episode that got a reward, or the last try of one that didn't.

    Only a rewarded one counts towards the group's quorum: how soon a fault came says nothing about the task.
    """
    attempt = 0
    while True:
        is_last = attempt == collector.config.rollout.max_episode_retries
        trajectory_id = f"{group_id}-m{member}a{attempt}"
        try:
            async with collector.slots:
                trajectory = await run_episode(
                    task,
                    client=collector.client,
                    engine=collector.engine,
                    renderer=collector.renderer,
                    config=collector.config,
                    trajectory_id=trajectory_id,
                    group_id=group_id,
                    temperature=collector.config.sampling.temperature,
                    cutoff=cutoff,
                )
        except SandboxError as error:
            if is_last:
                raise
            logger.warning("%s: can't begin: %s", trajectory_id, error)
        else:
            if trajectory.reward is not None:
                cutoff.count_end()
                return trajectory
            if is_last:
                return trajectory
            logger.warning("%s: no reward (%s), trying again", trajectory_id, trajectory.stop_reason.value)
        await asyncio.sleep(collector.retry_delay_s * 2**attempt)
        attempt += 1


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to show; one that isn't ours is a defect and goes first."""
    flat: list[BaseException] = []
    stack: list[BaseException] = [errors]
    while stack:
        error = stack.pop()
        if isinstance(error, BaseExceptionGroup):
            stack += reversed(error.exceptions)
        else:
            flat.append(error)
    return next((error for error in flat if not isinstance(error, SweRlError)), flat[0])
