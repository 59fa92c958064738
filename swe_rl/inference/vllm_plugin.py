"""What swe-rl adds inside a vLLM process: weight transfer from safetensors on disk, and questions to the worker.

A policy directory flows in by its path; answers about it (problems, stale tensors) flow out as plain lists. The file is
copied beside the server's log and imported there by its own name, because vLLM may live in an interpreter that doesn't
know swe-rl: so it imports nothing of swe-rl. It does not decide what happens after a failure; the engine does.

Written against vLLM 0.32. One worker only (tensor parallel size 1).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "swe_rl_file"

_MAX_REPORTED = 5
_MAX_COLUMNS = 64
_FLOATS = frozenset({"F32", "BF16", "F16"})
# Keys of config.json that don't change what the network computes.
_INERT_KEYS = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"})

Header = dict[str, tuple[str, tuple[int, ...]]]


def read_header(directory: Path) -> Header:
    """Maps each tensor of a directory's safetensors files to its dtype and shape. Raises ValueError, OSError."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{directory} holds no *.safetensors file")
    header: Header = {}
    for file in files:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > file.stat().st_size - 8:
                raise ValueError(f"{file} is truncated or not a safetensors file")
            entries = json.loads(stream.read(length))
        entries.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        if file.stat().st_size != 8 + length + end:
            raise ValueError(f"{file} has {file.stat().st_size} bytes, expected {8 + length + end}")
        if repeated := header.keys() & entries.keys():
            raise ValueError(f"{file} repeats tensor {min(repeated)}")
        header.update({name: (entry["dtype"], tuple(entry["shape"])) for name, entry in entries.items()})
    return header


def read_config(directory: Path) -> dict[str, Any]:
    """The keys of config.json that define the network."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return {key: value for key, value in config.items() if key not in _INERT_KEYS}


def compare(directory: Path, header: Header, config: dict[str, Any]) -> list[str]:
    """Why the weights in `directory` can't replace those of a model with this header and configuration."""
    try:
        new_header, new_config = read_header(directory), read_config(directory)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"{type(error).__name__}: {error}"]
    if config.get("tie_word_embeddings"):  # then the head is the embedding, whether it's written out or not
        header, new_header = ({k: v for k, v in one.items() if k != "lm_head.weight"} for one in (header, new_header))
    problems = [f"tensor {name} is missing" for name in sorted(header.keys() - new_header.keys())]
    problems += [f"tensor {name} is unknown" for name in sorted(new_header.keys() - header.keys())]
    for name in sorted(header.keys() & new_header.keys()):
        (_, shape), (dtype, new_shape) = header[name], new_header[name]
        if new_shape != shape:
            problems.append(f"tensor {name} has shape {list(new_shape)}, expected {list(shape)}")
        if dtype not in _FLOATS:
            problems.append(f"tensor {name} has dtype {dtype}, expected one of {sorted(_FLOATS)}")
    for key in sorted(config.keys() | new_config.keys()):
        if config.get(key) != new_config.get(key):
            problems.append(f"config.json: {key} is {new_config.get(key)!r}, expected {config.get(key)!r}")
    return problems


def read_tensors(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, framework="pt") as stream:
            for name in stream.keys():  # noqa: SIM118  (safe_open isn't a mapping)
                yield name, stream.get_tensor(name)


@dataclass
class FileInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    pass


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """`path`: a policy directory that this process can read."""

    path: str


class FileTransferEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):  # type: ignore[misc]
    """Reloads the whole model from a policy directory, layer by layer, in place."""

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module) -> None:
        super().__init__(config, vllm_config, device, model)
        if self.parallel_config.world_size != 1:
            raise ValueError(f"{BACKEND}: world size is {self.parallel_config.world_size}, expected 1")
        # Remembered now: the directory that the server started from may be pruned later.
        served = Path(self.model_config.model)
        self.header, self.served_config = read_header(served), read_config(served)
        self._moe_kernels: list[tuple[Any, Any]] = []

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Nothing to connect to: the disk is the channel."""

    def start_weight_update(self) -> None:
        # vLLM 0.32 on CPU skips the prepacking of experts while a kernel object exists, and then computes with
        # wrong weights without an error; without the object it builds a new one. Can go when vLLM repacks on reload.
        self._moe_kernels = []
        for module in self.model.modules():
            method: Any = getattr(module, "quant_method", None)
            if getattr(method, "moe_kernel", None) is not None:
                self._moe_kernels.append((method, method.moe_kernel))
                method.moe_kernel = None
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The base class also synchronises an accelerator, which a CPU build doesn't have.
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        self.model.load_weights(read_tensors(Path(update_info.path)))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        for method, kernel in self._moe_kernels:
            if method.moe_kernel is None:
                method.moe_kernel = kernel
        self._moe_kernels = []
        self._repack_tied_layers()

    def _repack_tied_layers(self) -> None:
        # vLLM 0.32 repacks the layers that received tensors; an output head tied to the input embedding receives
        # none, so its packed copy would stay old without an error. Can go when vLLM repacks it on reload.
        seen: set[int] = set()
        for module in self.model.modules():
            weight = module._parameters.get("weight")
            method: Any = getattr(module, "quant_method", None)
            if weight is not None and method is not None:
                if id(weight) in seen:
                    method.process_weights_after_loading(module)
                seen.add(id(weight))

    def shutdown(self) -> None:
        """Nothing is held between updates."""


class WorkerExtension:
    """Methods that vLLM mixes into its worker; reached through /collective_rpc."""

    model_runner: Any
    weight_transfer_engine: Any
    vllm_config: Any

    def swe_rl_check(self, path: str) -> dict[str, Any]:
        """Compares a policy directory with the served model; loads nothing."""
        engine = self.weight_transfer_engine
        problems = compare(Path(path), engine.header, engine.served_config)
        if not problems:
            problems = [f"tensor {name} isn't finite" for name, t in read_tensors(Path(path)) if not t.isfinite().all()]
        return {
            "problems": problems[:_MAX_REPORTED],
            "num_problems": len(problems),
            "returns_routed_experts": self.vllm_config.aux_output_config.enable_return_routed_experts,
        }

    def swe_rl_probe(self, path: str) -> dict[str, Any]:
        """Reads the live weights back through the layers that use them and compares them with the files, exactly."""
        with torch.inference_mode(), set_current_vllm_config(self.vllm_config):
            probe = _Probe(self.model_runner.get_model(), dict(read_tensors(Path(path))))
            for name, module in probe.model.named_modules():
                probe.check_module(name, module)
        unchecked = sorted(probe.tensors.keys() - probe.covered)
        return {
            "vocab_size": self.vllm_config.model_config.get_vocab_size(),
            "num_checked": len(probe.covered),
            "unchecked": unchecked[:_MAX_REPORTED],
            "num_unchecked": len(unchecked),
            "stale": probe.stale[:_MAX_REPORTED],
            "num_stale": len(probe.stale),
        }


class _Probe:
    """Which tensors of a policy directory the model really computes with."""

    def __init__(self, model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
        self.model = model
        self.tensors = tensors
        self.packed: dict[str, list[str]] = getattr(model, "packed_modules_mapping", None) or {}
        self.covered: set[str] = set()
        self.stale: list[str] = []

    def check_module(self, name: str, module: torch.nn.Module) -> None:
        for attribute, parameter in module.named_parameters(recurse=False):
            sources = self._sources(name, attribute)
            if not sources:
                continue
            expected = torch.cat([self.tensors[source] for source in sources]).to(parameter.device, parameter.dtype)
            if not self._holds(parameter, expected) or not self._computes(module, attribute, expected):
                self.stale.append(f"{name}.{attribute}")
            self.covered.update(sources)

    def _sources(self, name: str, attribute: str) -> list[str]:
        """Checkpoint tensors that make up one parameter; empty where the names don't tell."""
        parent, dot, leaf = name.rpartition(".")
        sources = [f"{parent}{dot}{part}.{attribute}" for part in self.packed.get(leaf, [leaf])]
        if leaf == "lm_head" and sources[0] not in self.tensors:  # tied to the input embedding
            sources = [source for source in self.tensors if source.endswith("embed_tokens.weight")]
        return sources if all(source in self.tensors for source in sources) else []

    @staticmethod
    def _holds(parameter: torch.Tensor, expected: torch.Tensor) -> bool:
        # Empty: the CPU kernel keeps a packed copy alone, which only _computes can see. Longer: a padded vocabulary.
        if parameter.numel() == 0:
            return True
        return torch.equal(parameter[: len(expected)], expected)

    @staticmethod
    def _computes(module: torch.nn.Module, attribute: str, expected: torch.Tensor) -> bool:
        """W @ e_j is column j of W, exactly and in every precision: 1 * w + 0 + 0 + ..."""
        method = getattr(module, "quant_method", None)
        if method is None or attribute != "weight" or expected.ndim != 2:
            return True
        width = expected.shape[1]
        columns = torch.linspace(0, width - 1, min(width, _MAX_COLUMNS)).long()
        one_hot = torch.zeros(len(columns), width, dtype=expected.dtype, device=expected.device)
        one_hot[torch.arange(len(columns)), columns] = 1.0
        output = method.apply(module, one_hot, None)
        return torch.equal(output[:, : len(expected)], expected[:, columns].T)


def register() -> None:
    """Makes the backend known to vLLM; runs when the worker imports its extension."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, FileTransferEngine)


register()
