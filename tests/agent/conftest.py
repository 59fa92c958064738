"""The renderer of the toy tokenizer, and one tiny policy for each dialect: byte-level vocabularies with the family's
special tokens, and short chat templates that are written here and say what the family's own say of a conversation
(tools and special cases left out)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from swe_rl.agent.dialects.base import Dialect
from swe_rl.agent.dialects.plain import Plain
from swe_rl.agent.recognition import DIALECTS
from swe_rl.agent.render import Renderer
from swe_rl.agent.template import ChatTemplate
from swe_rl.agent.vocabulary import Vocabulary

TEMPLATES = Path(__file__).parent / "templates"
_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
_DEEPSEEK = (
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
    *("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
)
_GLM = (
    *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
_LLAMA = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
)
_HARMONY = (
    *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"),
    "<|endoftext|>",
)
SPECIAL_TOKENS = {
    **dict.fromkeys(("hermes", "hermes-thinking", "qwen2.5-coder"), (*_CHATML, "<tool_response>", "</tool_response>")),
    **dict.fromkeys(("qwen3-coder", "qwen3-coder-first", "qwen3.5", "qwen3.8"), _CHATML),
    **dict.fromkeys(("deepseek-v3.1", "deepseek-r1"), _DEEPSEEK),
    **dict.fromkeys(("glm-4.5", "glm-4.7", "glm-5.1", "glm-5.2"), _GLM),
    "llama3": _LLAMA,
    "gpt-oss": _HARMONY,
    "plain": ("<|endoftext|>",),
}
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEXTS = [
    '{"name": "edit", "arguments": {"path": "src/app.py", "old": "return a - b", "new": "return a + b"}}\n',
    "\n<parameter=path>\nsrc/app.py\n</parameter>\n</function>\n```json\n functions.edit commentary analysis json",
    "system user assistant error: no file é 日本語 def return import ### Result\n\n",
] * 5


@dataclass(frozen=True)
class Policy:
    """`whole` is the tokenizer as models use it: special tokens are found in any text."""

    dialect: Dialect
    renderer: Renderer
    whole: Tokenizer
    tokenizer_json: str
    template: str
    added: dict[str, int]
    special_tokens: dict[str, str] = field(default_factory=dict)

    def chat_template(self) -> ChatTemplate:
        return ChatTemplate(self.template, self.special_tokens)

    def encode(self, text: str) -> list[int]:
        return self.whole.encode(text, add_special_tokens=False).ids

    def spell(self, token_ids: list[int]) -> bytes:
        return b"".join(self.renderer.token_bytes(token) for token in token_ids)

    def write(self, folder: Path, has_template: bool = True) -> Path:
        """As a Hugging Face directory."""
        (folder / "tokenizer.json").write_text(self.tokenizer_json, encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(self.special_tokens), encoding="utf-8")
        if has_template:
            (folder / "chat_template.jinja").write_text(self.template, encoding="utf-8")
        return folder


def make_policy(name: str, has_merges: bool = True) -> Policy:
    tokenizer_json = _make_tokenizer(SPECIAL_TOKENS[name], has_merges)
    dialect = Plain(("<|endoftext|>",), ("<|endoftext|>",)) if name == "plain" else DIALECTS[name]
    whole = Tokenizer.from_str(tokenizer_json)
    begin = {"llama3": "<|begin_of_text|>", "deepseek-v3.1": _DEEPSEEK[0], "deepseek-r1": _DEEPSEEK[0]}.get(name)
    special_tokens = {"eos_token": dialect.stops[0], **({"bos_token": begin} if begin else {})}
    path = TEMPLATES / f"{name}.jinja"
    return Policy(
        dialect,
        Renderer(Vocabulary(tokenizer_json), dialect),
        whole,
        tokenizer_json,
        path.read_text(encoding="utf-8"),
        {token: whole.token_to_id(token) for token in SPECIAL_TOKENS[name]},
        special_tokens,
    )


def _make_tokenizer(special_tokens: tuple[str, ...], has_merges: bool) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WORD), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + len(special_tokens) + (150 if has_merges else 0),
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    return tokenizer.to_str()


@pytest.fixture(scope="session")
def renderer(policy_dir: Path) -> Renderer:
    return Renderer.from_policy(policy_dir)


@pytest.fixture(scope="session")
def policies() -> Mapping[str, Policy]:
    return {name: make_policy(name) for name in SPECIAL_TOKENS}


@pytest.fixture(scope="session")
def byte_policies() -> Mapping[str, Policy]:
    """Every token is one byte, or a special one: spans of tokens are exact there."""
    return {name: make_policy(name, has_merges=False) for name in SPECIAL_TOKENS}
