"""Real vLLM servers of tiny random policies. Skipped, with the reason, where the interpreter has no vLLM.

pytest -m vllm tests/vllm [--vllm-python /path/to/python]
"""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers

from swe_rl.config import EngineConfig
from swe_rl.inference.vllm import VllmEngine

VOCABULARY = 1024
MAX_CONTEXT = 1536


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vllm-python", default="", help="interpreter that has vLLM; default: the running one")


@pytest.fixture(scope="session")
def vllm_python(request: pytest.FixtureRequest) -> str:
    python = request.config.getoption("--vllm-python", default="") or sys.executable
    found = subprocess.run([python, "-c", "import importlib.util as u; exit(u.find_spec('vllm') is None)"])
    if found.returncode != 0:
        pytest.skip(f"{python} has no vllm: run `make test-vllm`, or pass --vllm-python")
    return python


@pytest.fixture(scope="session")
def make_policy(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """make_policy(seed, is_tied=True) -> a policy directory of the quickstart's architecture with random weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    def make(seed: int, is_tied: bool = True) -> Path:
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            max_position_embeddings=4096,
            tie_word_embeddings=is_tied,
            initializer_range=0.06,
            bos_token_id=None,
            eos_token_id=0,
        )
        directory = tmp_path_factory.mktemp(f"policy{seed}")
        Qwen3ForCausalLM(config).to(torch.float32).save_pretrained(directory)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocabulary = {token: index for index, token in enumerate(alphabet)}
        vocabulary |= {f"<{index}>": index for index in range(len(alphabet), VOCABULARY)}
        Tokenizer(models.BPE(vocab=vocabulary, merges=[])).save(str(directory / "tokenizer.json"))
        return directory

    return make


@pytest.fixture(scope="session")
def policies(make_policy: Callable[..., Path]) -> list[Path]:
    """Two policies whose input embedding and output head are one tensor."""
    return [make_policy(0), make_policy(1)]


@pytest.fixture(scope="session")
def score() -> Callable[[Path, Sequence[int], Sequence[int], float], NDArray[np.float32]]:
    """score(policy, prompt, completion, temperature) -> float32 [completion]: the trainer's log-probabilities."""
    import torch

    from swe_rl.model import load_model, token_logprobs

    def run(policy: Path, prompt: Sequence[int], completion: Sequence[int], temperature: float) -> NDArray[np.float32]:
        token_ids_N = torch.tensor([*prompt, *(int(token) for token in completion)])
        temperature_N = torch.full(token_ids_N.shape, temperature)
        with torch.no_grad():
            model = load_model(policy, torch.float32)
            logprobs_N = token_logprobs(model, token_ids_N, torch.zeros_like(token_ids_N), temperature_N, 512)
        return logprobs_N[len(prompt) :].numpy()

    return run


@pytest.fixture(scope="session")
def engine_config(vllm_python: str) -> EngineConfig:
    return EngineConfig(kind="vllm", dtype="float32", max_batch=16, max_context=MAX_CONTEXT, vllm_python=vllm_python)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server_engine(
    engine_config: EngineConfig, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[VllmEngine]:
    """One engine a module; its server starts at the first load."""
    engine = VllmEngine(engine_config, tmp_path_factory.mktemp("vllm"), seed=7)
    yield engine
    await engine.close()


@pytest.fixture(scope="session")
def prompt() -> Callable[[int, int], list[int]]:
    """prompt(seed, length) -> random token ids."""
    return lambda seed, length: np.random.default_rng(seed).integers(1, VOCABULARY, length).tolist()
