"""Every knob of a run, once. One TOML serves all verbs; unknown keys are errors; secrets come from the environment."""

from swe_rl.config.load import Config, load_config, shipped_configs
from swe_rl.config.rollout import Dialect, EngineConfig
from swe_rl.config.run import ColdStartConfig
from swe_rl.config.train import AdvantageKind, MaskConfig, TrainConfig

__all__ = [
    "AdvantageKind",
    "ColdStartConfig",
    "Config",
    "Dialect",
    "EngineConfig",
    "MaskConfig",
    "TrainConfig",
    "load_config",
    "shipped_configs",
]
