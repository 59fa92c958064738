"""Does torch.compile pay for the tiny policy's layers on this CPU? Needs a C++ compiler.

    python benchmarks/compile.py [--tokens 2048] [--json]

CPU time a token of a forward and a backward pass, the median over rows of changing lengths, in float32 and in bfloat16;
and that of the first rows, in which compilation lies. Attention stays as it is: what it computes depends on how a row
is packed, and it would be compiled anew for each. Compiled layers take PyTorch's own products, as oneDNN's
(`swe_rl/model/linear.py`) can't be traced with changing lengths; `mkl` is without either.
"""

import argparse
import json
import statistics
import time
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from swe_rl.model import linear, token_scores, use_packed_attention
from swe_rl.model.attention import PACKED_ATTENTION, packed_attention_forward
from swe_rl.train.tiny import init_policy

KINDS = ("eager", "mkl", "compiled")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = [
        {"layers": kind, "dtype": name, **measure(kind, dtype, args.tokens, args.rows)}
        for name, dtype in (("float32", None), ("bfloat16", torch.bfloat16))
        for kind in KINDS
    ]
    print(json.dumps(runs, indent=1) if args.json else table(runs))


def measure(kind: str, dtype: torch.dtype | None, tokens: int, num_rows: int) -> dict[str, float]:
    torch._dynamo.reset()
    model = init_policy(0)
    use_packed_attention(model)
    has_onednn, attention = linear._has_onednn, ALL_ATTENTION_FUNCTIONS[PACKED_ATTENTION]
    if kind != "eager":
        linear._has_onednn = lambda: False
    if kind == "compiled":
        ALL_ATTENTION_FUNCTIONS.register(PACKED_ATTENTION, torch.compiler.disable(packed_attention_forward))
        for layer in model.base_model.layers:
            layer.compile(dynamic=True)
    generator = torch.Generator().manual_seed(0)
    try:
        first = [run_row(model, tokens - 100 * i, dtype, generator) for i in range(3)]
        times = [run_row(model, tokens - 50 * (i % 5), dtype, generator) for i in range(num_rows)]
    finally:
        linear._has_onednn = has_onednn
        ALL_ATTENTION_FUNCTIONS.register(PACKED_ATTENTION, attention)
    per_token = [seconds / (tokens - 50 * (i % 5)) * 1e6 for i, seconds in enumerate(times)]
    return {"us_per_token": statistics.median(per_token), "first_s": sum(first)}


def run_row(model: Any, tokens: int, dtype: torch.dtype | None, generator: torch.Generator) -> float:
    """CPU seconds of a row of four documents, 40 of 100 tokens of which are scored."""
    ids = torch.randint(0, model.config.vocab_size, (tokens,), generator=generator)
    document = torch.zeros_like(ids)
    document[torch.randperm(tokens - 1, generator=generator)[:3] + 1] = 1
    needed = torch.rand(tokens, generator=generator) < 0.4
    started = time.process_time()
    model.zero_grad()
    scores = token_scores(model, ids, document.cumsum(0), torch.ones(tokens), 1024, needed, dtype)
    scores.logprobs.nansum().backward()
    return time.process_time() - started


def table(runs: list[dict[str, Any]]) -> str:
    lines = ["| layers | dtype | CPU us a token | CPU s of the first rows |", "|---|---|---|---|"]
    lines += [f"| {r['layers']} | {r['dtype']} | {r['us_per_token']:.0f} | {r['first_s']:.1f} |" for r in runs]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
