"""A byte-level BPE tokenizer: what each token spells, and text to tokens without ever making a special token of it.

`tokenizer.json` flows in; token ids and bytes flow out. Special tokens (all added ones) are looked up by their text in
`added`: `encode` knows none of them.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

from swe_rl.errors import PolicyError


class Vocabulary:
    """Raises PolicyError if the tokenizer isn't a byte-level one. Not thread-safe."""

    def __init__(self, tokenizer_json: str, where: str = "tokenizer.json") -> None:
        spec = _read_spec(tokenizer_json, where)
        self.where = where
        self.added: dict[str, int] = {token["content"]: int(token["id"]) for token in spec["added_tokens"]}
        longest_first = sorted(self.added, key=len, reverse=True)
        self._marker = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if self.added else None
        self._plain = _without_added(spec, where)
        self._bytes = _token_bytes(spec, self.added, where)

    @classmethod
    def from_policy(cls, policy_dir: Path) -> "Vocabulary":
        """Reads `tokenizer.json` of a Hugging Face directory."""
        path = Path(policy_dir) / "tokenizer.json"
        try:
            return cls(path.read_text(encoding="utf-8"), str(path))
        except OSError as error:
            raise PolicyError(f"{path}: can't be read: {error.strerror}; expected a policy directory") from error

    def encode(self, text: str) -> Encoding:
        """Ids, and for each token the characters of `text` that it stands for."""
        return self._plain.encode(text, add_special_tokens=False)

    def split(self, text: str) -> list[str]:
        """The text cut at special tokens, which are parts of their own."""
        return self._marker.split(text) if self._marker else [text]

    def token_bytes(self, token_id: int) -> bytes:
        """What a token spells; b'' for an id that the vocabulary leaves unused."""
        return self._bytes.get(int(token_id), b"")


def _read_spec(tokenizer_json: str, where: str) -> dict[str, Any]:
    try:
        spec = json.loads(tokenizer_json)
    except json.JSONDecodeError as error:
        raise PolicyError(f"{where}: not JSON: {error}") from error
    kind = spec.get("model", {}).get("type")
    if kind != "BPE" or not isinstance(spec.get("added_tokens"), list):
        raise PolicyError(f"{where}: model type is {kind!r}, expected a byte-level 'BPE' with added_tokens")
    if spec["model"].get("byte_fallback"):
        raise PolicyError(f"{where}: a SentencePiece vocabulary with byte_fallback, expected a byte-level 'BPE'")
    return dict(spec)


def _without_added(spec: Mapping[str, Any], where: str) -> Tokenizer:
    """The same tokenizer without its added tokens, also where the model's vocabulary repeats them."""
    contents = {token["content"] for token in spec["added_tokens"]}
    vocab = {token: i for token, i in spec["model"]["vocab"].items() if token not in contents}
    plain = {**spec, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    try:
        return Tokenizer.from_str(json.dumps({**plain, "model": {**spec["model"], "vocab": vocab}}))
    except Exception as error:  # the library raises bare Exception
        raise PolicyError(f"{where}: the tokenizer can't be built: {error}") from error


def _token_bytes(spec: Mapping[str, Any], added: Mapping[str, int], where: str) -> dict[int, bytes]:
    alphabet = _byte_alphabet()
    table: dict[int, bytes] = {}
    for token, token_id in spec["model"]["vocab"].items():
        if token in added:
            continue
        try:
            table[token_id] = bytes(alphabet[sign] for sign in token)
        except KeyError as error:
            raise PolicyError(f"{where}: token {token!r} isn't in the byte-level alphabet") from error
    return table | {token_id: token.encode("utf-8") for token, token_id in added.items()}


def _byte_alphabet() -> dict[str, int]:
    """Sign -> byte of byte-level BPE: printable Latin-1 stands for itself, the other bytes for U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}
