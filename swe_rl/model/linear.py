"""Exact float32 matrix products on the CPU by oneDNN.

PyTorch gives float32 products to MKL, which on some CPUs runs at less than half of their speed; oneDNN's product is
the same arithmetic, summed in another order. Only float32 on the CPU outside of autocast is rerouted; everything else
is left to PyTorch.

Shapes: N rows, I input features, O output features.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


def linear(x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> torch.Tensor:
    """`torch.nn.functional.linear`, by oneDNN where that is exact."""
    if not _is_eligible(x, weight_OI):
        return F.linear(x, weight_OI, bias_O)
    product: Any = _OneDnnLinear
    out: torch.Tensor = product.apply(x, weight_OI)
    return out if bias_O is None else out + bias_O


def onednn_linears() -> contextlib.AbstractContextManager[object]:
    """While it is entered, modules' linear layers go through `linear`."""
    return _Reroute() if _has_onednn() else contextlib.nullcontext()


class _Reroute(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.linear:
            func = linear
        return func(*args, **(kwargs or {}))


class _OneDnnLinear(torch.autograd.Function):
    """y = x W^T;  dx = dy W;  dW = dy^T x"""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight_OI: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight_OI)
        return _product(x, weight_OI)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        x, weight_OI = ctx.saved_tensors
        (grad,) = grads
        needs_x, needs_weight = ctx.needs_input_grad
        grad_x = _product(grad, weight_OI.t()) if needs_x else None
        grad_weight = _product(grad.flatten(0, -2).t(), x.flatten(0, -2).t()) if needs_weight else None
        return grad_x, grad_weight


def _product(x: torch.Tensor, weight_OI: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight_OI, None, "none", [], "")
    return out


def _is_eligible(x: torch.Tensor, weight_OI: torch.Tensor) -> bool:
    is_plain = all(t.dtype == torch.float32 and t.device.type == "cpu" for t in (x, weight_OI))
    return is_plain and x.numel() > 0 and _has_onednn() and not torch.is_autocast_enabled("cpu")


def _has_onednn() -> bool:
    # the operator is private to PyTorch: without it the products are MKL's, equal and slower
    onednn: Any = torch.backends.mkldnn
    return onednn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
