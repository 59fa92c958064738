"""The engine that plays a script."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from swe_rl.errors import EngineError
from swe_rl.inference.engine import SamplingParams
from swe_rl.inference.scripted import LOGPROB, ScriptedEngine, ScriptedReply

SAMPLING = SamplingParams(temperature=1.0, max_tokens=64, stop_token_ids=(256,))


@pytest.fixture
def tokenizer_json(tmp_path: Path) -> Path:
    """Bytes, and <|im_end|> as id 256."""
    vocab = {sign: i for i, sign in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


async def test_a_reply_is_stopped_and_carries_the_loaded_version(tokenizer_json: Path) -> None:
    seen: list[tuple[str, int, str]] = []

    def reply(session_id: str, turn: int, context: str) -> str:
        seen.append((session_id, turn, context))
        return "ab"

    engine = ScriptedEngine(reply, tokenizer_json)
    await engine.load(tokenizer_json.parent, 7)
    context = Tokenizer.from_file(str(tokenizer_json)).encode("hi<|im_end|>").ids
    completion = await engine.generate("s", context, SAMPLING)
    await engine.generate("s", context, SAMPLING)
    await engine.generate("t", context, SAMPLING)
    assert len(completion.token_ids) == 3 and completion.token_ids[-1] == 256
    assert completion.finish_reason == "stop"
    assert np.all(completion.logprobs == np.float32(LOGPROB)) and np.all(completion.policy_version == 7)
    assert seen == [("s", 0, "hi<|im_end|>"), ("s", 1, "hi<|im_end|>"), ("t", 0, "hi<|im_end|>")]


async def test_a_reply_beyond_the_budget_is_cut_and_ends_by_length(tokenizer_json: Path) -> None:
    engine = ScriptedEngine(lambda *_: "abcdef", tokenizer_json)
    await engine.load(tokenizer_json.parent, 0)
    completion = await engine.generate("s", [1], SamplingParams(1.0, 4, (256,)))
    assert (len(completion.token_ids), completion.finish_reason) == (4, "length")


async def test_a_script_may_end_without_a_stop_token(tokenizer_json: Path) -> None:
    engine = ScriptedEngine(lambda *_: ScriptedReply("ab", "length"), tokenizer_json)
    await engine.load(tokenizer_json.parent, 0)
    completion = await engine.generate("s", [1], SAMPLING)
    assert (len(completion.token_ids), completion.finish_reason) == (2, "length")


async def test_release_forgets_a_session(tokenizer_json: Path) -> None:
    turns: list[int] = []
    engine = ScriptedEngine(lambda _, turn, __: str(turns.append(turn)), tokenizer_json)
    await engine.load(tokenizer_json.parent, 0)
    for _ in range(2):
        await engine.generate("s", [1], SAMPLING)
        assert engine.open_sessions == ("s",)
        await engine.release("s")
    assert turns == [0, 0] and engine.open_sessions == ()


async def test_generating_before_a_policy_is_loaded_is_an_engine_error(tokenizer_json: Path) -> None:
    with pytest.raises(EngineError, match="before a policy is loaded"):
        await ScriptedEngine(lambda *_: "a", tokenizer_json).generate("s", [1], SAMPLING)
