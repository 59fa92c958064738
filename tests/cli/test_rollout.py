"""`swe-rl rollout`: what it refuses before it starts."""

import argparse
from pathlib import Path

import pytest

from swe_rl.cli import rollout
from swe_rl.errors import ConfigError


def _args(*overrides: str, steps: str = "1") -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    rollout.add_arguments(parser)
    sets = [part for override in overrides for part in ("--set", override)]
    return parser.parse_args([*sets, "--steps", steps])


def test_a_run_without_a_service_says_which_key_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWE_RL_SANDBOX_TOKEN", "token")
    with pytest.raises(ConfigError, match=r"sandbox\.url is empty"):
        rollout.run(_args())


def test_a_run_without_a_token_says_which_variable_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWE_RL_SANDBOX_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="SWE_RL_SANDBOX_TOKEN isn't set"):
        rollout.run(_args("sandbox.url=http://127.0.0.1:9"))


def test_a_scripted_engine_has_no_policy_to_roll_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SWE_RL_SANDBOX_TOKEN", "token")
    with pytest.raises(ConfigError, match=r"engine\.kind is 'scripted'"):
        rollout.run(_args("sandbox.url=http://127.0.0.1:9", "engine.kind=scripted", f"run.dir={tmp_path}"))


def test_negative_steps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWE_RL_SANDBOX_TOKEN", "token")
    with pytest.raises(ConfigError, match="--steps is -1"):
        rollout.run(_args("sandbox.url=http://127.0.0.1:9", steps="-1"))
