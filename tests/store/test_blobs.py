"""A group survives the way to bytes and back, every field of it."""

from dataclasses import replace

import numpy as np
import pytest

from swe_rl.errors import StoreError
from swe_rl.store.blobs import ARRAYS, decode_group, encode_group


def test_every_field_of_a_group_comes_back(script):
    group = script.make_group(7, version=3)
    back = decode_group(encode_group(group), "here")
    for name in ("group_id", "task_id", "split", "index", "policy_version"):
        assert getattr(back, name) == getattr(group, name)
    assert len(back.trajectories) == len(group.trajectories) == 4
    for ours, theirs in zip(group.trajectories, back.trajectories, strict=True):
        for name in ARRAYS:
            assert getattr(ours, name).dtype == getattr(theirs, name).dtype
            assert getattr(ours, name).tobytes() == getattr(theirs, name).tobytes()
        for name in ("trajectory_id", "turns", "temperature", "stop_reason", "verdict"):
            assert getattr(theirs, name) == getattr(ours, name)
    assert np.isnan(back.trajectories[0].infer_logprobs[0])
    assert back.trajectories[3].verdict is None


def test_recorded_experts_come_back_of_those_that_have_them(script):
    group = script.make_group(7)
    first, *rest = group.trajectories
    experts = np.random.default_rng(0).integers(-1, 300, (len(first), 3, 2)).astype(np.int16)
    group = replace(group, trajectories=(replace(first, routed_experts=experts), *rest))
    back = decode_group(encode_group(group), "here")
    assert back.trajectories[0].routed_experts.dtype == np.int16
    np.testing.assert_array_equal(back.trajectories[0].routed_experts, experts)
    assert all(t.routed_experts is None for t in back.trajectories[1:])


def test_the_same_group_gives_the_same_bytes(script):
    assert encode_group(script.make_group(1)) == encode_group(script.make_group(1))
    assert encode_group(script.make_group(1)) != encode_group(script.make_group(2))


def test_a_group_without_trajectories_comes_back(script):
    assert decode_group(encode_group(script.make_group(0, size=0)), "here").trajectories == ()


@pytest.mark.parametrize("cut", [0, 4, 8, 50, -1])
def test_cut_bytes_are_a_store_error_that_names_the_file(script, cut):
    with pytest.raises(StoreError, match=r"rollouts/x\.safetensors"):
        decode_group(encode_group(script.make_group(1))[:cut], "rollouts/x.safetensors")
