"""What rollout tests share: the toy renderer, a policy that mends every task, and short settings."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swe_rl.agent.render import Renderer
from swe_rl.config import Config


@pytest.fixture(scope="session")
def renderer(policy_dir: Path) -> Renderer:
    return Renderer.from_policy(policy_dir)


@pytest.fixture(scope="session")
def mend(service: Any) -> Callable[[str, int, str], str]:
    """A scripted policy: edits the file that its prompt's task is about, then submits."""

    def reply(_: str, turn: int, context: str) -> str:
        if turn:
            return _call("submit")
        task = next(task for task in service.tasks if task.instruction in context)
        return _call("edit", path=task.source_path, old=task.broken_line, new=task.fixed_line)

    return reply


def _call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture(scope="session")
def settings() -> Callable[..., Config]:
    """Takes `rollout` keys."""

    def make(**rollout: Any) -> Config:
        return Config.model_validate(
            {
                "agent": {"prompt": "compact", "episode_timeout_s": 60.0},
                "engine": {"max_context": 2048},
                "sampling": {"max_tokens_per_turn": 512, "temperature": 0.8},
                "rollout": {"group_size": 2, "groups_per_step": 2, "concurrency": 4, "max_episode_retries": 1}
                | rollout,
            }
        )

    return make
