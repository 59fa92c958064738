"""The clipped objective on hand-computed points, and that masked positions cannot reach it."""

import math

import pytest
import torch

from swe_rl.train.loss import num_units, policy_loss, reference_kl, token_scale


def loss_of(new, train=None, advantage=None, weight=None, keep=None, **options):
    new = torch.tensor(new, dtype=torch.float64, requires_grad=True)
    n = len(new)
    train = torch.full((n,), -1.0).double() if train is None else torch.tensor(train).double()
    advantage = torch.ones(n) if advantage is None else torch.tensor(advantage)
    weight = torch.ones(n) if weight is None else torch.tensor(weight)
    keep = torch.ones(n, dtype=torch.bool) if keep is None else torch.tensor(keep)
    options = {"denominator": n, "clip_low": 0.2, "clip_high": 0.3} | options
    result = policy_loss(new, train, advantage, weight, keep, **options)
    result.value.backward()
    return result, new.grad


def test_at_ratio_one_the_gradient_is_minus_advantage_times_weight_over_the_denominator():
    result, grad = loss_of([-1.0, -1.0], advantage=[2.0, -3.0], weight=[1.0, 0.5], denominator=10)
    assert result.value.item() == pytest.approx(-(2.0 - 1.5) / 10)
    assert grad.tolist() == pytest.approx([-0.2, 0.15])
    assert result.num_clipped == 0


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain", "is_clipped"),
    [
        (1.2, 1.0, 1.2, False),
        (1.5, 1.0, 1.3, True),  # upper clip is asymmetric: 1 + 0.3
        (1.5, -1.0, -1.5, False),
        (0.9, -1.0, -0.9, False),
        (0.5, -1.0, -0.8, True),
        (0.5, 1.0, 0.5, False),
    ],
)
def test_the_clip_takes_the_worse_of_both_and_stops_the_gradient(ratio, advantage, gain, is_clipped):
    result, grad = loss_of([-1.0 + math.log(ratio)], advantage=[advantage])
    assert result.value.item() == pytest.approx(-gain)
    assert (float(grad) == 0.0) == is_clipped == (result.num_clipped == 1)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e38])
def test_whatever_stands_at_a_masked_position_never_leaks(poison):
    clean, clean_grad = loss_of([-0.9], denominator=3)
    for name in ("train", "advantage", "weight", "new"):
        arrays = {
            "new": [-0.9, -1.0, -1.0],
            "train": [-1.0] * 3,
            "advantage": [1.0, 1.0, 1.0],
            "weight": [1.0, 1.0, 1.0],
        }
        arrays[name][1] = poison
        dirty, grad = loss_of(keep=[True, False, False], denominator=3, **arrays)
        assert dirty.value.item() == clean.value.item()
        assert grad.tolist() == [float(clean_grad), 0.0, 0.0]


def test_an_all_masked_batch_is_a_zero_loss_that_is_still_attached_to_the_graph():
    result, grad = loss_of([-1.0, math.nan], keep=[False, False], denominator=2)
    assert result.value.item() == 0.0 and result.value.requires_grad
    assert grad.tolist() == [0.0, 0.0]


def test_no_token_at_all_is_a_zero_loss():
    result, _ = loss_of([], denominator=0)
    assert result.value.item() == 0.0


def aggregated(aggregation, counted, document, loss, constant_length=8):
    counted, document = torch.tensor(counted), torch.tensor(document)
    scale = token_scale(aggregation, counted, document)
    return float(
        (torch.tensor(loss) * scale)[counted].sum() / num_units(aggregation, counted, document, constant_length)
    )


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_mean", (1.0 + 2.0 + 9.0 + 4.0) / 4),
        ("sequence_sum", ((1.0 + 2.0 + 9.0) + 4.0) / 2),
        ("sequence_mean", ((1.0 + 2.0 + 9.0) / 3 + 4.0) / 2),
        ("constant", ((1.0 + 2.0 + 9.0) + 4.0) / (2 * 8)),
    ],
)
def test_each_aggregation_divides_as_its_definition_says(aggregation, expected):
    counted = [True, True, False, True, True, False]
    assert aggregated(aggregation, counted, [0, 0, 0, 0, 1, 2], [1.0, 2.0, 100.0, 9.0, 4.0, 100.0]) == expected


@pytest.mark.parametrize(
    ("estimator", "expected", "slope"),
    [("k2", 0.5 * math.log(2) ** 2, math.log(2)), ("k3", 0.5 - 1 + math.log(2), 1 - 0.5)],
)
def test_the_kl_to_the_reference_has_its_estimators_value_and_gradient(estimator, expected, slope):
    """new = 1/2, reference = 1/4: d = -log 2."""
    new = torch.tensor([math.log(0.5), math.log(0.3)], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([math.log(0.25), math.log(0.3)], dtype=torch.float64)
    kl = reference_kl(estimator, new, reference, torch.tensor([True, True]))
    assert kl.tolist() == pytest.approx([expected, 0.0])
    assert torch.autograd.grad(kl.sum(), new)[0].tolist() == pytest.approx([slope, 0.0])


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_masked_position_never_reaches_the_kl(estimator, poison):
    for poisoned in ("new", "reference"):
        arrays = {"new": [-1.0, -1.0], "reference": [-1.5, -1.0]}
        arrays[poisoned][1] = poison
        new = torch.tensor(arrays["new"], requires_grad=True)
        kl = reference_kl(estimator, new, torch.tensor(arrays["reference"]), torch.tensor([True, False]))
        assert kl[1] == 0 and torch.isfinite(kl).all()
        assert torch.autograd.grad(kl.sum(), new)[0][1] == 0


def test_the_estimators_gradients_are_those_of_their_divergences():
    """Summed over the whole distribution: k2's is that of KL(new || reference), k3's of KL(reference || new)."""
    logits = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    new, reference = torch.log_softmax(logits, 0), torch.log_softmax(torch.tensor([1.0, 0.5, 0.1]).double(), 0)
    divergences = {
        "k2": (new.exp() * (new - reference)).sum(),
        "k3": (reference.exp() * (reference - new)).sum(),
    }
    for estimator, divergence in divergences.items():
        mean = (new.exp().detach() * reference_kl(estimator, new, reference, torch.ones(3).bool())).sum()
        ours, exact = (torch.autograd.grad(v, logits, retain_graph=True)[0] for v in (mean, divergence))
        torch.testing.assert_close(ours, exact)
