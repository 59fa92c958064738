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
        from swe_rl.inference.replicas import ReplicatedEngine

        return ReplicatedEngine(_vllm_replicas(config))
    raise ConfigError(f"engine.kind is {config.engine.kind!r}, expected local or vllm: a scripted engine has no policy")


def _vllm_replicas(config: "Config") -> "list[Engine]":
    """One engine for each address of `engine.url`, or `engine.num_replicas` that start a server each."""
    from swe_rl.inference.vllm import VllmEngine

    urls = [url.strip() for url in config.engine.url.split(",") if url.strip()]
    if urls and config.engine.num_replicas > 1:
        raise ConfigError(
            f"engine.num_replicas is {config.engine.num_replicas} beside {len(urls)} addresses in engine.url; "
            "expected one of the two"
        )
    folder = config.run.dir / "state" / "inference"
    return [
        VllmEngine(
            config.engine.model_copy(update={"url": url}),
            folder if index == 0 else folder / f"replica{index}",
            seed=config.run.seed + index,
            replica=index,
        )
        for index, url in enumerate(urls or [""] * config.engine.num_replicas)
    ]
