"""Reads a config from TOML, or from a run's config.json."""

import difflib
import json
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator

from swe_rl.config.rollout import AgentConfig, EngineConfig, RolloutConfig, SamplingConfig
from swe_rl.config.run import ColdStartConfig, EvalConfig, PolicyConfig, RunConfig, SandboxConfig, SynthConfig
from swe_rl.config.section import Section
from swe_rl.config.train import LossConfig, MaskConfig, TrainConfig
from swe_rl.errors import ConfigError


class Config(Section):
    run: RunConfig = RunConfig()
    policy: PolicyConfig = PolicyConfig()
    synth: SynthConfig = SynthConfig()
    sandbox: SandboxConfig = SandboxConfig()
    engine: EngineConfig = EngineConfig()
    sampling: SamplingConfig = SamplingConfig()
    agent: AgentConfig = AgentConfig()
    rollout: RolloutConfig = RolloutConfig()
    train: TrainConfig = TrainConfig()
    mask: MaskConfig = MaskConfig()
    loss: LossConfig = LossConfig()
    eval: EvalConfig = EvalConfig()
    coldstart: ColdStartConfig = ColdStartConfig()

    @model_validator(mode="after")
    def _replays_what_is_recorded(self) -> "Config":
        if self.train.replay_routing and not self.engine.return_routed_experts:
            raise ValueError("train.replay_routing is true, expected engine.return_routed_experts to be true then, too")
        return self

    @model_validator(mode="after")
    def _has_adapters_for_its_targets(self) -> "Config":
        if self.train.lora_targets and not self.train.lora_rank:
            raise ValueError(f"train.lora_targets is {self.train.lora_targets}, expected train.lora_rank above 0 then")
        return self

    @model_validator(mode="after")
    def _backfills_whole_groups(self) -> "Config":
        rollout = self.rollout
        if rollout.max_backfill and not rollout.num_backfill:
            raise ValueError(
                f"rollout.max_backfill is {rollout.max_backfill:g}, which is no whole group of rollout.groups_per_step "
                f"({rollout.groups_per_step}); expected 0 or at least 1 / {rollout.groups_per_step}"
            )
        return self

    @model_validator(mode="after")
    def _buffers_within_the_context(self) -> "Config":
        buffer, max_context = self.train.overlong_buffer, self.engine.max_context
        if self.train.overlong_penalty and buffer > max_context:
            raise ValueError(f"train.overlong_buffer is {buffer}, expected at most engine.max_context ({max_context})")
        return self


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> Config:
    """Reads a TOML file and applies `section.key=value` overrides.

    `path` may also be a run's config.json, or the bare name of a shipped file, e.g. `quickstart`. Raises
    ConfigError that names the file and the key.
    """
    data: dict[str, Any] = {}
    where = "the defaults"
    if path is not None:
        where = str(path)
        data = _parse(path)
    for override in overrides:
        _apply(data, override)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = _known(first["loc"])
            name = str(first["loc"][-1])
            elsewhere = [f"{part}.{name}" for part in Config.model_fields if name in _known((part, name))]
            nearest = elsewhere or difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {nearest[0]!r}? " if nearest else ""
            raise ConfigError(f"{where}: unknown key {key!r}; {hint}expected one of {', '.join(known)}") from error
        if not key:
            raise ConfigError(f"{where}: {first['msg'].removeprefix('Value error, ')}") from error
        raise ConfigError(f"{where}: {key} = {first.get('input')!r}: {first['msg']}") from error


def shipped_configs() -> list[str]:
    """Names of the TOML files that come with the package."""
    return sorted(f.name.removesuffix(".toml") for f in _shipped().iterdir() if f.name.endswith(".toml"))


def _shipped() -> Any:
    return resources.files("swe_rl.config") / "shipped"


def _parse(path: str | Path) -> dict[str, Any]:
    raw = _read(path)
    try:
        text = raw.decode("utf-8")
        data = json.loads(text) if Path(path).suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML (or JSON, by its name): {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds a {type(data).__name__}, expected an object of sections")
    return data


def _read(path: str | Path) -> bytes:
    file = Path(path)
    if file.is_file():
        return file.read_bytes()
    if str(path) in shipped_configs():
        return bytes((_shipped() / f"{path}.toml").read_bytes())
    raise ConfigError(f"config {path}: no such file; shipped ones are {', '.join(shipped_configs())}")


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot and section and name):
        raise ConfigError(f"--set {override!r}: expected section.key=value")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    keys = data.setdefault(section, {})
    if not isinstance(keys, dict):
        raise ConfigError(f"{section} = {keys!r}: expected a section of keys, so that --set {override!r} can set one")
    keys[name] = value


def _known(location: tuple[Any, ...]) -> list[str]:
    model: Any = Config
    for part in location[:-1]:
        model = model.model_fields[part].annotation
    return sorted(model.model_fields)
