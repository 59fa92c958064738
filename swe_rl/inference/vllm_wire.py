"""What goes over the wire to vLLM 0.32 for one generation, and what of its answer is believed.

A request body goes out; a `Completion` comes back, or an EngineError that says what can't be trusted. No connection is
opened here.
"""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from swe_rl.errors import EngineError
from swe_rl.inference.engine import Completion, SamplingParams
from swe_rl.inference.routed_experts import RoutedExperts, join_experts
from swe_rl.trajectory import UNKNOWN_EXPERT

MODEL_NAME = "policy"

# vLLM reports -inf, NaN and a missing entry as this value.
_NOT_FINITE = -9999.0
_EXPERTS_START = "routed_experts_prompt_start"
_FINISH_REASONS = ("stop", "length", "abort")


def generate_body(
    request_id: str, token_ids: Sequence[int], sampling: SamplingParams, version: int, asks_for_experts: bool = False
) -> dict[str, Any]:
    """Body of POST /inference/v1/generate.

    Never a `seed`: with chunked prefill on a CPU it kills the server (its generator has no offset).
    """
    return {
        "request_id": request_id,
        "model": MODEL_NAME,
        "token_ids": [int(token) for token in token_ids],
        "sampling_params": {
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
            "stop_token_ids": list(sampling.stop_token_ids),
            "ignore_eos": True,  # the caller alone says what stops
            "logprobs": 0,
            "detokenize": False,
            **({_EXPERTS_START: sampling.experts_from} if asks_for_experts else {}),
        },
        # Blocks that one policy version computed are never found by a request of another.
        "cache_salt": f"policy-{version}",
        "stream": False,
    }


def empty_completion() -> Completion:
    nothing = np.zeros(0, dtype=np.int32)
    return Completion(nothing, np.zeros(0, dtype=np.float32), nothing, "length")


def join_completions(first: Completion, rest: Completion) -> Completion:
    """One completion of one that was cut and of what followed it."""
    return Completion(
        token_ids=np.concatenate([first.token_ids, rest.token_ids]),
        logprobs=np.concatenate([first.logprobs, rest.logprobs]),
        policy_version=np.concatenate([first.policy_version, rest.policy_version]),
        finish_reason=rest.finish_reason,
        cached_tokens=max(first.cached_tokens, rest.cached_tokens),
        routed_experts=join_experts([first.routed_experts, rest.routed_experts]),
    )


def read_completion(answer: Mapping[str, Any], url: str, body: Mapping[str, Any] | None = None) -> Completion:
    """Raises EngineError for an answer that can't be trusted in whole; `url` is for its message.

    `body` is what was asked: it says whether experts have to be in the answer, and of which tokens.
    """
    try:
        choice = answer["choices"][0]
        token_ids = list(choice["token_ids"] or [])
        entries = choice["logprobs"]["content"] if token_ids else []
        spans = choice["weight_versions"] or []
        finish_reason = choice["finish_reason"]
        details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
        cached_tokens = int(details.get("cached_tokens") or 0)
        pairs = [(int(entry["token_id"]), float(entry["logprob"])) for entry in entries]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise EngineError(f"vllm {url}: can't read the answer ({error!r}): {str(answer)[:200]!r}") from error
    if finish_reason not in _FINISH_REASONS:
        raise EngineError(f"vllm {url}: finish reason is {finish_reason!r}, expected one of {_FINISH_REASONS}")
    if [token for token, _ in pairs] != token_ids:
        raise EngineError(f"vllm {url}: log-probabilities of other tokens than the {len(token_ids)} sampled ones")
    for position, (token, logprob) in enumerate(pairs):
        if not math.isfinite(logprob) or logprob <= _NOT_FINITE:
            raise EngineError(
                f"vllm {url}: log-probability of token {token} at output position {position} isn't finite; "
                f"the weights or the activations overflow"
            )
    return Completion(
        token_ids=np.array(token_ids, dtype=np.int32),
        logprobs=np.array([logprob for _, logprob in pairs], dtype=np.float32),
        policy_version=read_versions(spans, len(token_ids), url),
        finish_reason=finish_reason,
        cached_tokens=cached_tokens,
        routed_experts=None if body is None else read_experts(choice, body, len(token_ids), url),
    )


def read_experts(
    choice: Mapping[str, Any], body: Mapping[str, Any], num_sampled: int, url: str
) -> RoutedExperts | None:
    """None if none were asked for, or nothing was sampled. The wire has no position: the count of tokens must be right.

    What comes is [tokens, layers, experts a token] of the whole context from the start that was asked for, without the
    last sampled token, as a base64 .npy; layers without experts are zeros, unknown ones to us if a token has several.
    """
    start = body["sampling_params"].get(_EXPERTS_START)
    if start is None or num_sampled == 0:
        return None
    text = choice.get("routed_experts")
    if text is None:
        raise EngineError(
            f"vllm {url}: no routed_experts in the answer; engine.return_routed_experts needs a server "
            "that was started with it"
        )
    try:
        experts = np.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False)
    except (ValueError, TypeError, EOFError, OSError) as error:
        raise EngineError(f"vllm {url}: can't read routed_experts: {error!r}") from error
    expected = len(body["token_ids"]) + num_sampled - 1 - start
    if experts.ndim != 3 or len(experts) != expected or experts.dtype.kind not in "ui" or not experts.size:
        raise EngineError(
            f"vllm {url}: routed_experts is {experts.dtype} {experts.shape}, expected {expected} tokens by layers by "
            "experts"
        )
    if experts.min() < 0 or experts.max() > np.iinfo(np.int16).max:
        raise EngineError(f"vllm {url}: routed_experts spans {experts.min()} to {experts.max()}, expected int16 from 0")
    if experts.shape[2] > 1 and not experts.any(axis=(1, 2)).all():
        raise EngineError(f"vllm {url}: routed_experts has a token with expert 0 alone: it wasn't recorded")
    experts = experts.astype(np.int16)
    if experts.shape[2] > 1:
        experts[:, ~experts.any(axis=(0, 2))] = UNKNOWN_EXPERT
    return RoutedExperts(int(start), experts)


def read_versions(spans: Sequence[Mapping[str, Any]], num_tokens: int, url: str) -> NDArray[np.int32]:
    """int32 [num_tokens] from spans {version, start, end} over the output; every token must be in one."""
    versions = np.full(num_tokens, -1, dtype=np.int32)
    try:
        for span in spans:
            versions[span["start"] : span["end"]] = int(span["version"])
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"vllm {url}: can't read the weight versions {spans!r}: {error}") from error
    if num_tokens and versions.min() < 0:
        raise EngineError(f"vllm {url}: weight versions {spans!r} don't cover all {num_tokens} tokens")
    return versions


def error_message(response: httpx.Response) -> str:
    """The server's complaint in one line."""
    try:
        body = response.json()
        error = body.get("error", body.get("detail", body))
        text = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        text = response.text
    return " ".join(str(text).split())[:300] or "no message"
