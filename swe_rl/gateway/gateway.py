"""The sessions that are open, each with a key of its own."""

import logging
import secrets
from pathlib import Path

from swe_rl.agent.render import Renderer
from swe_rl.errors import AuthError, SessionNotFoundError
from swe_rl.gateway.messages import RequestError
from swe_rl.gateway.session import GatewaySession, SessionIds, SessionLimits
from swe_rl.inference.engine import Engine
from swe_rl.trajectory import StopReason, Trajectory
from swe_rl.verdict import Verdict

logger = logging.getLogger(__name__)


class Gateway:
    """The open sessions, by their keys."""

    def __init__(self, engine: Engine, renderer: Renderer, limits: SessionLimits) -> None:
        self._engine, self._renderer, self._limits = engine, renderer, limits
        self._sessions: dict[str, GatewaySession] = {}

    def open(self, ids: SessionIds, temperature: float = 1.0) -> str:
        """The key of a new session. Raises RequestError if there is one of this trajectory, or its id is no name."""
        if not ids.trajectory_id or "#" in ids.trajectory_id:
            raise RequestError(
                f"trajectory_id is {ids.trajectory_id!r}, expected a name without #, which tells branches"
            )
        if any(session.ids.trajectory_id == ids.trajectory_id for session in self._sessions.values()):
            raise RequestError(f"session {ids.trajectory_id} is open already")
        key = f"swe-rl-{secrets.token_urlsafe(24)}"
        self._sessions[key] = GatewaySession(
            ids, engine=self._engine, renderer=self._renderer, temperature=temperature, limits=self._limits
        )
        return key

    async def load(self, policy_dir: Path, version: int) -> None:
        """Every completion from here on is of these weights. Raises PolicyError, EngineError."""
        await self._engine.load(policy_dir, version)

    def session(self, key: str) -> GatewaySession:
        """Raises AuthError."""
        found = self._sessions.get(key)
        if found is None:
            raise AuthError("the API key is not that of an open session")
        return found

    async def close(
        self, trajectory_id: str, stop_reason: StopReason = StopReason.SUBMITTED, verdict: Verdict | None = None
    ) -> list[Trajectory]:
        """Ends a session; what runs for it is aborted. Raises SessionNotFoundError."""
        for key, session in self._sessions.items():
            if session.ids.trajectory_id == trajectory_id:
                del self._sessions[key]
                await session.release()
                if session.num_branches > 1:
                    logger.info("session %s: its history forked into %d", trajectory_id, session.num_branches)
                return session.trajectories(stop_reason, verdict)
        raise SessionNotFoundError(f"gateway: no open session {trajectory_id}")
