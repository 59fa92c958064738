"""Policy directories: a decoder-only model in Hugging Face layout with its tokenizer beside it.

    config.json  generation_config.json  model.safetensors  tokenizer.json  (+ what else the tokenizer has)

Reads local files only. Versions, manifests and atomic publication belong to the policy store.
"""

import contextlib
import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from swe_rl.errors import PolicyError
from swe_rl.model.attention import PACKED_ATTENTION, register_packed_attention

logger = logging.getLogger(__name__)

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)
_PLAIN_NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "Qwen3MoeRMSNorm")
# Models that rescale or squash their logits outside of the output matrix: their log-probabilities would be wrong here.
_LOGIT_TRANSFORMS = ("final_logit_softcapping", "logits_scaling", "logit_scale")


def torch_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Raises PolicyError for any other name."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in _DTYPES:
        raise PolicyError(f"dtype {dtype!r}, expected one of {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def load_model(policy_dir: Path, dtype: str | torch.dtype, trainable: bool = False) -> PreTrainedModel:
    """Loads a policy in eval mode (no dropout: log-probabilities must repeat), with gradients only if `trainable`.

    Raises PolicyError if a file is missing, broken, or of a model whose log-probabilities can't be computed here.
    """
    policy_dir = Path(policy_dir)
    dtype = torch_dtype(dtype)
    check_policy_dir(policy_dir)
    register_packed_attention()
    try:
        with _quiet_transformers():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                policy_dir,
                dtype=dtype,
                attn_implementation=PACKED_ATTENTION,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # whatever the reader raises, the directory is what has to be repaired
        reason = " ".join(str(error).split())[:300]
        raise PolicyError(f"policy {policy_dir}: can't be loaded ({type(error).__name__}: {reason})") from error
    model: PreTrainedModel = loaded[0]
    info: Mapping[str, Any] = loaded[1]
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if info.get(kind):
            first = min(map(str, info[kind]))
            raise PolicyError(
                f"policy {policy_dir}: the weights have {kind.replace('_', ' ')}, first {first}; "
                f"expected exactly those of {type(model).__name__}; save the policy again"
            )
    _refuse_logit_transforms(model, policy_dir)
    if dtype == torch.float64:
        keep_float64(model)
    model.train(False)
    model.requires_grad_(trainable)
    return model


def keep_float64(model: PreTrainedModel) -> None:
    """Makes the norms of a float64 model compute in it; transformers' do so in float32, whatever comes in.

    For the families whose norm is x / rms(x) * weight; others keep theirs.
    """
    for module in model.modules():
        norm: Any = module
        if type(norm).__name__ in _PLAIN_NORMS:
            norm.forward = partial(_rms_norm, norm)


def _rms_norm(norm: Any, x: torch.Tensor) -> torch.Tensor:
    # the weight is looked up at each call: a sharded model puts another in its place
    return torch.nn.functional.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)


def save_policy(
    model: PreTrainedModel,
    tokenizer_dir: Path,
    out_dir: Path,
    dtype: str | torch.dtype | None = None,
    state: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Writes weights, configuration and a copy of the tokenizer's files; `dtype` is that of the stored weights.

    `state`: weights to write instead of the model's own (those of a sharded model, gathered).

    Raises PolicyError if there is no tokenizer.json to copy.
    """
    tokenizer_dir, out_dir = Path(tokenizer_dir), Path(out_dir)
    if not (tokenizer_dir / "tokenizer.json").is_file():
        raise PolicyError(
            f"tokenizer {tokenizer_dir}: no tokenizer.json to copy; name the directory of the policy's own"
        )
    stored = model.dtype if dtype is None else torch_dtype(dtype)
    out_dir.mkdir(parents=True, exist_ok=True)
    state = model.state_dict() if state is None else state
    # Rounding, or gathering, made a tensor of its own of each name: one that is tied to another isn't written.
    tied: Any = getattr(model, "all_tied_weights_keys", {})
    rounded = {
        name: t.detach().to(stored) if t.is_floating_point() else t for name, t in state.items() if name not in tied
    }
    with _quiet_transformers():
        model.save_pretrained(out_dir, state_dict=rounded)
    config = json.loads((out_dir / "config.json").read_text(encoding="utf-8"))
    config["dtype"] = str(stored).removeprefix("torch.")
    (out_dir / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for name in _TOKENIZER_FILES:
        source = tokenizer_dir / name
        if source.is_file() and source.resolve() != (out_dir / name).resolve():
            shutil.copyfile(source, out_dir / name)


def policy_checksum(policy_dir: Path) -> str:
    """SHA-256 over the names and bytes of weights, configuration and tokenizer: what decides how a policy acts."""
    policy_dir = Path(policy_dir)
    check_policy_dir(policy_dir)
    files = [policy_dir / "config.json", policy_dir / "tokenizer.json", *policy_dir.glob("*.safetensors")]
    digest = hashlib.sha256()
    for file in sorted(files):
        content = hashlib.sha256()
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                content.update(block)
        digest.update(f"{file.name} {content.hexdigest()}\n".encode())
    return digest.hexdigest()


def check_policy_dir(policy_dir: Path) -> None:
    """Raises PolicyError that names what the directory lacks."""
    if not policy_dir.is_dir():
        raise PolicyError(f"policy {policy_dir}: no such directory; name a Hugging Face model directory")
    for name in ("config.json", "tokenizer.json"):
        if not (policy_dir / name).is_file():
            raise PolicyError(f"policy {policy_dir}: has no {name}; a policy is model and tokenizer")
    if not any(policy_dir.glob("*.safetensors")):
        raise PolicyError(f"policy {policy_dir}: has no weights; expected model.safetensors or its shards")


def _refuse_logit_transforms(model: PreTrainedModel, policy_dir: Path) -> None:
    for name in _LOGIT_TRANSFORMS:
        if getattr(model.config, name, None) not in (None, 1, 1.0):
            raise PolicyError(
                f"policy {policy_dir}: {model.config.model_type} sets {name} = {getattr(model.config, name)}; "
                "only models whose logits are the plain output matrix are supported"
            )


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Its progress bars would tear up those of the run."""
    progress: Any = transformers_logging
    was_enabled = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            progress.enable_progress_bar()
