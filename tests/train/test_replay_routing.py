"""A step that replays recorded experts: what may not change a number, what must, and what is refused."""

from dataclasses import fields, replace

import numpy as np
import pytest

from swe_rl.errors import ConfigError, PolicyError, TrajectoryError
from swe_rl.train.batch import build_batch
from swe_rl.train.packing import shared_prompt
from swe_rl.train.token_log import TokenColumns, read_token_log, write_token_log
from swe_rl.train.trainer import Trainer

REPLAY = [
    "engine.return_routed_experts=true",
    "train.replay_routing=true",
    "mask.rule=none",
    "rollout.max_staleness=99",
]


@pytest.fixture
def moe_config(make_config, moe_policy_dir):
    return lambda *overrides: make_config(f"policy.path={moe_policy_dir}", *REPLAY, *overrides)


def step(config, groups, **options):
    """(trainer after one update, result)."""
    trainer = Trainer(config.policy.path, config, config.run.dir / "state")
    replays = config.train.replay_routing
    batch = build_batch(groups, row_tokens=config.train.row_tokens, replay_routing=replays, **options)
    return trainer, trainer.update(batch)


def gradients(trainer):
    return {name: value.grad.clone() for name, value in trainer._weights._model.named_parameters()}


def assert_close(ours, theirs, tolerance=2e-5):
    assert any(float(value.abs().max()) > 0 for name, value in ours.items() if name.endswith("mlp.gate.weight"))
    for name, value in ours.items():
        scale = float(theirs[name].abs().max()) + 1e-8
        assert float((value - theirs[name]).abs().max()) <= tolerance * scale, name


@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        (["train.row_tokens=16"], {}),
        (["train.rows_per_microbatch=3", "train.recompute=true"], {}),
        (["train.row_tokens=50", "train.rows_per_microbatch=2"], {"shared_prefix": True, "round_to": 8}),
        (["train.row_tokens=200", "train.recompute=true"], {"shared_prefix": True, "round_to": 32}),
    ],
)
def test_packing_padding_sharing_and_recomputation_keep_every_token_with_its_experts(
    moe_config, make_groups, with_experts, overrides, options
):
    groups = with_experts(make_groups(3, noise=0.3))
    trainer, result = step(moe_config(), groups)
    other, changed = step(moe_config(*overrides), groups, **options)
    np.testing.assert_allclose(changed.tokens.train_logprobs, result.tokens.train_logprobs, atol=2e-5)
    np.testing.assert_allclose(changed.tokens.router_agreement, result.tokens.router_agreement, atol=1e-6)
    assert_close(gradients(other), gradients(trainer))


def test_replayed_experts_change_what_is_learned_and_compared_ones_do_not(moe_config, make_groups, with_experts):
    plain = make_groups(2, noise=0.3)
    recorded = with_experts(plain)
    off = moe_config("train.replay_routing=false")
    without, alone = step(off, plain)
    compared, seen = step(off, recorded)
    _, other = step(moe_config(), recorded)
    for name, gradient in gradients(without).items():
        assert bool((gradients(compared)[name] == gradient).all()), name
    assert np.abs(other.tokens.train_logprobs - alone.tokens.train_logprobs).max() > 0.01
    assert "mismatch/router_agreement" not in alone.metrics
    assert seen.metrics["mismatch/router_agreement"] < 0.5
    assert np.isnan(alone.tokens.router_agreement).all()


def test_a_prompt_is_shared_as_far_as_siblings_passed_through_the_same_experts(make_groups, with_experts):
    (group,) = with_experts(make_groups(1))
    prompt = shared_prompt(group.trajectories)
    assert prompt == shared_prompt(group.trajectories, with_experts=True) > 2
    first, second, *rest = group.trajectories
    experts = second.routed_experts.copy()
    experts[2, 1] = experts[2, 1, ::-1]
    members = [first, replace(second, routed_experts=experts), *rest]
    assert shared_prompt(members, with_experts=True) == 2
    assert shared_prompt(members) == prompt


def test_siblings_whose_prompts_differ_in_experts_train_as_if_nothing_was_shared(moe_config, make_groups, with_experts):
    groups = with_experts(make_groups(2, noise=0.3))
    for group in groups:
        for index, trajectory in enumerate(group.trajectories):
            trajectory.routed_experts[2] = [[index % 6, (index + 1) % 6], [5, 0]]
    trainer, _ = step(moe_config("train.row_tokens=200"), groups)
    other, _ = step(moe_config("train.row_tokens=200"), groups, shared_prefix=True)
    assert_close(gradients(other), gradients(trainer))


def test_agreement_is_told_by_staleness(moe_config, make_groups, with_experts):
    groups = with_experts([*make_groups(1), *make_groups(1, first=1, version=2)])
    config = moe_config("train.lr=0.0")
    trainer = Trainer(config.policy.path, config, config.run.dir / "state")
    trainer.version = 3
    result = trainer.update(build_batch(groups, row_tokens=64))
    for staleness in (1, 3):
        chosen = result.tokens.router_agreement[result.tokens.staleness == staleness]
        name = f"mismatch/router_agreement_staleness_{staleness}"
        assert result.metrics[name] == pytest.approx(float(chosen.mean()))
    assert result.metrics["mismatch/router_agreement"] == pytest.approx(float(result.tokens.router_agreement.mean()))


def test_two_updates_of_a_step_replay_the_same_experts(moe_config, make_groups, with_experts):
    groups = with_experts(make_groups(3, noise=0.3))
    _, once = step(moe_config("train.lr=0.0"), groups)
    _, twice = step(moe_config("train.lr=0.0", "train.minibatches=2", "train.row_tokens=40"), groups)
    np.testing.assert_allclose(twice.tokens.train_logprobs, once.tokens.train_logprobs, atol=2e-5)
    np.testing.assert_allclose(twice.tokens.router_agreement, once.tokens.router_agreement, atol=1e-6)


def test_the_reference_of_the_kl_passes_through_the_same_experts(moe_config, make_groups, with_experts):
    _, result = step(moe_config("loss.kl_coef=0.1"), with_experts(make_groups(2)))
    assert result.metrics["train/reference_kl"] == pytest.approx(0.0, abs=1e-7)


def test_trajectories_without_recorded_experts_are_refused_by_name(moe_config, make_groups, with_experts):
    first, second = with_experts(make_groups(2))
    bare = replace(second.trajectories[0], routed_experts=None)
    groups = [first, replace(second, trajectories=(bare, *second.trajectories[1:]))]
    with pytest.raises(TrajectoryError, match=f"{bare.trajectory_id}.*has no recorded experts"):
        step(moe_config(), groups)
    # where they are only compared, that one's are unknown
    _, result = step(moe_config("train.replay_routing=false"), groups)
    names = result.tokens.trajectory_ids[result.tokens.trajectory]
    assert np.isnan(result.tokens.router_agreement[names == bare.trajectory_id]).all()
    assert np.isfinite(result.tokens.router_agreement[names != bare.trajectory_id]).all()


def test_experts_of_two_models_in_one_batch_are_refused(make_groups, with_experts):
    first, second = with_experts(make_groups(2))
    odd = replace(second.trajectories[0], routed_experts=np.zeros((len(second.trajectories[0]), 3, 2), np.int16))
    with pytest.raises(TrajectoryError, match=r"\(2, 2\), \(3, 2\)"):
        build_batch([first, replace(second, trajectories=(odd, *second.trajectories[1:]))])


def test_a_policy_without_experts_is_refused_at_the_start(make_config):
    config = make_config(*REPLAY)
    with pytest.raises(PolicyError, match="no layer has a router"):
        Trainer(config.policy.path, config, config.run.dir / "state")


def test_replaying_what_is_not_recorded_is_a_wrong_config(make_config):
    with pytest.raises(ConfigError, match=r"defaults: train\.replay_routing is true, expected engine\.return_routed"):
        make_config("train.replay_routing=true")


def test_a_token_log_of_a_release_without_agreement_is_read_as_unknown(tmp_path, moe_config, make_groups, with_experts):
    _, result = step(moe_config(), with_experts(make_groups(2)))
    path = write_token_log(tmp_path, 0, result.tokens)
    np.testing.assert_array_equal(read_token_log(tmp_path, 0).router_agreement, result.tokens.router_agreement)
    old = {f.name: getattr(result.tokens, f.name) for f in fields(TokenColumns) if f.name != "router_agreement"}
    np.savez(path, **old)
    back = read_token_log(tmp_path, 0)
    assert np.isnan(back.router_agreement).all() and len(back.router_agreement) == len(back)
