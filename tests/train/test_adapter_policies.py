"""Published policies of a run with adapters: whole and merged for the engines, and the adapters alone for peft."""

import logging
import shutil

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from swe_rl.model import load_model, policy_checksum, token_logprobs
from swe_rl.store.policies import PolicyStore
from swe_rl.train.batch import build_batch
from swe_rl.train.loop import publish_cold_start
from swe_rl.train.trainer import Trainer

LORA = ["train.lora_rank=3", "train.lora_alpha=6", "mask.rule=none", "rollout.max_staleness=99"]


def train(config, groups, num_steps=4):
    trainer = Trainer(config.policy.path, config, config.run.dir / "state")
    batch = build_batch(groups, row_tokens=64)
    for _ in range(num_steps):
        trainer.update(batch)
    return trainer


def export(trainer, out_dir):
    trainer.export()(out_dir)
    return out_dir


def price(model, groups):
    """Log-probabilities of every token that was sampled."""
    found = []
    for t in (t for group in groups for t in group.trajectories):
        ids = torch.from_numpy(t.token_ids).long()
        with torch.no_grad():
            logprobs = token_logprobs(model, ids, torch.zeros_like(ids), torch.full(ids.shape, t.temperature), chunk=64)
        found.append(logprobs.numpy()[t.sampled])
    return np.concatenate(found)


def with_adapter(base_dir, policy_dir):
    """As a user loads it."""
    return PeftModel.from_pretrained(load_model(base_dir, "float32"), str(policy_dir / "adapter")).base_model.model


@pytest.mark.parametrize("kind", ["dense", "mixture"])
def test_the_merged_policy_prices_tokens_as_the_base_with_its_adapter_and_as_the_trainer(
    make_config, make_groups, tmp_path, moe_policy_dir, kind
):
    options = [f"policy.path={moe_policy_dir}"] if kind == "mixture" else []
    config, groups = make_config(*LORA, *options), make_groups(2)
    trainer = train(config, groups)
    out_dir = export(trainer, tmp_path / "v1")
    base, merged = (price(load_model(path, "float32"), groups) for path in (config.policy.path, out_dir))
    adapted = price(with_adapter(config.policy.path, out_dir), groups)
    own = trainer.update(build_batch(groups, row_tokens=64)).tokens.train_logprobs
    assert np.abs(merged - base).max() > 0.1
    assert np.abs(merged - adapted).max() < 1e-5
    assert np.abs(merged - own).max() < 1e-5


def test_of_a_mixture_the_experts_stay_and_the_log_says_so(make_config, make_groups, tmp_path, moe_policy_dir, caplog):
    config = make_config(*LORA, f"policy.path={moe_policy_dir}")
    with caplog.at_level(logging.WARNING):
        trainer = train(config, make_groups(2))
    assert "the experts of the mixture stay as they are: 4 tensors" in caplog.text
    before, after = (
        load_file(path / "model.safetensors") for path in (moe_policy_dir, export(trainer, tmp_path / "v1"))
    )
    assert before.keys() == after.keys()
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert len(moved) == 2 * 4 and all(".self_attn." in name for name in moved)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_merged_in_float32_and_then_rounded_once(make_config, make_groups, tmp_path, dtype):
    config = make_config(*LORA, f"engine.dtype={dtype}")
    out_dir = export(train(config, make_groups(2)), tmp_path / "v1")
    base, merged = (load_file(path / "model.safetensors") for path in (config.policy.path, out_dir))
    adapter = load_file(out_dir / "adapter" / "adapter_model.safetensors")
    assert {t.dtype for t in adapter.values()} == {torch.float32}
    assert base.keys() == merged.keys()
    layers = {name.removeprefix("base_model.model.").partition(".lora_")[0] for name in adapter}
    assert len(layers) == 14
    for name, weight in base.items():
        expected = weight
        if (layer := name.removesuffix(".weight")) in layers:
            a_RI, b_OR = (adapter[f"base_model.model.{layer}.lora_{part}.weight"] for part in "AB")
            assert float(b_OR.abs().max()) > 0
            expected = weight + 2.0 * (b_OR @ a_RI)
        assert torch.equal(merged[name], expected.to(getattr(torch, dtype))), name


@pytest.mark.parametrize("options", [LORA, LORA[2:]], ids=["adapters", "whole"])
def test_what_is_exported_is_that_of_the_call_though_training_goes_on(make_config, make_groups, tmp_path, options):
    config, groups = make_config(*options), make_groups(2)
    trainer = train(config, groups)
    at_once = export(trainer, tmp_path / "at_once")
    write = trainer.export()
    trainer.update(build_batch(groups, row_tokens=64))
    write(tmp_path / "later")
    assert policy_checksum(tmp_path / "later") == policy_checksum(at_once)
    assert policy_checksum(export(trainer, tmp_path / "next")) != policy_checksum(at_once)
    for part in at_once.rglob("*.safetensors"):
        assert (tmp_path / "later" / part.relative_to(at_once)).read_bytes() == part.read_bytes()


def test_every_published_adapter_is_of_its_own_version(make_config, make_groups):
    config, groups = make_config(*LORA), make_groups(2)
    policies = PolicyStore(config.run.dir)
    trainer = Trainer(publish_cold_start(config, policies).path, config, config.run.dir / "state")
    batch = build_batch(groups, row_tokens=64)
    expected = {}
    for version in (1, 2, 3):
        trainer.update(batch)
        policies.publish(trainer.export(), version)
        expected[version] = {
            name: p.detach().clone() for name, p in trainer._weights._model.named_parameters() if p.requires_grad
        }
    for version, adapters in expected.items():
        policies.verify(version)
        model = with_adapter(policies.get(0).path, policies.get(version).path)
        loaded = dict(model.named_parameters())
        assert not [name for name, value in adapters.items() if not torch.equal(loaded[name], value)]
    policies.close()


def test_a_run_that_begins_at_merged_weights_does_not_hand_on_the_adapter_of_the_run_before(
    make_config, make_groups, tmp_path
):
    out_dir = export(train(make_config(*LORA), make_groups(2)), tmp_path / "v1")
    assert (out_dir / "adapter" / "adapter_config.json").is_file()
    config = make_config(*LORA, f"policy.path={out_dir}", f"run.dir={tmp_path}/second")
    policies = PolicyStore(config.run.dir)
    started = publish_cold_start(config, policies).path
    policies.close()
    assert not (started / "adapter").exists()
    assert policy_checksum(started) == policy_checksum(out_dir)
    shutil.rmtree(out_dir)
    assert price(load_model(started, "float32"), make_groups(1)).size
