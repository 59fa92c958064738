"""Every masking rule against golden values, an independent reference in extended precision, and the traps of each."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch

from swe_rl.config import MaskConfig
from swe_rl.errors import ConfigError
from swe_rl.train.mask import MASKS, Reason, binary_kl

LN = math.log

# p, q, D(p || q), D(q || p): computed by hand from the definition.
GOLDEN = [
    (0.8, 0.5, 0.192744757, 0.223143551),
    (0.99, 0.5, 0.637145646, 1.614463080),
    (0.01, 0.02, 0.003119376, 0.003913620),
    (0.001, 0.005, 0.002398592, 0.004055208),
    (0.9, 0.8, 0.036690014, 0.044403008),
    (0.999, 0.99, 0.006738201, 0.014066514),
    (0.2, 0.8, 0.831776617, 0.831776617),
    (1e-4, 1e-2, 0.009488819, 0.036200874),
    (0.5, 0.3, 0.087176694, 0.082282879),
    (0.5, 0.5, 0.0, 0.0),
]

# phi, q = p_infer, lowest and highest p_train that KPop keeps (to the printed digits).
KEPT_RANGES = [
    (2.0, 0.5, 0.0046, 0.9954),
    (2.0, 0.9, 0.076, 1.0),
    (2.0, 0.99, 0.419, 1.0),
    (0.5, 0.5, 0.102, 0.898),
    (0.5, 0.9, 0.505, 0.9997),
    (0.1, 0.01, 1.7e-7, 0.0805),
    (0.1, 0.1, 0.0166, 0.257),
    (0.1, 0.5, 0.287, 0.713),
    (0.1, 0.9, 0.743, 0.983),
    (0.1, 0.99, 0.919, 1.0),
    (0.05, 0.5, 0.346, 0.654),
    (0.05, 0.9, 0.793, 0.969),
    (0.02, 0.1, 0.0506, 0.165),
    (0.02, 0.9, 0.835, 0.949),
    (0.01, 0.01, 0.00159, 0.027),
    (0.01, 0.99, 0.973, 0.9984),
    (1e-3, 0.01, 0.00618, 0.01476),
    (1e-3, 0.5, 0.478, 0.522),
    (1e-3, 0.99, 0.985, 0.9938),
]


def logs(*p):
    return torch.tensor([LN(x) if x > 0 else -math.inf for x in p], dtype=torch.float64)


def apply(rule, train, infer, trainable=None, **options):
    trainable = torch.ones(train.shape, dtype=torch.bool) if trainable is None else trainable
    return MASKS[rule](train, infer, trainable, **{"advantage": torch.ones(train.shape)} | options)


def reference_kl(logp, logq, eps_p):
    """The definition, in 80-bit floats, with 1 - p by plain subtraction."""
    ceiling = np.log1p(-np.longdouble(eps_p))
    logp, logq = (np.minimum(x.astype(np.longdouble), ceiling) for x in (logp, logq))
    p, q = np.exp(logp), np.exp(logq)
    return p * (logp - logq) + (1 - p) * (np.log1p(-p) - np.log1p(-q))


@pytest.mark.parametrize(("p", "q", "forward", "reverse"), GOLDEN)
def test_binary_kl_meets_the_golden_values(p, q, forward, reverse):
    assert float(binary_kl(logs(p), logs(q))) == pytest.approx(forward, abs=1e-9)
    assert float(binary_kl(logs(q), logs(p))) == pytest.approx(reverse, abs=1e-9)


@pytest.mark.parametrize(("phi", "q", "low", "high"), KEPT_RANGES)
def test_kpop_keeps_the_golden_range(phi, q, low, high):
    grid = torch.cat([torch.logspace(-9, 0, 200_001, dtype=torch.float64), torch.linspace(0.001, 1, 200_001)])
    kept = grid[apply("kpop", grid.double().log(), torch.full_like(grid, q).log(), phi=phi, eps_p=1e-12).keep]
    assert float(kept.min()) == pytest.approx(low, rel=0.02)
    assert float(kept.max()) == pytest.approx(high, rel=0.01)


@pytest.mark.parametrize(
    ("train", "infer"), [("-1e-4", "-2e-4"), ("-30", "-20"), ("-40", "-1"), ("-0.5", "-0.7"), ("-1e-3", "-12")]
)
def test_binary_kl_agrees_with_fifty_digit_arithmetic(train, infer):
    with localcontext() as context:
        context.prec = 50
        p, q = Decimal(train).exp(), Decimal(infer).exp()
        exact = float(p * (p / q).ln() + (1 - p) * ((1 - p) / (1 - q)).ln())
    got = binary_kl(torch.tensor([float(train)]).double(), torch.tensor([float(infer)]).double())
    assert float(got) == pytest.approx(exact, rel=1e-6, abs=1e-16)


@pytest.mark.parametrize(
    ("infer", "eps_p", "worse"),
    [(-1e-3, 1e-4, 0.0014), (-1e-3, 1e-6, 0.0059), (-1e-2, 1e-8, 0.1275), (-1e-2, 1e-12, 0.2192), (-0.1, 1e-6, 1.0)],
)
def test_a_log_probability_of_zero_stands_for_one_minus_eps_p(infer, eps_p, worse):
    result = apply("kpop", torch.zeros(1), torch.tensor([infer]), eps_p=eps_p)
    assert float(result.divergence) == pytest.approx(worse, rel=0.03)


def random_pairs(number=1_000_000):
    rng = np.random.default_rng(7)
    train = -rng.exponential(1.0, number) * 10.0 ** rng.uniform(-8, 1.5, number)
    near = train + rng.normal(size=number) * 10.0 ** rng.uniform(-6, 0.5, number)
    infer = np.where(rng.random(number) < 0.7, np.minimum(near, 0.0), -rng.exponential(3.0, number))
    special = np.array([0.0, -math.inf, LN(1e-30), math.log1p(-1e-12), -1e-300, math.nan, math.inf, 0.5, -745.0, -1e5])
    for values in (train, infer):
        where = rng.random(number) < 0.05
        values[where] = rng.choice(special, where.sum())
    return train, infer


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("phi", [0.001, 0.1])
def test_kl_decisions_equal_an_extended_precision_reference_on_a_million_pairs(dtype, phi):
    train, infer = (torch.from_numpy(x).to(dtype) for x in random_pairs())
    lp, lq = train.double().numpy(), infer.double().numpy()
    valid = np.isfinite(lp) & np.isfinite(lq) & (lp <= 1e-6) & (lq <= 1e-6)
    clean = [np.where(valid, x, -1.0) for x in (lp, lq)]
    forward, reverse = reference_kl(*clean, 1e-6), reference_kl(*clean[::-1], 1e-6)
    for rule, statistic in (
        ("kl_forward", forward),
        ("kl_reverse", reverse),
        ("kpop", np.maximum(forward, reverse)),
    ):
        result = apply(rule, train, infer, phi=phi)
        decided = np.abs(statistic - phi) > 1e-12  # closer than that, the reference itself is a coin
        assert decided.mean() > 0.999
        expected = valid & (statistic <= phi)
        np.testing.assert_array_equal(result.keep.numpy()[decided], expected[decided])
        assert result.counters["nonfinite"] == (~valid).sum()


@pytest.mark.parametrize("rule", sorted(MASKS))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_equal_log_probabilities_are_always_kept_even_at_p_exactly_one(rule, dtype):
    values = torch.tensor([0.0, -1e-30, -1e-9, -1e-4, -0.7, -1.0, -30.0, -88.0, -1e4, -1e30], dtype=dtype)
    result = apply(rule, values, values.clone(), phi=1e-12, low=1.0, high=1.0)
    assert result.keep.all()
    assert (result.divergence == 0).all()
    assert (result.weight == 1).all()


@pytest.mark.parametrize("rule", sorted(MASKS))
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.01])
def test_a_value_that_is_no_log_probability_is_never_kept_and_counted_apart(rule, bad):
    good = torch.tensor([-1.0, -1.0, -1.0])
    train, infer = torch.tensor([bad, -1.0, bad]), torch.tensor([-1.0, bad, bad])
    assert apply(rule, train, good).counters["nonfinite"] == 2
    result = apply(rule, train, infer)
    assert not result.keep.any()
    assert (result.weight == 0).all()
    assert result.counters == {"trainable": 3, "kept": 0, "over_phi": 0, "nonfinite": 3, "stale": 0}


def test_rounding_above_zero_is_still_a_log_probability():
    assert apply("kpop", torch.tensor([5e-7]), torch.tensor([0.0])).keep.all()


@pytest.mark.parametrize("rule", sorted(MASKS))
def test_counters_always_sum_to_the_trainable_tokens(rule):
    train, infer = (torch.from_numpy(x[:20_000].copy()) for x in random_pairs(20_000))
    rng = np.random.default_rng(3)
    trainable, stale = (torch.from_numpy(rng.random(20_000) < share) for share in (0.6, 0.2))
    result = apply(rule, train, infer, trainable, stale=stale)
    counters = dict(result.counters)
    assert counters.pop("trainable") == int(trainable.sum()) == sum(counters.values())
    assert counters["stale"] > 0 and counters["nonfinite"] > 0 and counters["kept"] > 0
    assert (counters["over_phi"] == 0) == (rule in ("none", "tis", "kpop_soft"))
    assert int(result.keep.sum()) == counters["kept"]
    assert not (result.keep & (~trainable | stale)).any()
    assert (result.weight[~result.keep] == 0).all()
    assert torch.isfinite(result.weight).all()


def test_a_stale_token_is_counted_as_stale_and_a_nonfinite_one_first_of_all():
    stale = torch.tensor([True, True, False])
    train, infer = torch.tensor([-1.0, math.nan, -0.01]), torch.tensor([-9.0, -1.0, -6.0])
    reason = apply("kpop", train, infer, stale=stale).reason.tolist()
    assert reason == [Reason.STALE, Reason.NONFINITE, Reason.OVER_PHI]


def test_the_boundary_itself_is_kept():
    train, infer = logs(0.8), logs(0.5)
    phi = float(torch.maximum(binary_kl(train, infer), binary_kl(infer, train)))
    assert apply("kpop", train, infer, phi=phi).keep.all()
    assert not apply("kpop", train, infer, phi=math.nextafter(phi, 0)).keep.any()
    assert apply("icepop", torch.zeros(1).double(), -torch.tensor([5.0]).double().log(), high=5.0).keep.all()


def test_one_direction_alone_lets_through_what_the_other_stops():
    train, infer = logs(0.99, 0.5), logs(0.5, 0.99)  # D = 0.637 one way, 1.614 the other
    assert apply("kl_forward", train, infer, phi=1.0).keep.tolist() == [True, False]
    assert apply("kl_reverse", train, infer, phi=1.0).keep.tolist() == [False, True]
    assert apply("kpop", train, infer, phi=1.0).keep.tolist() == [False, False]


def test_icepop_bounds_are_of_train_over_infer_and_not_inverted():
    ratios = torch.tensor([0.15, 0.25, 0.45, 0.55, 1.0, 1.9, 2.5, 4.9, 5.1], dtype=torch.float64)
    infer = torch.full_like(ratios, LN(0.1))
    result = apply("icepop", infer + ratios.log(), infer, low=0.5, high=5.0)
    assert result.keep.tolist() == [False] * 3 + [True] * 5 + [False]
    torch.testing.assert_close(result.weight[result.keep], ratios[3:8])


def test_tis_caps_the_ratio_and_drops_nothing():
    result = apply("tis", logs(0.9, 0.1, 0.001), logs(0.1, 0.1, 0.1), high=5.0)
    torch.testing.assert_close(result.weight, torch.tensor([5.0, 1.0, 0.01], dtype=torch.float64))
    assert result.counters["kept"] == 3


def test_kpop_keeps_a_rare_token_of_ratio_forty_four_and_only_clamped_caps_its_weight():
    infer = logs(0.0005)
    train = infer + LN(44.0)
    raw = apply("kpop", train, infer, phi=0.1, importance_weight="raw")
    assert raw.keep.all() and float(raw.weight) == pytest.approx(44.0)
    clamped = apply("kpop", train, infer, phi=0.1, importance_weight="clamped", weight_cap=2.0)
    assert clamped.keep.all() and float(clamped.weight) == 2.0
    assert float(apply("kpop", train, infer, phi=0.1).weight) == 1.0
    assert not apply("icepop", train, infer).keep.any()


def test_a_kept_raw_weight_is_finite_even_where_the_ratio_overflows():
    result = apply("kpop", torch.tensor([-30.0]), torch.tensor([-1e6]), importance_weight="raw")
    assert result.keep.all() and torch.isfinite(result.weight).all()


def test_the_soft_weight_is_one_half_at_phi_and_falls_with_the_divergence():
    train, infer = logs(0.8, 0.5, 0.99), logs(0.5, 0.5, 0.5)
    phi = float(binary_kl(infer, train)[0])
    weight = apply("kpop_soft", train, infer, phi=phi).weight
    assert float(weight[0]) == pytest.approx(0.5)
    assert float(weight[1]) == 1.0
    assert 0 < float(weight[2]) < 0.05


def test_the_soft_mask_tends_to_the_hard_one_as_it_sharpens():
    train, infer = (torch.from_numpy(x[:50_000].copy()) for x in random_pairs(50_000))
    hard = apply("kpop", train, infer, phi=0.1)
    away = (hard.divergence / 0.1).log().abs() > 0.05
    errors = [
        float((apply("kpop_soft", train, infer, phi=0.1, sharpness=k).weight - hard.weight).abs()[away].max())
        for k in (2, 20, 2000)
    ]
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-6


def test_weights_carry_no_gradient():
    train = torch.tensor([-1.0, -2.0], requires_grad=True)
    for rule in MASKS:
        result = apply(rule, train, torch.tensor([-1.1, -1.9]), importance_weight="raw")
        assert not result.weight.requires_grad and not result.divergence.requires_grad


def test_an_unknown_option_or_a_wrong_value_is_an_error_that_names_it():
    one = torch.tensor([-1.0])
    for options in ({"threshold": 1.0}, {"phi": 0.0}, {"eps_p": 0.7}, {"low": 6.0}, {"importance_weight": "half"}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            apply("kpop", one, one, **options)


def test_every_rule_of_the_configuration_exists_and_no_other():
    assert set(MaskConfig.model_fields["rule"].annotation.__args__) == set(MASKS)


def test_an_empty_batch_has_counters_of_zero():
    empty = torch.zeros(0)
    assert set(apply("kpop", empty, empty).counters.values()) == {0}
