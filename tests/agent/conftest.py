"""The renderer of the toy tokenizer."""

from pathlib import Path

import pytest

from swe_rl.agent.render import Renderer


@pytest.fixture(scope="session")
def renderer(policy_dir: Path) -> Renderer:
    return Renderer.from_policy(policy_dir)
