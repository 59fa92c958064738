"""Policy directories: what is written comes back, and what is broken is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, PreTrainedModel

from swe_rl.errors import PolicyError
from swe_rl.model import load_model, policy_checksum, save_policy

MakeModel = Callable[..., PreTrainedModel]


@pytest.fixture
def policy(make_model: MakeModel, tokenizer_dir: Path, tmp_path: Path) -> Path:
    save_policy(make_model(), tokenizer_dir, tmp_path / "policy")
    return tmp_path / "policy"


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_weights_come_back_exactly(
    make_model: MakeModel, tokenizer_dir: Path, tmp_path: Path, family: str, is_tied: bool
) -> None:
    model = make_model(family, is_tied=is_tied)
    save_policy(model, tokenizer_dir, tmp_path / "p")
    back = load_model(tmp_path / "p", "float32")
    assert type(back) is type(model)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, back.state_dict()[name]), name
    assert (tmp_path / "p" / "tokenizer.json").read_bytes() == (tokenizer_dir / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_a_float64_model_computes_in_float64_throughout_and_a_float32_one_near_it(
    make_model: MakeModel, tokenizer_dir: Path, tmp_path: Path, family: str
) -> None:
    save_policy(make_model(family), tokenizer_dir, tmp_path / "p")
    ids = torch.arange(20)[None] % 97
    exact, near = (load_model(tmp_path / "p", dtype) for dtype in ("float64", "float32"))
    found: list[torch.dtype] = []

    class Narrow(torch.utils._python_dispatch.TorchDispatchMode):
        """Remembers what every float64 tensor was converted to."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            if func is torch.ops.aten._to_copy.default and args[0].dtype == torch.float64:
                found.append(out.dtype)
            return out

    with torch.no_grad(), Narrow():
        logits = exact(ids).logits
    assert logits.dtype == torch.float64 and not found
    with torch.no_grad():
        torch.testing.assert_close(near(ids).logits.double(), logits, atol=1e-4, rtol=1e-4)


def test_trainable_decides_gradients_and_dropout_is_always_off(policy: Path) -> None:
    for trainable in (True, False):
        model = load_model(policy, torch.float32, trainable)
        assert all(p.requires_grad is trainable for p in model.parameters())
        assert not model.training


def test_weights_are_stored_in_the_dtype_asked_for(make_model: MakeModel, tokenizer_dir: Path, tmp_path: Path) -> None:
    model = make_model()
    save_policy(model, tokenizer_dir, tmp_path / "p", dtype="bfloat16")
    assert model.dtype == torch.float32
    assert {t.dtype for t in load_file(tmp_path / "p" / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "p" / "config.json").read_text())["dtype"] == "bfloat16"
    back = load_model(tmp_path / "p", "float32")
    assert torch.equal(back.lm_head.weight, model.lm_head.weight.bfloat16().float())


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_tensors_written_are_those_that_transformers_writes(
    make_model: MakeModel, tokenizer_dir: Path, tmp_path: Path, family: str, is_tied: bool, dtype: str
) -> None:
    """Engines look for the names of the policy that they started with, which somebody else wrote."""
    model = make_model(family, is_tied=is_tied)
    model.save_pretrained(tmp_path / "theirs")
    theirs = load_file(tmp_path / "theirs" / "model.safetensors").keys()
    gathered = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for number, state in enumerate((None, gathered)):
        save_policy(model, tokenizer_dir, tmp_path / f"ours{number}", dtype=dtype, state=state)
        assert load_file(tmp_path / f"ours{number}" / "model.safetensors").keys() == theirs


def test_a_saved_policy_names_no_attention_of_ours(policy: Path, tmp_path: Path) -> None:
    save_policy(load_model(policy, "float32"), policy, tmp_path / "again")
    assert "packed_documents" not in (tmp_path / "again" / "config.json").read_text()
    assert AutoConfig.from_pretrained(tmp_path / "again").model_type == "qwen3"
    assert policy_checksum(tmp_path / "again") == policy_checksum(policy)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(policy: Path, name: str) -> None:
    (policy / name).unlink()
    wanted = "no weights" if name.endswith("safetensors") else name
    with pytest.raises(PolicyError, match=wanted) as caught:
        load_model(policy, "float32")
    assert "\n" not in str(caught.value)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no such directory"):
        load_model(tmp_path / "nowhere", "float32")


def test_weights_that_lack_a_tensor_are_refused_not_filled_in(policy: Path) -> None:
    weights = load_file(policy / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, policy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PolicyError, match="down_proj"):
        load_model(policy, "float32")


def test_truncated_weights_are_refused_in_one_line(policy: Path) -> None:
    content = (policy / "model.safetensors").read_bytes()
    (policy / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(PolicyError, match="can't be loaded") as caught:
        load_model(policy, "float32")
    assert "\n" not in str(caught.value)


def test_logits_that_are_squashed_elsewhere_are_refused(policy: Path) -> None:
    config = json.loads((policy / "config.json").read_text())
    (policy / "config.json").write_text(json.dumps(config | {"final_logit_softcapping": 30.0}))
    with pytest.raises(PolicyError, match="final_logit_softcapping"):
        load_model(policy, "float32")


def test_an_unknown_dtype_is_refused(policy: Path) -> None:
    with pytest.raises(PolicyError, match="expected one of float64"):
        load_model(policy, "int4")


def test_saving_without_a_tokenizer_is_refused(make_model: MakeModel, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"no tokenizer\.json"):
        save_policy(make_model(), tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_the_checksum_sees_a_changed_byte(policy: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(policy, copy)
    assert policy_checksum(copy) == policy_checksum(policy)
    content = bytearray((copy / name).read_bytes())
    content[-2] ^= 1
    (copy / name).write_bytes(bytes(content))
    assert policy_checksum(copy) != policy_checksum(policy)
