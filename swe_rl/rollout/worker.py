"""The producer loop: follows the newest policy and keeps the rollout store filled just far enough ahead of it.

Policies flow in from their store, groups flow out into theirs. Back-pressure is what the store lacks of the groups of

    policy version + 1 + rollout.max_staleness

steps, if all that are in flight carry a signal. It never talks to a trainer. Indices that a crash left without a group
are filled before new ones.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from swe_rl.agent.render import Renderer
from swe_rl.client import SandboxClient
from swe_rl.config import Config
from swe_rl.errors import EngineUnavailableError, SandboxError, SandboxUnavailableError, SweRlError
from swe_rl.inference.engine import Engine
from swe_rl.returns import ReturnRule
from swe_rl.rollout.group import Collector, collect_group
from swe_rl.rollout.sampler import Sampler
from swe_rl.store.policies import PolicyStore
from swe_rl.store.rollouts import RolloutStore
from swe_rl.store.steps import StepRule
from swe_rl.trajectory import Group, StopReason
from swe_rl.wire import TaskInfo

logger = logging.getLogger(__name__)


class Worker:
    """Produces the groups of one run. Two workers on one run would do the same groups: run one."""

    def __init__(
        self,
        tasks: Sequence[TaskInfo],
        *,
        client: SandboxClient,
        engine: Engine,
        renderer: Renderer,
        rollouts: RolloutStore,
        policies: PolicyStore,
        config: Config,
        patience_s: float = 120.0,
        poll_s: float = 0.2,
        on_group: Callable[[Group], None] | None = None,
    ) -> None:
        """`patience_s`: how long a dead service or engine is waited for; `on_group` is called after each append."""
        self._tasks = {task.task_id: task for task in tasks}
        self._sampler = Sampler(list(self._tasks), config.run.seed)
        slots = asyncio.Semaphore(config.rollout.concurrency)
        self._collector = Collector(client, engine, renderer, config, slots)
        self._engine = engine
        self._rollouts = rollouts
        self._policies = policies
        self._config = config
        self._step = StepRule.of(config.rollout, ReturnRule.of(config).has_signal)
        self._patience_s = patience_s
        self._poll_s = poll_s
        self._on_group = on_group
        self._version = -1

    async def run(self, steps: int, *, until_published: bool = False) -> None:
        """Returns once the store holds the groups of `steps` steps. Raises the first error of any group.

        `until_published`: only once version `steps` is published, too. Until then the trainer may drop a group as too
        stale, and only a worker that is still there can replace it.

        Waits for the first policy, and for each next one as back-pressure asks, without an end of its own.
        """
        running: dict[asyncio.Task[None], int] = {}
        try:
            while True:
                await self._follow_policy()
                for index in self._startable(steps, running.values()):
                    running[asyncio.create_task(self._produce(index, self._version))] = index
                is_awaited = until_published and self._version < steps
                if not running and not is_awaited and not self.num_missing(steps):
                    return
                await self._wait(running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def num_missing(self, steps: int) -> int:
        """How many groups more the store needs for `steps` steps, at least."""
        return self._rollouts.num_missing(self._step, steps)

    async def _follow_policy(self) -> None:
        manifest = self._policies.latest()
        if manifest is not None and manifest.version > self._version:
            await asyncio.to_thread(self._policies.verify, manifest.version)  # damaged weights sample plausible noise
            await self._engine.load(manifest.path, manifest.version)
            self._version = manifest.version
            logger.info("policy %d loaded", self._version)

    def _startable(self, steps: int, in_flight: Collection[int]) -> list[int]:
        """Indices to begin now, lowest first: as many as back-pressure, the end and the episode slots allow."""
        rollout = self._config.rollout
        if self._version < 0:
            return []
        allowed = min(self._version + 1 + rollout.max_staleness, steps)
        # One group more than the slots hold keeps them full while the last episodes of others end.
        max_in_flight = -(-rollout.concurrency // rollout.group_size) + 1
        room = max_in_flight - len(in_flight)
        if room <= 0:
            return []
        count = min(room, self.num_missing(allowed) - len(in_flight))
        if count <= 0:
            return []
        horizon = max([self._rollouts.next_index(), *(index + 1 for index in in_flight)]) + count
        missing = self._rollouts.missing_indices(horizon)
        return [index for index in missing if index not in in_flight][:count]

    async def _wait(self, running: dict[asyncio.Task[None], int]) -> None:
        """Until a group ends or it is time to look for a new policy. Raises what a group raised."""
        if not running:
            await asyncio.sleep(self._poll_s)
            return
        done, _ = await asyncio.wait(running, timeout=self._poll_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            del running[task]
            task.result()

    async def _produce(self, index: int, version: int) -> None:
        group = await self._collect_patiently(index, version)
        await asyncio.to_thread(self._rollouts.append, group)  # waits for the disk, and other episodes go on
        rewards = [t.reward for t in group.trajectories]
        num_faults = rewards.count(None)
        logger.info("group %d of task %s stored: rewards %s", index, group.task_id, rewards)
        if num_faults:
            logger.warning("group %d: %d of %d episodes have no reward", index, num_faults, len(rewards))
        if self._on_group is not None:
            self._on_group(group)

    async def _collect_patiently(self, index: int, version: int) -> Group:
        """Collects again while the service or the engine is down, up to `patience_s`; then the error says so."""
        task = self._tasks[self._sampler.task(index)]
        clock = asyncio.get_running_loop().time
        since: float | None = None
        delay_s = 1.0
        while True:
            try:
                group = await collect_group(task, index, version, self._collector)
                _check_engine(group)
                return group
            except (SandboxError, EngineUnavailableError) as error:
                since = since if since is not None else clock()
                if clock() + delay_s > since + self._patience_s:
                    raise self._give_up(error, index, task.task_id) from error
                logger.warning("group %d: waiting %g s: %s", index, delay_s, error)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, 15.0)

    def _give_up(self, error: SweRlError, index: int, task_id: str) -> SweRlError:
        kind = EngineUnavailableError if isinstance(error, EngineUnavailableError) else SandboxUnavailableError
        return kind(
            f"rollout: group {index} (task {task_id}) can't be collected, tried for {self._patience_s:g} s: {error}; "
            "start again once that is mended, nothing is lost"
        )


def _check_engine(group: Group) -> None:
    """Raises EngineUnavailableError if the engine failed every member: storing such groups would hide its death."""
    if all(t.stop_reason is StopReason.ENGINE_ERROR for t in group.trajectories):
        raise EngineUnavailableError(
            f"engine: failed all {len(group.trajectories)} episodes of group {group.index}; see its log"
        )
