"""The axes that are apart from the rule: weight, level, threshold by token, advantage, shape of the soft weight."""

import math
from itertools import groupby

import numpy as np
import pytest
import torch

from swe_rl.errors import ConfigError
from swe_rl.train.mask import MASKS, Reason

NUMBER = 100_000


def pairs(seed=11, number=NUMBER):
    """train, infer, trainable, advantage, unit: float64 log-probabilities, a twentieth of them unusable."""
    rng = np.random.default_rng(seed)
    train = -rng.exponential(1.0, number) * 10.0 ** rng.uniform(-4, 1.0, number)
    infer = np.minimum(train + rng.normal(size=number) * 10.0 ** rng.uniform(-4, 0.5, number), 0.0)
    train[rng.random(number) < 0.03] = math.nan
    infer[rng.random(number) < 0.02] = -math.inf
    trainable = rng.random(number) < 0.8
    advantage = rng.normal(size=number) * (rng.random(number) < 0.9)
    unit = np.cumsum(rng.random(number) < 0.2)
    return train, infer, trainable, advantage, unit


def run(rule, train, infer, trainable, **options):
    options = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    return MASKS[rule](torch.from_numpy(train), torch.from_numpy(infer), torch.from_numpy(trainable), **options)


def plain_kl(p, q):
    p, q = np.minimum(p, 1 - 1e-6), np.minimum(q, 1 - 1e-6)
    with np.errstate(all="ignore"):
        return p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))


@pytest.mark.parametrize("phi", [0.001, 0.05])
@pytest.mark.parametrize("rule", ["dppo_tv", "dppo_kl"])
def test_dppo_masks_only_what_has_left_and_would_be_pushed_further(rule, phi):
    train, infer, trainable, advantage, _ = pairs()
    usable = trainable & np.isfinite(train) & np.isfinite(infer)
    p, q = (np.exp(np.where(usable, x, -1.0)) for x in (train, infer))
    distance = np.abs(p - q) if rule == "dppo_tv" else plain_kl(q, p)
    expected = usable & ~((distance > phi) & (np.sign(p - q) == np.sign(advantage)) & (advantage != 0) & (p != q))
    result = run(rule, train, infer, trainable, phi=phi, advantage=advantage)
    decided = np.abs(distance - phi) > 1e-9
    np.testing.assert_array_equal(result.keep.numpy()[decided], expected[decided])
    flipped = run(rule, train, infer, trainable, phi=phi, advantage=-advantage)
    assert not (~result.keep & ~flipped.keep)[torch.from_numpy(usable)].any()


def test_dppo_without_advantages_is_an_error_that_names_them():
    with pytest.raises(ConfigError, match="advantage"):
        run("dppo_tv", np.array([-1.0]), np.array([-1.0]), np.array([True]))


@pytest.mark.parametrize("rule", ["kpop", "kl_forward", "kl_reverse", "icepop", "geometric"])
def test_a_unit_is_judged_by_the_mean_over_its_usable_tokens_and_kept_as_a_whole(rule):
    train, infer, trainable, _, unit = pairs(number=20_000)
    options = {"phi": 0.02, "low": 0.8, "high": 1.25}
    result = run(rule, train, infer, trainable, unit=unit, **options)
    usable = trainable & np.isfinite(train) & np.isfinite(infer)
    expected = np.zeros(len(unit), bool)
    for _, members in groupby(range(len(unit)), key=lambda i: unit[i]):
        inside = [i for i in members if usable[i]]
        if not inside:
            continue
        p, q = np.exp(train[inside]), np.exp(infer[inside])
        forward, reverse = float(plain_kl(p, q).mean()), float(plain_kl(q, p).mean())
        ratio = math.exp(float((train[inside] - infer[inside]).mean()))
        over = {"kl_forward": forward > 0.02, "kl_reverse": reverse > 0.02, "kpop": max(forward, reverse) > 0.02}
        expected[inside] = not over.get(rule, not 0.8 <= ratio <= 1.25)
    assert 0.05 < expected[usable].mean() < 0.95
    np.testing.assert_array_equal(result.keep.numpy(), expected)
    counters = result.counters
    assert counters["trainable"] == counters["kept"] + counters["over_phi"] + counters["nonfinite"]


def test_one_unit_a_token_is_the_token_level():
    train, infer, trainable, advantage, _ = pairs()
    for rule in MASKS:
        alone = run(rule, train, infer, trainable, advantage=advantage, unit=np.arange(NUMBER))
        plain = run(rule, train, infer, trainable, advantage=advantage)
        assert torch.equal(alone.keep, plain.keep)
        torch.testing.assert_close(alone.weight, plain.weight)


def test_a_stale_token_does_not_count_in_its_unit():
    train, infer = np.array([-0.1, -9.0]), np.array([-0.1, -0.1])
    stale = np.array([False, True])
    result = run("geometric", train, infer, np.array([True, True]), unit=np.zeros(2, int), stale=stale)
    assert result.reason.tolist() == [Reason.KEPT, Reason.STALE]


def test_each_token_may_have_its_own_threshold():
    train, infer, trainable, _, _ = pairs()
    phi = 10.0 ** np.random.default_rng(5).uniform(-4, 0, NUMBER)
    mixed = run("kpop", train, infer, trainable, phi=phi).keep.numpy()
    for value in np.quantile(phi, [0.1, 0.5, 0.9]):
        loose = run("kpop", train, infer, trainable, phi=float(value)).keep.numpy()
        assert not (mixed & ~loose)[phi <= value].any()
        assert not (loose & ~mixed)[phi >= value].any()
    with pytest.raises(ConfigError, match="phi"):
        run("kpop", train, infer, trainable, phi=np.where(phi < 0.5, phi, 0.0))


@pytest.mark.parametrize("rule", sorted(MASKS))
def test_the_weight_is_apart_from_the_rule(rule):
    train, infer, trainable, advantage, _ = pairs(number=5000)
    keep = {}
    for kind in ("rule", "none", "raw", "clamped"):
        result = run(rule, train, infer, trainable, advantage=advantage, importance_weight=kind, weight_cap=1.5)
        keep[kind] = result.keep
        if rule == "kpop_soft" or kind == "rule":
            continue
        ratio = np.exp((train - infer)[result.keep.numpy()])
        expected = {"none": np.ones_like(ratio), "raw": ratio, "clamped": np.minimum(ratio, 1.5)}[kind]
        np.testing.assert_allclose(result.weight[result.keep].numpy(), expected, rtol=1e-12)
    assert all(torch.equal(keep["rule"], other) for other in keep.values())


def test_both_soft_shapes_are_one_half_at_phi_one_at_zero_and_fall():
    phi = 0.05
    infer = np.full(400, math.log(0.5))
    train = np.log(np.linspace(0.5, 0.999, 400))
    every = np.ones(400, bool)
    divergence = run("kpop_soft", train, infer, every).divergence.numpy()
    for shape in ("rational", "exponential"):
        weight = run("kpop_soft", train, infer, every, phi=phi, soft_shape=shape).weight.numpy()
        assert weight[0] == 1.0
        assert (np.diff(weight)[weight[1:] > 0] < 0).all()
        assert abs(np.interp(phi, divergence, weight) - 0.5) < 0.01
    assert weight[-1] < 1e-12  # the exponential one leaves nothing far outside
