"""The rerouted float32 product is the same product, and nothing else is rerouted."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from swe_rl.model.linear import linear, onednn_linears


@pytest.mark.parametrize("shape", [(1, 5), (7, 5), (2, 3, 5), (0, 5)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_values_and_gradients_equal_pytorchs(shape: tuple[int, ...], has_bias: bool) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(shape), torch.randn(4, 5), *([torch.randn(4)] if has_bias else [])]
    outcomes = []
    for function in (linear, F.linear):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        out = function(*leaves)
        (out * torch.arange(out.numel()).view_as(out)).sum().backward()
        outcomes.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for ours, theirs in zip(*outcomes, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_float32_is_not_rounded_on_the_way() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(64, 300), torch.randn(50, 300)
    exact = x.double() @ weight.double().T
    assert (linear(x, weight) - exact).abs().max() < 1e-4  # bfloat16 inputs would miss by 0.1


def test_frozen_weights_and_inputs_get_no_gradient() -> None:
    x, weight = torch.randn(3, 5, requires_grad=True), torch.randn(4, 5)
    linear(x, weight).sum().backward()
    assert x.grad is not None and weight.grad is None
    x, weight = torch.randn(3, 5), torch.randn(4, 5, requires_grad=True)
    linear(x, weight).sum().backward()
    assert x.grad is None and weight.grad is not None


def test_other_dtypes_and_autocast_are_left_to_pytorch() -> None:
    layer = nn.Linear(5, 4)
    x = torch.randn(3, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16), onednn_linears():
        assert layer(x).dtype == torch.bfloat16
    with onednn_linears():
        assert torch.equal(layer.double()(x.double()), F.linear(x.double(), layer.weight, layer.bias))


def test_modules_are_rerouted_only_inside_the_context() -> None:
    layer = nn.Linear(5, 4)
    x = torch.randn(3, 5)
    outside = layer(x)
    with onednn_linears():
        inside = layer(x)
    assert "OneDnn" in repr(inside.grad_fn.next_functions) and "OneDnn" not in repr(outside.grad_fn)
    torch.testing.assert_close(inside, outside)
