"""A toy tokenizer: byte-level BPE trained on a few strings, with the special tokens of a tiny policy."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from swe_rl.agent.render import Renderer

SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]
_TEXTS = [
    '{"name": "view", "arguments": {"path": "src/app.py"}}\n',
    '{"name": "edit", "arguments": {"path": "src/app.py", "old": "return a - b", "new": "return a + b"}}\n',
    '{"name": "create", "arguments": {"path": "a.py", "content": "def f(a, b):\\n    return a + b\\n"}}\n',
    '{"name": "run_tests", "arguments": {}}\n{"name": "submit", "arguments": {}}\n',
    "system user assistant The sum is wrong. Files: error: ok submitted def return import <|im_end|> <tool_call>",
] * 5


@pytest.fixture(scope="session")
def policy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds tokenizer.json."""
    directory = tmp_path_factory.mktemp("policy")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="session")
def renderer(policy_dir: Path) -> Renderer:
    return Renderer.from_policy(policy_dir)
