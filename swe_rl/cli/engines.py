"""Which engine a configuration asks for."""

from typing import TYPE_CHECKING

from swe_rl.errors import ConfigError

if TYPE_CHECKING:
    from swe_rl.config import Config
    from swe_rl.inference.engine import Engine


def open_engine(config: "Config") -> "Engine":
    """Imports torch or starts a vLLM server as `engine.kind` says. Raises ConfigError for one without a policy."""
    if config.engine.kind == "local":
        from swe_rl.inference.local import LocalEngine

        return LocalEngine(config.engine, config.run.seed)
    if config.engine.kind == "vllm":
        from swe_rl.inference.vllm import VllmEngine

        return VllmEngine(config.engine, config.run.dir / "state" / "inference", seed=config.run.seed)
    raise ConfigError(f"engine.kind is {config.engine.kind!r}, expected local or vllm: a scripted engine has no policy")
