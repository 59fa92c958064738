"""Adapters: they start as nothing, learn as plain low-rank matrices do, and the weights below them never move."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from swe_rl.errors import ConfigError, StoreError
from swe_rl.model import load_model
from swe_rl.train.batch import build_batch
from swe_rl.train.checkpoint import load_state
from swe_rl.train.trainer import Trainer

LORA = ["train.lora_rank=3", "train.lora_alpha=6"]
ON_POLICY = ["mask.rule=none", "rollout.max_staleness=99"]


def make_trainer(config, is_moved=False):
    """`is_moved`: B as after some steps; at 0 A has no gradient."""
    trainer = Trainer(config.policy.path, config, config.run.dir / "state")
    if is_moved:
        move(trainer)
    return trainer


def move(trainer):
    generator = torch.Generator().manual_seed(7)
    for name, parameter in trainer._weights._model.named_parameters():
        if ".lora_B." in name:
            parameter.data.copy_(0.1 * torch.randn(parameter.shape, generator=generator))


def parameters(trainer, *, trained):
    named = trainer._weights._model.named_parameters()
    return {name: p.detach().clone() for name, p in named if p.requires_grad is trained}


def gradients(trainer):
    named = trainer._weights._model.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


class PlainLora(nn.Module):
    """W x + b + 2 B A x, written out."""

    def __init__(self, linear, a_RI, b_OR):
        super().__init__()
        self.linear, self.a_RI, self.b_OR = linear, nn.Parameter(a_RI.clone()), nn.Parameter(b_OR.clone())

    def forward(self, x):
        return F.linear(x, self.linear.weight, self.linear.bias) + 2.0 * (x @ self.a_RI.T) @ self.b_OR.T


def plain_model(config, adapters):
    """The cold start with `PlainLora` in the place of each layer that has an adapter."""
    model = load_model(config.policy.path, "float64")
    for name in {name.partition(".lora_")[0] for name in adapters}:
        a_RI, b_OR = (adapters[f"{name}.lora_{part}.default.weight"] for part in "AB")
        model.set_submodule(name, PlainLora(model.get_submodule(name), a_RI, b_OR))
    return model


def test_the_gradients_are_those_of_plain_low_rank_matrices(make_config, make_groups):
    groups = make_groups(2, noise=0.4)
    config = make_config(*LORA, *ON_POLICY, "train.dtype=float64", "train.grad_clip=1e9", "train.lr=1e-30")
    trainer = make_trainer(config, is_moved=True)
    plain = plain_model(config, parameters(trainer, trained=True))
    trainer.update(build_batch(groups, row_tokens=64))
    total, count = 0.0, 0
    for group in groups:
        mean = np.mean([t.reward for t in group.trajectories])
        for t in group.trajectories:
            ids = torch.from_numpy(t.token_ids).long()
            logits = plain(ids[None]).logits[0, :-1] / float(np.float32(t.temperature))  # as a row holds it
            logprobs = torch.log_softmax(logits, -1).gather(1, ids[1:, None]).squeeze(1)
            total = total - (logprobs[torch.from_numpy(t.sampled[1:])] * (t.reward - mean)).sum()
            count += int(t.sampled[1:].sum())
    (total / count).backward()
    found = gradients(trainer)
    assert len(found) == 2 * 7 * 2  # A and B of seven linear layers in each of two blocks
    for name, gradient in found.items():
        layer, part = name.split(".lora_")
        expected = getattr(plain.get_submodule(layer), {"A": "a_RI", "B": "b_OR"}[part[0]]).grad
        assert float(expected.abs().max()) > 0
        torch.testing.assert_close(gradient, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("overrides", "batch_options"),
    [
        (["train.row_tokens=16"], {}),
        (["train.rows_per_microbatch=3", "train.logprob_chunk=1", "train.vocab_chunk=7"], {}),
        (["train.recompute=true"], {}),
        (["train.row_tokens=200", "train.recompute=true"], {"shared_prefix": True}),
        (["loss.kl_coef=0.3", "train.row_tokens=50"], {"shared_prefix": True, "round_to": 8}),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-10)])
def test_packing_sharing_and_recomputing_change_no_gradient_of_adapters(
    make_config, make_groups, overrides, batch_options, dtype, tolerance
):
    groups = make_groups(3, noise=0.6)
    kl = [option for option in overrides if "kl_coef" in option]
    base = [*LORA, *kl, "mask.phi=0.002", "train.grad_clip=1e9", f"train.dtype={dtype}"]
    found = []
    for config, options in ((make_config(*base), {}), (make_config(*base, *overrides), batch_options)):
        trainer = make_trainer(config, is_moved=True)
        trainer.update(build_batch(groups, **({"row_tokens": config.train.row_tokens} | options)))
        found.append(gradients(trainer))
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        assert ".lora_" in name
        assert float((gradient - found[1][name]).abs().max()) <= tolerance * float(gradient.abs().max()), name


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_at_the_start_every_log_probability_is_exactly_that_of_the_model_below(make_config, make_groups, dtype):
    groups = make_groups(2)
    ours, theirs = (
        make_trainer(make_config(f"train.dtype={dtype}", *options)).update(build_batch(groups, row_tokens=64))
        for options in (LORA, [])
    )
    np.testing.assert_array_equal(ours.tokens.train_logprobs, theirs.tokens.train_logprobs)
    assert ours.metrics["train/entropy"] == theirs.metrics["train/entropy"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_few_steps_learn_a_fixed_batch_by_adapters_alone(make_config, make_groups, dtype):
    trainer = make_trainer(make_config(*LORA, *ON_POLICY, f"train.dtype={dtype}", "train.weight_decay=0.1"))
    below, before = (parameters(trainer, trained=trained) for trained in (False, True))
    batch = build_batch(make_groups(2), row_tokens=64)
    steps = [trainer.update(batch).tokens for _ in range(8)]
    losses = [-float((tokens.advantage * tokens.train_logprobs).mean()) for tokens in steps]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.1
    assert all(torch.equal(value, below[name]) for name, value in parameters(trainer, trained=False).items())
    moved = parameters(trainer, trained=True)
    assert {value.dtype for value in moved.values()} == {torch.float32}
    assert not [name for name, value in moved.items() if torch.equal(value, before[name])]


def test_a_batch_that_is_all_masked_moves_no_adapter(make_config, make_groups, with_infer):
    trainer = make_trainer(make_config(*LORA, "mask.phi=1e-6", "train.weight_decay=0.1"), is_moved=True)
    before = parameters(trainer, trained=True)
    result = trainer.update(build_batch(with_infer(make_groups(2), -30.0), row_tokens=64))
    assert result.is_skipped and result.metrics["train/loss"] == 0.0
    assert all(torch.equal(value, before[name]) for name, value in parameters(trainer, trained=True).items())


def test_a_gradient_that_is_not_finite_leaves_adapters_as_they_are(make_config, make_groups):
    trainer = make_trainer(make_config(*LORA))
    batch = build_batch(make_groups(2), row_tokens=64)
    batch.rows[0].advantage_N[batch.rows[0].trainable_N] = math.inf
    before = parameters(trainer, trained=True)
    assert trainer.update(batch).is_skipped
    assert all(torch.equal(value, before[name]) for name, value in parameters(trainer, trained=True).items())


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_the_kl_is_to_the_model_below_and_no_second_one_is_loaded(make_config, make_groups, monkeypatch, dtype):
    loaded = []

    def load(*arguments):
        loaded.append(arguments)
        return load_model(*arguments)

    monkeypatch.setattr("swe_rl.train.weights.load_model", load)
    base = ["loss.kl_coef=0.3", f"train.dtype={dtype}", *ON_POLICY]
    trainer = make_trainer(make_config(*LORA, *base))
    assert len(loaded) == 1
    whole = make_trainer(make_config(*base))
    assert len(loaded) == 3
    batch = build_batch(make_groups(2), row_tokens=64)
    assert trainer.update(batch).metrics["train/reference_kl"] == 0.0
    move(trainer)
    row = batch.rows[0]
    before = trainer._weights.scores(row).logprobs.detach()
    reference = trainer._reference.logprobs(row)
    assert torch.equal(reference.nan_to_num(), whole._reference.logprobs(row).nan_to_num())
    assert float((reference - before).abs().nan_to_num().max()) > 1e-3
    assert torch.equal(before.nan_to_num(), trainer._weights.scores(row).logprobs.detach().nan_to_num())
    assert trainer.update(batch).metrics["train/reference_kl"] > 0.0


@pytest.mark.parametrize(
    ("options", "layers"),
    [
        (["train.lora_targets=['q_proj','down_proj']"], {"0.self_attn.q_proj", "1.self_attn.q_proj"}),
        (["train.lora_targets=['q_proj']", "train.frozen=['model.layers.0.']"], {"1.self_attn.q_proj"}),
        (["train.lora_targets=['v_proj']", "train.frozen=['model.layers.1.self_attn.v']"], {"0.self_attn.v_proj"}),
    ],
)
def test_adapters_lie_beside_the_targets_that_are_not_frozen_and_nowhere_else(make_config, options, layers):
    trained = parameters(make_trainer(make_config(*LORA, *options)), trained=True)
    found = {name.partition(".lora_")[0].removeprefix("model.layers.") for name in trained}
    if "down_proj" in options[0]:
        layers = layers | {"0.mlp.down_proj", "1.mlp.down_proj"}
    assert found == layers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["train.lora_targets=['lm_head']"], r"'lm_head' is no linear layer below the output head; .*down_proj, gate"),
        (["train.lora_targets=['embed_tokens']"], "'embed_tokens' is no linear layer"),
        (["train.lora_targets=['q_proj','qproj']"], "'qproj' is no linear layer"),
        (["train.frozen=['model.layers.']"], r"has 14, train\.lora_targets leaves 14 of them and train\.frozen none"),
        (["train.lora_targets=['q_proj']", "train.frozen=['model.layers.']"], r"leaves 2 of them"),
        (["train.frozen=['model.nothing']"], r"train\.frozen: no parameter's name begins with 'model\.nothing'"),
    ],
)
def test_targets_that_are_not_there_and_frozen_ones_that_leave_none_are_refused(make_config, options, message):
    with pytest.raises(ConfigError, match=message):
        make_trainer(make_config(*LORA, *options))


def test_a_run_that_goes_on_is_bit_equal_and_its_state_holds_adapters_and_their_optimiser_alone(
    make_config, make_groups
):
    config = make_config(*LORA, "rollout.max_staleness=99", "train.minibatches=2", "loss.kl_coef=0.1")
    batches = [build_batch(make_groups(2, first=2 * i, noise=0.1), row_tokens=40) for i in range(4)]
    straight = make_trainer(config)
    for index, batch in enumerate(batches):
        straight.update(batch)
        if index == 1:
            straight.save_state()
    state = load_state(config.run.dir / "state", 2)
    names = set(parameters(straight, trained=True))
    assert set(state["model"]) == set(state["optimizer"]["state"]) == names
    assert all(".lora_" in name for name in names)
    resumed = make_trainer(config)
    resumed.load_state(2)
    for batch in batches[2:]:
        resumed.update(batch)
    ours, theirs = (dict(t._weights._model.named_parameters()) for t in (straight, resumed))
    assert not [name for name, value in ours.items() if not torch.equal(value, theirs[name])]


@pytest.mark.parametrize(
    ("saved", "resumed", "message"),
    [
        (LORA, [*LORA, "train.lora_alpha=7"], r"\(3, 6\), not \(3, 7\)"),
        (LORA, [*LORA, "train.lora_rank=2"], r"\(3, 6\), not \(2, 6\)"),
        (LORA, [], r"\(3, 6\), not None"),
        ([], LORA, r"None, not \(3, 6\)"),
        (
            LORA,
            [*LORA, "train.lora_targets=['q_proj']"],
            r"only one of the two trains model\.layers\.0\.mlp\.down_proj",
        ),
        ([], ["train.frozen=['model.norm']"], r"only one of the two trains model\.norm\.weight"),
    ],
)
def test_a_state_of_other_adapters_is_refused(make_config, saved, resumed, message):
    make_trainer(make_config(*saved)).save_state()
    with pytest.raises(StoreError, match=rf"is of another model than .*{message}.*; give the run .*train\.lora_\*"):
        make_trainer(make_config(*resumed)).load_state(0)
