"""Low-rank adapters beside a model's linear layers: they train, and everything that was there before stays as it is.

    y = W x + scale B A x,   scale = lora_alpha / lora_rank;   B = 0 at the start, A as peft initialises it

Source: LoRA (Hu et al. 2021), by the peft library. Weights of the model with its adapters come in as a gathered state
and go out merged, under the names that the model had without them, or as a directory of the adapters alone that
`peft.PeftModel.from_pretrained` reads. Nothing here optimises.

Shapes: O output features, I input features, R rank.
"""

import copy
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from peft import LoraConfig, inject_adapter_in_model
from peft.helpers import rescale_adapter_scale
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from swe_rl.config import TrainConfig
from swe_rl.errors import ConfigError

ADAPTER_DIR = "adapter"  # in a policy directory, beside the merged weights

logger = logging.getLogger(__name__)


class Adapters:
    """The adapters of one model. They are in the masters' dtype."""

    def __init__(self, model: PreTrainedModel, config: TrainConfig, policy_dir: Path) -> None:
        """Freezes the model and puts adapters into it; A is drawn from torch's random numbers.

        Raises ConfigError for `train.lora_targets` that the model doesn't have, and where no layer is left.
        """
        self._model, self._layers = model, _layers(model, config)
        self._scale = config.lora_alpha / config.lora_rank
        # whole names: peft takes some short ones for the experts of a mixture
        self._config = LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.lora_alpha,
            target_modules=self._layers,
            task_type="CAUSAL_LM",
            base_model_name_or_path=str(policy_dir),
        )
        inject_adapter_in_model(copy.deepcopy(self._config), model)
        if stacked := [name for name, parameter in model.named_parameters() if parameter.ndim > 2]:
            logger.warning(
                "%s: adapters are for linear layers, the experts of the mixture stay as they are: %d tensors, first %s",
                *(policy_dir, len(stacked), stacked[0]),
            )

    def off(self) -> AbstractContextManager[None]:
        """While it is entered the model is the one below the adapters, exactly."""
        return rescale_adapter_scale(self._model, 0.0)

    def merged(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """W + scale B A in the state's own dtype, and what has no adapter as it is."""
        whole = {name.replace(".base_layer.", "."): t for name, t in state.items() if not _is_adapter(name)}
        for layer in self._layers:
            a_RI, b_OR = (state[f"{layer}.lora_{part}.default.weight"] for part in "AB")
            whole[f"{layer}.weight"] = whole[f"{layer}.weight"] + self._scale * (b_OR @ a_RI)
        return whole

    def save(self, state: Mapping[str, Tensor], out_dir: Path) -> None:
        """Writes adapter_config.json and adapter_model.safetensors, not rounded."""
        self._config.save_pretrained(str(out_dir))
        adapters = {
            f"base_model.model.{name.replace('.default.', '.')}": t.contiguous()
            for name, t in state.items()
            if _is_adapter(name)
        }
        save_file(adapters, out_dir / "adapter_model.safetensors", metadata={"format": "pt"})


def _is_adapter(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


def _layers(model: PreTrainedModel, config: TrainConfig) -> list[str]:
    """Names of the linear layers that get adapters: all but the output head, or those that are targets."""
    head: Any = model.lm_head
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head]
    kinds = sorted({_kind(name) for name in linear})
    if unknown := sorted(set(config.lora_targets) - set(kinds)):
        raise ConfigError(
            f"train.lora_targets: {unknown[0]!r} is no linear layer below the output head; those of the model are "
            f"{', '.join(kinds) or 'none'}"
        )
    chosen = [name for name in linear if _kind(name) in (config.lora_targets or kinds)]
    # a parameter that is to keep its value gets no adapter
    layers = [name for name in chosen if not f"{name}.weight".startswith(tuple(config.frozen))]
    if not layers:
        raise ConfigError(
            f"train.lora_rank is {config.lora_rank}, and no linear layer is left to adapt: the model has "
            f"{len(linear)}, train.lora_targets leaves {len(chosen)} of them and train.frozen none"
        )
    return layers


def _kind(name: str) -> str:
    """q_proj of model.layers.0.self_attn.q_proj"""
    return name.rpartition(".")[2]
