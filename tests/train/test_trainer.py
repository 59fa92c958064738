"""One step on a real small model: what may not change a number, and what must."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from swe_rl.errors import ConfigError
from swe_rl.train.batch import TokenBatch, build_batch
from swe_rl.train.loss import policy_loss
from swe_rl.train.trainer import Trainer


def step(config, groups, **batch_options):
    """(trainer after one update, result)."""
    trainer = Trainer(config.policy.path, config, config.run.dir / "state")
    options = {"row_tokens": config.train.row_tokens} | batch_options
    return trainer, trainer.update(build_batch(groups, **options))


def weights(trainer):
    return {name: value.detach().clone() for name, value in trainer._weights._model.named_parameters()}


def gradients(trainer):
    return {name: value.grad.clone() for name, value in trainer._weights._model.named_parameters()}


def assert_close(ours, theirs, tolerance=1e-5):
    for name, value in ours.items():
        scale = float(theirs[name].abs().max()) + 1e-8
        assert float((value - theirs[name]).abs().max()) <= tolerance * scale, name


@pytest.mark.parametrize(
    ("overrides", "batch_options"),
    [
        (["train.row_tokens=16"], {}),
        (["train.row_tokens=500"], {}),
        (["train.rows_per_microbatch=3"], {}),
        (["train.logprob_chunk=1"], {}),
        (["train.logprob_chunk=4096"], {}),
        (["train.vocab_chunk=7"], {}),
        ([], {"round_to": 32}),
        (["train.recompute=true"], {}),
        (["train.row_tokens=200"], {"shared_prefix": True}),
        (["train.row_tokens=50", "train.rows_per_microbatch=2"], {"shared_prefix": True, "round_to": 8}),
    ],
)
@pytest.mark.parametrize(
    "base",
    [
        ["mask.rule=kpop"],
        ["mask.rule=icepop", "mask.low=0.9", "mask.high=1.1"],
        ["mask.level=segment", "loss.aggregation=sequence_sum"],
        [
            "mask.level=sequence",
            "mask.rule=geometric",
            "mask.low=0.9",
            "mask.high=1.02",
            "loss.aggregation=constant",
            "loss.denominator=kept",
        ],
        ["loss.aggregation=sequence_mean"],
        ["loss.aggregation=sequence_mean", "loss.denominator=kept"],
        ["loss.aggregation=sequence_mean", "loss.kl_coef=0.3"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-10)])
def test_packing_sharing_microbatches_chunks_and_recomputing_change_neither_gradients_nor_columns(
    make_config, make_groups, base, overrides, batch_options, dtype, tolerance
):
    groups = make_groups(3, noise=0.6)
    base = ["mask.phi=0.002", "train.grad_clip=1e9", f"train.dtype={dtype}", *base]
    one, first = step(make_config(*base), groups)
    two, second = step(make_config(*base, *overrides), groups, **batch_options)
    assert 0.1 < first.metrics["mask/kept_fraction"] < 0.95
    assert_close(gradients(one), gradients(two), tolerance)
    np.testing.assert_array_equal(first.tokens.token_id, second.tokens.token_id)
    np.testing.assert_array_equal(first.tokens.kept, second.tokens.kept)
    np.testing.assert_allclose(first.tokens.train_logprobs, second.tokens.train_logprobs, atol=1e-5)
    assert first.metrics["train/loss"] == pytest.approx(second.metrics["train/loss"], rel=10 * tolerance, abs=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-10)])
@pytest.mark.parametrize("shared_prefix", [False, True])
def test_the_order_of_groups_and_of_siblings_changes_no_gradient(
    make_config, make_groups, dtype, tolerance, shared_prefix
):
    groups = make_groups(4, noise=0.3)
    config = make_config("train.grad_clip=1e9", f"train.dtype={dtype}")
    turned = [replace(group, trajectories=group.trajectories[::-1]) for group in groups[::-1]]
    one, two = (step(config, order, shared_prefix=shared_prefix)[0] for order in (groups, turned))
    assert_close(gradients(one), gradients(two), tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-10)])
def test_a_microbatch_that_is_all_masked_changes_nothing_for_the_others(make_config, make_groups, dtype, tolerance):
    """Its tokens count in the denominator, and that is all of it; the engine's values there may be NaN."""
    config = make_config("train.grad_clip=1e9", f"train.dtype={dtype}")
    groups = make_groups(2)
    clean, poisoned = build_batch(groups, row_tokens=1), build_batch(groups, row_tokens=1)
    num_all, num_lost = clean.num_trainable, int(clean.rows[-1].trainable_N.sum())
    poisoned.rows[-1].infer_logprobs_N.fill_(math.nan)
    poisoned.rows[-1].advantage_N.fill_(math.nan)
    without = TokenBatch(clean.rows[:-1], clean.trajectories, clean.metrics)
    trainers = [Trainer(config.policy.path, config, config.run.dir / "state") for _ in range(2)]
    results = [trainer.update(batch) for trainer, batch in zip(trainers, (without, poisoned), strict=True)]
    share = (num_all - num_lost) / num_all
    assert results[1].metrics["mask/nonfinite"] == pytest.approx(num_lost / num_all)
    expected = {name: grad * share for name, grad in gradients(trainers[0]).items()}
    assert_close(gradients(trainers[1]), expected, tolerance)


def test_the_gradient_is_that_of_the_formula_written_out_per_trajectory(make_config, make_groups):
    """Autograd through an ordinary forward of each trajectory alone, none of the trainer's own code."""
    groups = make_groups(2, noise=0.4)
    config = make_config("mask.rule=icepop", "mask.low=0.7", "mask.high=1.4", "train.grad_clip=1e9")
    trainer, result = step(config, groups)
    plain = Trainer(config.policy.path, config, config.run.dir / "other")._weights._model
    total, count = 0.0, 0
    for group in groups:
        rewards = [t.reward for t in group.trajectories]
        for t in group.trajectories:
            ids = torch.from_numpy(t.token_ids).long()
            logits = plain(ids[None]).logits[0, :-1].double() / t.temperature
            logprobs = torch.log_softmax(logits, -1).gather(1, ids[1:, None]).squeeze(1)
            sampled = torch.from_numpy(t.sampled[1:])
            ratio = torch.exp(logprobs.detach() - torch.from_numpy(t.infer_logprobs[1:]).double())
            weight = torch.where(sampled & (ratio >= 0.7) & (ratio <= 1.4), ratio, 0.0)
            total = total - (weight * logprobs * (t.reward - np.mean(rewards))).sum()
            count += int(sampled.sum())
    (total / count).backward()
    expected = {name: value.grad for name, value in plain.named_parameters()}
    assert_close(gradients(trainer), expected, 1e-4)
    assert len(result.tokens) == count


@pytest.mark.parametrize("rule", ["none", "kpop", "geometric"])
def test_the_ratio_of_the_first_update_is_exactly_one(make_config, make_groups, rule, monkeypatch):
    """Not nearly: new_logprobs and train_logprobs are the same numbers, whatever the engine said."""
    seen = []

    def spy(new_logprobs, train_logprobs, *rest, **options):
        seen.append((new_logprobs.detach().clone(), train_logprobs.clone()))
        return policy_loss(new_logprobs, train_logprobs, *rest, **options)

    monkeypatch.setattr("swe_rl.train.trainer.policy_loss", spy)
    step(make_config(f"mask.rule={rule}", "train.row_tokens=40"), make_groups(3, noise=0.6))
    assert len(seen) > 1
    for new, train in seen:
        scored = ~new.isnan()
        assert scored.any() and torch.equal(torch.exp(new - train)[scored], torch.ones(int(scored.sum())))


@pytest.mark.parametrize("minibatches", [1, 3])
def test_the_ratio_is_exactly_one_until_the_first_optimiser_update(make_config, make_groups, minibatches):
    config = make_config(f"train.minibatches={minibatches}", "mask.rule=none", "train.lr=1e-30")
    _, result = step(config, make_groups(4))
    # at ratio 1 the loss is minus the mean of the advantages, however many updates there are at a vanishing rate
    tokens = result.tokens
    assert result.metrics["train/clip_fraction"] == 0.0
    if minibatches == 1:
        assert result.metrics["train/loss"] == pytest.approx(-float(tokens.advantage.mean()), abs=1e-6)
    np.testing.assert_allclose(tokens.train_logprobs, tokens.infer_logprobs, atol=1e-5)
    assert result.metrics["mismatch/max_ratio"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_while_the_weights_stand_still_no_ratio_of_any_minibatch_differs_from_one_by_a_bit(
    make_config, make_groups, dtype
):
    """The replay has the shapes of the update: other shapes round differently."""
    options = ["train.minibatches=3", "train.rows_per_microbatch=2", "train.row_tokens=40", f"train.dtype={dtype}"]
    clip = ["loss.clip_low=1e-12", "loss.clip_high=1e-12"]  # any other ratio is clipped in one direction
    config = make_config("mask.rule=none", "train.lr=1e-30", *options, *clip)
    _, result = step(config, make_groups(6))
    assert result.metrics["train/clip_fraction"] == 0.0


def test_the_mismatch_is_that_of_all_tokens_whatever_the_mask_keeps(make_config, make_groups):
    groups = make_groups(3, noise=0.6)
    _, everything = step(make_config("mask.rule=none"), groups)
    for options in (["mask.phi=0.002"], ["mask.rule=tis", "mask.high=1.01"], ["mask.phi=1e-9"]):
        _, masked = step(make_config(*options), groups)
        assert masked.metrics["mask/kept_fraction"] < 0.9 or masked.metrics["mask/weight_max"] < 1.02
        for name, value in everything.metrics.items():
            if name.startswith("mismatch/"):
                assert masked.metrics[name] == value, name


def test_a_vanishing_learning_rate_never_lets_the_mismatch_grow(make_config, make_groups):
    config = make_config("train.lr=1e-30", "rollout.max_staleness=99")
    trainer = Trainer(config.policy.path, config, config.run.dir / "state")
    batch = build_batch(make_groups(2))
    gaps = [trainer.update(batch).metrics["mismatch/mean_abs_logprob_diff"] for _ in range(6)]
    assert max(gaps) < 1e-5 and gaps[-1] == gaps[0]


@pytest.mark.parametrize("options", [[], ["train.row_tokens=40", "train.minibatches=2", "train.vocab_chunk=5"]])
def test_the_entropy_is_the_mean_over_trainable_tokens_of_their_whole_distributions(make_config, make_groups, options):
    groups = make_groups(2)
    config = make_config("train.lr=1e-30", *options)
    trainer, result = step(config, groups)
    total, count = 0.0, 0
    for t in (t for group in groups for t in group.trajectories):
        ids = torch.from_numpy(t.token_ids).long()
        log_p = torch.log_softmax(trainer._weights._model(ids[None]).logits[0, :-1].double() / t.temperature, -1)
        total -= float((log_p.exp() * log_p).detach().sum(1)[torch.from_numpy(t.sampled[1:])].sum())
        count += int(t.sampled[1:].sum())
    assert result.metrics["train/entropy"] == pytest.approx(total / count, rel=1e-6)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_kl_is_nothing_at_the_reference_and_pulls_back_to_it_from_elsewhere(make_config, make_groups, estimator):
    overrides = ["rollout.max_staleness=99", "mask.rule=none", f"loss.kl_estimator={estimator}", "train.lr=0.003"]
    groups = make_groups(2)
    batch = build_batch(groups)
    distances = {}
    for coefficient in (1e-9, 3.0):
        config = make_config(*overrides, f"loss.kl_coef={coefficient}")
        trainer = Trainer(config.policy.path, config, config.run.dir / "state")
        distances[coefficient] = [trainer.update(batch).metrics["train/reference_kl"] for _ in range(12)]
        assert distances[coefficient][0] == 0.0
    assert 0 < distances[3.0][-1] < 0.5 * distances[1e-9][-1]
    assert "train/reference_kl" not in step(make_config(), groups)[1].metrics


def test_the_reference_of_the_kl_stays_the_cold_start_when_a_run_goes_on(make_config, make_groups):
    config = make_config("loss.kl_coef=0.1", "rollout.max_staleness=99", "train.steps=2")
    batch = build_batch(make_groups(2))
    first = Trainer(config.policy.path, config, config.run.dir / "state")
    first.update(batch)
    first.save_state()
    resumed = Trainer(config.policy.path, config, config.run.dir / "state")
    resumed.load_state(1)
    ours, theirs = (trainer.update(batch).metrics["train/reference_kl"] for trainer in (first, resumed))
    assert ours == theirs > 0


def test_several_minibatches_update_several_times_and_replay_before_the_first(make_config, make_groups):
    groups = make_groups(4)
    _, one = step(make_config(), groups)
    trainer, many = step(make_config("train.minibatches=4", "train.row_tokens=40"), groups)
    np.testing.assert_allclose(one.tokens.train_logprobs, many.tokens.train_logprobs, atol=1e-5)
    assert trainer._weights._optimizer.state_dict()["state"][0]["step"] == 4


def test_the_kept_denominator_scales_the_gradient_by_trainable_over_kept(make_config, make_groups):
    groups = make_groups(3, noise=0.6)
    base = ("mask.phi=0.002", "train.grad_clip=1e9")
    original, first = step(make_config(*base), groups)
    kept, second = step(make_config(*base, "loss.denominator=kept"), groups)
    factor = 1.0 / first.metrics["mask/kept_fraction"]
    assert factor > 1.05
    assert_close({n: g * factor for n, g in gradients(original).items()}, gradients(kept))
    assert second.metrics["train/loss"] == pytest.approx(first.metrics["train/loss"] * factor, rel=1e-5)


def test_an_all_masked_batch_moves_nothing_and_says_so(make_config, make_groups, with_infer):
    groups = with_infer(make_groups(2), -30.0)
    config = make_config("mask.phi=1e-6", "train.weight_decay=0.1")
    before = weights(Trainer(config.policy.path, config, config.run.dir / "state"))
    trainer, result = step(config, groups)
    assert result.is_skipped and result.metrics["mask/kept_fraction"] == 0.0
    assert result.metrics["mask/over_phi"] == 1.0 and result.metrics["train/loss"] == 0.0
    for name, value in weights(trainer).items():
        assert torch.equal(value, before[name])


def test_a_batch_without_a_trainable_trajectory_is_a_step_that_moves_nothing(make_config, make_groups):
    trainer, result = step(make_config(), make_groups(2, rewards=(1.0, 1.0)))
    assert result.is_skipped and len(result.tokens) == 0 and trainer.version == 1
    assert result.metrics["reward/mean"] == 1.0


def test_a_missing_engine_log_probability_is_excluded_counted_and_never_leaks(make_config, make_groups):
    batch = build_batch(make_groups(2), row_tokens=64)
    row = batch.rows[0]
    position = int(row.trainable_N.nonzero()[3])
    row.infer_logprobs_N[position] = math.nan
    config = make_config("mask.rule=tis")
    trainer = Trainer(config.policy.path, config, config.run.dir / "state")
    result = trainer.update(batch)
    assert result.metrics["mask/nonfinite"] == pytest.approx(1 / len(result.tokens))
    assert all(torch.isfinite(value).all() for value in weights(trainer).values())
    assert math.isfinite(result.metrics["train/loss"]) and math.isfinite(result.metrics["mismatch/k3"])


def test_a_gradient_that_is_not_finite_is_skipped_and_counted_and_training_goes_on(make_config, make_groups):
    config = make_config()
    trainer = Trainer(config.policy.path, config, config.run.dir / "state")
    batch = build_batch(make_groups(2), row_tokens=64)
    batch.rows[0].advantage_N[batch.rows[0].trainable_N] = math.inf
    before = weights(trainer)
    result = trainer.update(batch)
    assert result.is_skipped and result.metrics["train/num_skipped_updates"] == 1
    for name, value in weights(trainer).items():
        assert torch.equal(value, before[name])
    assert not trainer.update(build_batch(make_groups(2, version=1))).is_skipped


@pytest.mark.parametrize(("importance", "bound"), [("raw", 40.0), ("clamped", 2.0)])
def test_one_rare_token_owns_the_gradient_unless_its_weight_is_clamped(make_config, make_groups, importance, bound):
    config = make_config("mask.phi=0.5", f"mask.importance_weight={importance}")
    batch = build_batch(make_groups(2), row_tokens=64)
    row = batch.rows[0]
    rare = int(row.trainable_N.nonzero()[0])
    row.infer_logprobs_N[rare] -= math.log(44.0)
    result = Trainer(config.policy.path, config, config.run.dir / "state").update(batch)
    assert result.metrics["mask/kept_fraction"] == 1.0
    assert result.metrics["mismatch/max_ratio"] == pytest.approx(44.0, rel=1e-3)
    assert result.metrics["mask/weight_max"] == pytest.approx(44.0 if importance == "raw" else bound, rel=1e-3)


def test_tokens_that_are_too_stale_are_counted_apart_and_mismatch_is_split_by_staleness(make_config, make_groups):
    config = make_config("rollout.max_staleness=1")
    trainer = Trainer(config.policy.path, config, config.run.dir / "state")
    trainer.version = 3
    groups = [make_groups(1, first=version, version=version)[0] for version in (1, 2, 3)]
    result = trainer.update(build_batch(groups))
    assert sorted(set(result.tokens.staleness.tolist())) == [0, 1, 2]
    assert result.metrics["mask/stale"] == pytest.approx(float((result.tokens.staleness == 2).mean()))
    assert {f"mismatch/abs_diff_staleness_{k}" for k in (0, 1, 2)} <= result.metrics.keys()


@pytest.mark.parametrize("rule", ["none", "tis", "icepop", "kl_forward", "kl_reverse", "kpop", "kpop_soft"])
def test_mask_shares_are_disjoint_and_sum_to_one_under_every_rule(make_config, make_groups, rule):
    _, result = step(make_config(f"mask.rule={rule}", "mask.phi=0.002"), make_groups(2, noise=0.6))
    names = ("kept_fraction", "over_phi", "nonfinite", "stale")
    assert sum(result.metrics[f"mask/{name}"] for name in names) == pytest.approx(1.0)
    assert all("/" in name for name in result.metrics)
    assert {"mask/kept_fraction_stop", "mask/kept_fraction_tool_name"} <= result.metrics.keys()


def test_training_raises_the_probability_of_rewarded_tokens(make_config, make_groups):
    config = make_config("mask.rule=none", "train.lr=1e-3", "rollout.max_staleness=99")
    trainer = Trainer(config.policy.path, config, config.run.dir / "state")
    batch = build_batch(make_groups(2))
    results = [trainer.update(batch).tokens for _ in range(8)]
    gain = results[-1].train_logprobs - results[0].train_logprobs
    assert gain[results[0].advantage > 0].mean() > gain[results[0].advantage < 0].mean() + 0.1


def test_bfloat16_compute_stays_near_float32_and_keeps_float32_masters(make_config, make_groups):
    groups = make_groups(2)
    _, exact = step(make_config(), groups)
    trainer, rounded = step(make_config("train.dtype=bfloat16"), groups)
    assert {value.dtype for value in weights(trainer).values()} == {torch.float32}
    gap = np.abs(exact.tokens.train_logprobs - rounded.tokens.train_logprobs)
    assert 0 < gap.mean() < 0.05


def test_warm_up_raises_the_learning_rate_step_by_step(make_config, make_groups):
    config = make_config("train.warmup_steps=4", "train.lr=0.01")
    trainer = Trainer(config.policy.path, config, config.run.dir / "state")
    batch = build_batch(make_groups(1))
    rates = [trainer.update(batch).metrics["train/lr"] for _ in range(5)]
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01])


def test_columns_carry_the_facts_of_each_token(make_config, make_groups):
    groups = make_groups(2, rewards=(1.0, 0.0, None))
    _, result = step(make_config(), groups)
    tokens = result.tokens
    assert tokens.trajectory_ids.tolist() == ["g0-t0", "g0-t1", "g1-t0", "g1-t1"]
    for index, name in enumerate(tokens.trajectory_ids):
        t = next(t for g in groups for t in g.trajectories if t.trajectory_id == name)
        rows = tokens.trajectory == index
        np.testing.assert_array_equal(tokens.position[rows], np.flatnonzero(t.sampled))
        np.testing.assert_array_equal(tokens.token_id[rows], t.token_ids[t.sampled])
        np.testing.assert_array_equal(tokens.infer_logprobs[rows], t.infer_logprobs[t.sampled])
        assert set(tokens.reward[rows].tolist()) == {t.reward}
    assert isinstance(build_batch(groups), TokenBatch)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]), ("linear", [0.5, 1.0, 1.0, 0.775, 0.55, 0.325])],
)
def test_the_learning_rate_follows_its_schedule_and_nothing_but_the_version(
    make_config, make_groups, schedule, expected
):
    overrides = ["train.steps=6", "train.warmup_steps=2", "train.lr=0.001", f"train.schedule={schedule}"]
    config = make_config(*overrides)
    trainer = Trainer(config.policy.path, config, config.run.dir / "state")
    batch = build_batch(make_groups(1), row_tokens=config.train.row_tokens)
    rates = [trainer.update(batch).metrics["train/lr"] / 0.001 for _ in range(6)]
    assert rates == pytest.approx(expected)


def test_frozen_parameters_keep_their_values_and_the_others_move(make_config, make_groups):
    config = make_config("train.frozen=['model.embed_tokens', 'model.layers.0.']")
    before = weights(Trainer(config.policy.path, config, config.run.dir / "state"))
    trainer, _ = step(config, make_groups(2))
    moved = {name for name, value in weights(trainer).items() if not torch.equal(value, before[name])}
    assert moved
    assert not {name for name in moved if name.startswith(("model.embed_tokens", "model.layers.0."))}


@pytest.mark.parametrize("frozen", ["['model.nothing']", "['model', 'lm_head']", "['']"])
def test_a_frozen_prefix_without_effect_or_without_a_rest_is_refused(make_config, frozen):
    config = make_config(f"train.frozen={frozen}")
    with pytest.raises(ConfigError, match=r"train\.frozen"):
        Trainer(config.policy.path, config, config.run.dir / "state")
