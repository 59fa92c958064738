"""What the engine makes of answers and of servers that aren't there; no vLLM is needed here."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swe_rl.config import EngineConfig
from swe_rl.errors import EngineError, EngineUnavailableError, PolicyError
from swe_rl.inference.engine import SamplingParams
from swe_rl.inference.vllm import VllmEngine
from swe_rl.inference.vllm_server import VllmServer
from swe_rl.inference.vllm_wire import generate_body, read_completion
from swe_rl.trajectory import UNKNOWN_EXPERT

CONFIG = '{"num_attention_heads": 4, "hidden_size": 192, "num_key_value_heads": 2, "num_hidden_layers": 4}'


def _answer(**changes: Any) -> dict[str, Any]:
    # The shape of vLLM 0.32's /inference/v1/generate, cut to what is read.
    choice = {
        "token_ids": [5, 6, 7],
        "logprobs": {"content": [{"token_id": t, "logprob": -0.5 * t, "rank": 1} for t in (5, 6, 7)]},
        "finish_reason": "stop",
        "weight_versions": [{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 3}],
    }
    usage = {"prompt_tokens": 200, "prompt_tokens_details": {"cached_tokens": 128}}
    return {"choices": [choice | changes], "usage": usage}


def test_answer_becomes_aligned_arrays() -> None:
    completion = read_completion(_answer(), "http://server")
    assert completion.token_ids.tolist() == [5, 6, 7]
    assert completion.logprobs.tolist() == [-2.5, -3.0, -3.5]
    assert completion.policy_version.tolist() == [3, 3, 4]
    assert (completion.finish_reason, completion.cached_tokens) == ("stop", 128)


def test_aborted_answer_without_tokens_is_empty() -> None:
    answer = _answer(token_ids=[], logprobs=None, finish_reason="abort", weight_versions=None)
    completion = read_completion(answer, "http://server")
    assert (len(completion.token_ids), completion.finish_reason) == (0, "abort")


def _content(*logprobs: Any, ids: tuple[int, ...] = (5, 6, 7)) -> dict[str, Any]:
    return {"content": [{"token_id": t, "logprob": p} for t, p in zip(ids, logprobs, strict=True)]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logprobs": _content(-1.0, -9999.0, -1.0)}, "token 6 at output position 1 isn't finite"),
        ({"logprobs": _content(-1.0, -1.0, float("nan"))}, "token 7 at output position 2 isn't finite"),
        ({"logprobs": {"content": [{"token_id": 5, "logprob": -1.0}]}}, "other tokens than the 3"),
        ({"logprobs": _content(-1.0, -1.0, -1.0, ids=(5, 8, 7))}, "other tokens than the 3"),
        ({"logprobs": _content(-1.0, None, -1.0)}, "can't read the answer"),
        ({"logprobs": None}, "can't read the answer"),
        ({"finish_reason": "error"}, "finish reason is 'error'"),
        ({"weight_versions": [{"version": "3", "start": 0, "end": 2}]}, "don't cover all 3"),
        ({"weight_versions": None}, "don't cover all 3"),
        ({"weight_versions": [{"version": "default", "start": 0, "end": 3}]}, "can't read the weight versions"),
    ],
)
def test_answer_that_can_not_be_trusted_is_an_engine_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        read_completion(_answer(**changes), "http://server")


def test_request_carries_ids_and_a_salt_of_its_version_but_never_a_seed() -> None:
    body = generate_body("id", [1, 2], SamplingParams(0.7, 9, (2,)), 12)
    assert body["token_ids"] == [1, 2]
    assert body["cache_salt"] != generate_body("id", [1, 2], SamplingParams(0.7, 9, (2,)), 13)["cache_salt"]
    assert body["sampling_params"]["max_tokens"] == 9
    assert body["sampling_params"]["stop_token_ids"] == [2]
    assert body["sampling_params"]["ignore_eos"] is True
    assert "seed" not in body["sampling_params"]


def _experts(array: Any) -> str:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return base64.b64encode(buffer.getvalue()).decode()


def _body(start: int = 0) -> dict[str, Any]:
    return generate_body("id", [1, 2, 3, 4], SamplingParams(1.0, 9, (), start), 3, asks_for_experts=True)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
@pytest.mark.parametrize("start", [0, 3, 4])
def test_experts_of_context_and_sampled_tokens_but_the_last_are_read(dtype: type, start: int) -> None:
    experts = np.random.default_rng(0).integers(1, 200, (6 - start, 5, 2)).astype(dtype)
    completion = read_completion(_answer(routed_experts=_experts(experts)), "http://server", _body(start))
    assert completion.routed_experts is not None
    assert (completion.routed_experts.start, completion.routed_experts.end) == (start, 6)
    np.testing.assert_array_equal(completion.routed_experts.experts, experts)


def test_layers_without_experts_are_unknown_as_the_wire_has_zeros_for_them() -> None:
    experts = np.random.default_rng(0).integers(1, 200, (6, 5, 2)).astype(np.uint8)
    experts[:, [0, 3]] = 0
    completion = read_completion(_answer(routed_experts=_experts(experts)), "http://server", _body())
    assert completion.routed_experts is not None
    got = completion.routed_experts.experts
    assert (got[:, [0, 3]] == UNKNOWN_EXPERT).all()
    np.testing.assert_array_equal(got[:, [1, 2, 4]], experts[:, [1, 2, 4]])


def test_experts_are_asked_for_only_where_they_are_wanted() -> None:
    assert (
        "routed_experts_prompt_start" not in generate_body("id", [1], SamplingParams(1.0, 9, ()), 3)["sampling_params"]
    )
    assert _body(2)["sampling_params"]["routed_experts_prompt_start"] == 2
    assert read_completion(_answer(), "http://server").routed_experts is None


_GOOD = np.ones((6, 5, 2), np.uint8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no routed_experts in the answer; engine.return_routed_experts needs a server"),
        ("not base64", "can't read routed_experts"),
        (base64.b64encode(b"no array").decode(), "can't read routed_experts"),
        (_experts(_GOOD[1:]), r"is uint8 \(5, 5, 2\), expected 6 tokens"),
        (_experts(np.ones((7, 5, 2), np.uint8)), r"is uint8 \(7, 5, 2\), expected 6 tokens"),
        (_experts(_GOOD[:, 0]), "expected 6 tokens"),
        (_experts(_GOOD.astype(np.float32)), "is float32"),
        (_experts(_GOOD.astype(np.int32) * -1), "spans -1 to -1"),
        (_experts(_GOOD.astype(np.int32) * 40000), "spans 40000"),
        (_experts(_GOOD * np.arange(6, dtype=np.uint8)[:, None, None]), "a token with expert 0 alone"),
    ],
)
def test_experts_that_can_not_be_trusted_are_an_engine_error(text: str | None, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        read_completion(_answer(routed_experts=text), "http://server", _body())


async def test_address_where_nobody_listens_is_unavailable_in_one_line(tmp_path: Path) -> None:
    engine = VllmEngine(EngineConfig(kind="vllm", url="http://127.0.0.1:9"), tmp_path)
    with pytest.raises(EngineUnavailableError, match=r"127\.0\.0\.1:9") as caught:
        await engine.load(tmp_path, 0)
    assert "\n" not in str(caught.value)
    with pytest.raises(EngineError, match="update to version 0 failed"):
        await engine.generate("s", [1], SamplingParams(1.0, 1, ()))
    await engine.close()


async def test_interpreter_without_vllm_is_unavailable_with_its_complaint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named vllm' >&2\nexit 3\n")
    python.chmod(0o755)
    engine = VllmEngine(EngineConfig(kind="vllm", vllm_python=str(python)), tmp_path / "work")
    with pytest.raises(EngineUnavailableError, match=r"No module named vllm.*code 3.*vllm\.log.*engine\.vllm_python"):
        await engine.load(tmp_path, 0)
    await engine.close()


async def test_interpreter_is_found_from_where_the_command_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    server = VllmServer(EngineConfig(kind="vllm", vllm_python="bin/python"), tmp_path, tmp_path / "work")
    with pytest.raises(EngineUnavailableError, match="code 3"):
        await server.start()


async def test_a_server_that_can_not_tell_experts_is_an_error_that_names_the_option_and_what_it_needs(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    python = tmp_path / "python"
    # as vLLM 0.32 on a CPU, if it was asked for what it refuses
    python.write_text(
        "#!/bin/sh\n"
        'case "$* $VLLM_USE_V2_MODEL_RUNNER" in *--enable-return-routed-experts*1) ;; *) exit 3;; esac\n'
        "echo 'pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig'\n"
        "echo '  Value error, Model Runner V2 requires Triton. [type=value_error]'\n"
        "exit 1\n"
    )
    python.chmod(0o755)
    config = EngineConfig(kind="vllm", vllm_python=str(python), return_routed_experts=True)
    with pytest.raises(EngineUnavailableError, match=r"requires Triton.*engine\.return_routed_experts needs a policy"):
        await VllmServer(config, tmp_path, tmp_path / "work").start()


async def test_missing_interpreter_is_unavailable_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    server = VllmServer(EngineConfig(kind="vllm", vllm_python=str(tmp_path / "none")), tmp_path, tmp_path / "work")
    with pytest.raises(EngineUnavailableError, match="didn't start") as caught:
        await server.start()
    assert "\n" not in str(caught.value)


async def test_policy_without_a_config_is_a_policy_error(tmp_path: Path) -> None:
    server = VllmServer(EngineConfig(kind="vllm"), tmp_path, tmp_path / "work")
    with pytest.raises(PolicyError, match=r"config\.json can't be read"):
        await server.start()
