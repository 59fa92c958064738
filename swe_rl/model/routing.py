"""The experts that an engine's routers chose, in the place of those that this model's routers choose.

    recorded experts [N, L, K] -> Routing, an argument of the forward -> each router's top-k gives them, not its own

A router scores its experts, takes the best by one `topk` over all of them, and makes weights of what it took. Only what
that call gives is exchanged: the weights are still the router's own, of now, and differentiable. As the experts are an
argument of the layers, activations that are computed anew in the backward pass pass through the same ones. Where
nothing is recorded the router's choice stands; whether the two agree is noted in any case.

Shapes: N tokens of the row, L decoder layers, K experts a token, X experts of a layer.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from swe_rl.errors import PolicyError, TrajectoryError

_TOPK = (torch.topk, Tensor.topk)


class Routing:
    """One row's recorded experts: int16 [N, L, K], negative where unknown; replayed, or only compared."""

    def __init__(self, experts_NLK: Tensor, is_replayed: bool) -> None:
        self.experts_NLK = experts_NLK
        self.is_replayed = is_replayed
        self.agrees_NL = torch.full(experts_NLK.shape[:2], float("nan"), device=experts_NLK.device)

    def held(self, held_n: Tensor, num_tokens: int) -> "Routing":
        """That of some tokens of the row, which is padded to `num_tokens`."""
        padding = (0, 0, 0, 0, 0, num_tokens - len(self.experts_NLK))
        return Routing(F.pad(self.experts_NLK, padding, value=-1)[held_n], self.is_replayed)

    def agreement(self) -> Tensor:
        """[N]: the share of a token's layers whose router would have chosen the recorded set; NaN where unknown."""
        return self.agrees_NL.nanmean(dim=1)

    def choose(self, layer: int, own_NK: Tensor) -> Tensor:
        """The experts that the tokens pass through in a layer, given the router's own choice."""
        recorded_NK = self.experts_NLK[:, layer].to(own_NK.dtype)
        is_known_N = (recorded_NK >= 0).all(dim=1)
        is_same_N = (recorded_NK.sort(dim=1).values == own_NK.sort(dim=1).values).all(dim=1)
        self.agrees_NL[:, layer] = torch.where(is_known_N, is_same_N.float(), float("nan"))
        return torch.where(is_known_N[:, None], recorded_NK, own_NK) if self.is_replayed else own_NK


def find_routers(model: PreTrainedModel) -> dict[int, nn.Module]:
    """The router of each decoder layer that has one. Raises PolicyError for a model without any."""
    routers: dict[int, nn.Module] = {}
    base: Any = model.base_model
    for index, layer in enumerate(base.layers):
        for module in layer.modules():
            if type(module).__name__.lower().endswith("topkrouter"):
                routers[index] = module
    if not routers:
        raise PolicyError(
            f"model {type(model).__name__}: no layer has a router that chooses experts, so there is nothing to replay; "
            "set train.replay_routing and engine.return_routed_experts to false"
        )
    return routers


def use_routing(model: PreTrainedModel, routing: Routing) -> None:
    """Makes the layers take `routing` as an argument of the forward; idempotent.

    Raises TrajectoryError for recorded experts that aren't of such a model.
    """
    state: Any = model
    if not hasattr(state, "_routers"):
        state._routers = find_routers(model)
        for index, module in state._routers.items():
            _open(model, index, module)
    router: Any = next(iter(state._routers.values()))
    base: Any = model.base_model
    expected = (len(base.layers), router.top_k, router.num_experts)
    got = (*routing.experts_NLK.shape[1:], int(routing.experts_NLK.max()) + 1)
    if got[:2] != expected[:2] or got[2] > expected[2]:
        raise TrajectoryError(
            f"recorded experts: {got[0]} layers, {got[1]} experts a token, numbers up to {got[2] - 1}; the policy has "
            f"{expected[0]} layers and {expected[2]} experts, {expected[1]} of them a token: it isn't the model that "
            "sampled"
        )


def _open(model: PreTrainedModel, index: int, module: nn.Module) -> None:
    base: Any = model.base_model
    router: Any = module
    router._routing = None

    def take(_layer: nn.Module, _args: object, kwargs: Mapping[str, Any]) -> None:
        router._routing = kwargs.get("routing")

    base.layers[index].register_forward_pre_hook(take, with_kwargs=True)
    router.forward = partial(_route, router, index, router.forward)


def _route(router: Any, index: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if router._routing is None:
        return forward(*args, **kwargs)
    with _Exchange(router, index) as exchange:
        output = forward(*args, **kwargs)
    if exchange.num_calls != 1:
        raise PolicyError(
            f"router {type(router).__name__} takes its experts by {exchange.num_calls} top-k calls over all of them, "
            "expected 1; it can't be replayed"
        )
    return output


class _Exchange(TorchFunctionMode):
    """While it is entered, the router's top-k over all experts gives those that the routing says."""

    def __init__(self, router: Any, layer: int) -> None:
        super().__init__()
        self.num_calls = 0
        self._router, self._layer = router, layer

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        # the choice of groups of experts, which some routers make before, is over fewer
        if func not in _TOPK or args[0].shape[-1] != self._router.num_experts or result.indices.ndim != 2:
            return result
        self.num_calls += 1
        experts_NK = self._router._routing.choose(self._layer, result.indices)
        return torch.return_types.topk((args[0].gather(1, experts_NK), experts_NK))
