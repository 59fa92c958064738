"""The master weights and their optimiser: on one rank as they are, on several sharded by FSDP2.

Rows go in and log-probabilities come out; gradients are summed over ranks, never averaged, as the loss already has
the denominator of the whole update. The states that go out are of what trains (the rest is the cold start's), and
gathered, whatever the number of ranks: a run may go on with another number.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from swe_rl.config import TrainConfig
from swe_rl.errors import ConfigError
from swe_rl.model import (
    Context,
    Routing,
    TokenScores,
    find_routers,
    load_model,
    recompute_activations,
    save_policy,
    token_scores,
)
from swe_rl.train.adapters import ADAPTER_DIR, Adapters
from swe_rl.train.batch import PackedRow
from swe_rl.train.ranks import Ranks

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
_TRAINED = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
_FROM_WHOLE = StateDictOptions(full_state_dict=True)


class Weights:
    """Float32 masters (float64 with `train.dtype = "float64"`), or adapters over them, and AdamW.

    Every method is called by all ranks.
    """

    def __init__(self, policy_dir: Path, config: TrainConfig, ranks: Ranks) -> None:
        """Raises PolicyError for a directory that can't be loaded or has no experts to replay, ConfigError for a wrong
        `frozen` prefix or targets that the model hasn't."""
        self._config, self._ranks, self._policy_dir = config, ranks, policy_dir
        self._model = _load_masters(policy_dir, config, trainable=True)
        if config.recompute:
            recompute_activations(self._model)
        _freeze(self._model, config.frozen)
        self._adapters = Adapters(self._model, config, policy_dir) if config.lora_rank else None
        nn.Module.to(self._model, ranks.device)
        self._scorer = _Scorer(self._model, config, ranks.context)
        if ranks.size > 1:
            _shard(self._scorer, self._model, ranks)
        self._optimizer = torch.optim.AdamW(
            [parameter for parameter in self._model.parameters() if parameter.requires_grad],
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
        )

    def scores(self, row: PackedRow) -> TokenScores:
        """[N] each, NaN where nothing is trainable; differentiable in the weights."""
        scores: TokenScores = self._scorer(row)
        return scores

    def zero_grad(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def scale_gradient(self, factor: float) -> None:
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def step(self, lr: float) -> float:
        """Clips the summed gradient and applies it, if its norm is finite; returns the norm before clipping."""
        total: Any = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._config.grad_clip)
        norm = float(total.full_tensor() if isinstance(total, DTensor) else total)
        if math.isfinite(norm):
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            self._optimizer.step()
        return norm

    def export(self, dtype: str) -> Callable[[Path], None]:
        """Gathers the weights of now; what is returned writes them as a policy directory, rounded to `dtype`.

        Adapters are merged into its weights, and stand beside them as they are.
        """
        trained = self._trained_names()
        gathered: Any = get_model_state_dict(self._model, options=_WHOLE)
        # on a CPU what was gathered is still the parameters themselves, which the next step moves
        state = {name: t.clone() if name in trained else t for name, t in gathered.items()}

        def write(out_dir: Path) -> None:
            whole = state if self._adapters is None else self._adapters.merged(state)
            save_policy(self._model, self._policy_dir, out_dir, dtype=dtype, state=whole)
            if self._adapters is not None:
                self._adapters.save(state, out_dir / ADAPTER_DIR)

        return write

    def reference(self) -> "Reference":
        """The cold start: what lies below the adapters, or a second model beside this one."""
        if self._adapters is not None:
            return Reference(self._scorer, self._adapters.off)
        model = _load_masters(self._policy_dir, self._config, trainable=False)
        nn.Module.to(model, self._ranks.device)
        scorer = _Scorer(model, self._config, self._ranks.context)
        if self._ranks.size > 1:
            _shard(scorer, model, self._ranks)
        return Reference(scorer, nullcontext)

    def state(self) -> dict[str, Any]:
        """What trains and the optimiser, whole, on the CPU; empty on ranks other than the first."""
        trained = self._trained_names()
        gathered = get_model_state_dict(self._model, options=_TRAINED)
        return {
            "model": {name: value for name, value in gathered.items() if name in trained},
            "optimizer": get_optimizer_state_dict(self._model, self._optimizer, options=_WHOLE),
            "lora": self._lora(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Raises KeyError, RuntimeError or ValueError for the state of another model, or of other adapters."""
        if state["lora"] != self._lora():
            raise ValueError(f"its (lora_rank, lora_alpha) are {state['lora']}, not {self._lora()}")
        if differing := state["model"].keys() ^ self._trained_names():
            raise ValueError(f"only one of the two trains {min(differing)}")
        set_model_state_dict(self._model, state["model"], options=_FROM_WHOLE)
        set_optimizer_state_dict(self._model, self._optimizer, state["optimizer"], options=_FROM_WHOLE)

    def _trained_names(self) -> set[str]:
        named = self._model.named_parameters(remove_duplicate=False)
        return {name for name, parameter in named if parameter.requires_grad}

    def _lora(self) -> tuple[int, int] | None:
        return None if self._adapters is None else (self._config.lora_rank, self._config.lora_alpha)


class Reference:
    """A policy that stays as it is: its log-probabilities without a gradient."""

    def __init__(self, scorer: "_Scorer", entered: Callable[[], AbstractContextManager[None]]) -> None:
        """While `entered()` is entered, the scorer is that policy's."""
        self._scorer, self._entered = scorer, entered

    @torch.no_grad()
    def logprobs(self, row: PackedRow) -> Tensor:
        """[N], NaN where nothing is trainable. Called by all ranks."""
        with self._entered():
            scores: TokenScores = self._scorer(row)
        return scores.logprobs


class _Scorer(nn.Module):
    """The whole forward pass as one module, so that FSDP gathers and frees weights around it."""

    def __init__(self, model: nn.Module, config: TrainConfig, context: Context) -> None:
        super().__init__()
        self.model = model
        self._chunk, self._vocab_chunk = config.logprob_chunk, config.vocab_chunk
        self._context = context
        self._compute_dtype = torch.bfloat16 if config.dtype == "bfloat16" else None
        self._is_replayed = config.replay_routing
        if config.replay_routing:
            find_routers(model)  # type: ignore[arg-type]

    def forward(self, row: PackedRow) -> TokenScores:
        return token_scores(
            self.model,  # type: ignore[arg-type]
            row.token_ids_N,
            row.document_N,
            row.temperature_N,
            chunk=self._chunk,
            needed_N=row.trainable_N,
            compute_dtype=self._compute_dtype,
            vocab_chunk=self._vocab_chunk,
            is_tail_N=row.is_tail_N,
            context=self._context,
            routing=Routing(row.experts_NLK, self._is_replayed) if row.experts_NLK.shape[1] else None,
        )


def _load_masters(policy_dir: Path, config: TrainConfig, trainable: bool) -> PreTrainedModel:
    return load_model(policy_dir, "float64" if config.dtype == "float64" else "float32", trainable)


def _shard(scorer: nn.Module, model: Any, ranks: Ranks) -> None:
    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    for layer in model.base_model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(scorer, mesh=mesh)
    for module in scorer.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # else float32 is summed by an operation that gloo lacks


def _freeze(model: nn.Module, prefixes: Sequence[str]) -> None:
    """Raises ConfigError for a prefix that no parameter has, and where nothing is left to train."""
    names = dict(model.named_parameters())
    for prefix in prefixes:
        frozen = [parameter for name, parameter in names.items() if name.startswith(prefix)]
        if not frozen:
            raise ConfigError(f"train.frozen: no parameter's name begins with {prefix!r}; one is {next(iter(names))!r}")
        for parameter in frozen:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in names.values()):
        raise ConfigError(f"train.frozen: {list(prefixes)} leaves nothing to train")
