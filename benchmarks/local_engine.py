"""Speed of the local engine on one thread: milliseconds of a decode step, prefill and whole-episode tokens a second.

Makes a random policy of the quickstart's shape (or takes --policy), and prints one line a figure: ours, plain
transformers `generate` on prompts of the same length, and their ratio. Seconds are those of the CPU, so that a busy
machine doesn't spoil them.
"""

import argparse
import asyncio
import logging
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import Qwen3Config, Qwen3ForCausalLM

from swe_rl.config import EngineConfig
from swe_rl.inference.engine import SamplingParams
from swe_rl.inference.local import LocalEngine
from swe_rl.inference.local_decoder import Chunk, SlotDecoder
from swe_rl.model import load_model, save_policy

logger = logging.getLogger("local_engine")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", type=Path, help="policy directory; default: random weights")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--sessions", type=int, default=128)
    parser.add_argument("--max-context", type=int, default=1024)
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logger.setLevel(logging.INFO)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        policy = args.policy or _random_policy(Path(scratch))
        _time_steps(policy, args.dtype, args.max_context)
        ours = asyncio.run(_time_episodes(policy, args.dtype, args.sessions, args.max_context))
        peer = _time_transformers(policy, args.dtype)
        logger.info("episodes against transformers generate: %.0f / %.0f tokens/s = %.1fx", ours, peer, ours / peer)


def _random_policy(directory: Path) -> Path:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=1024,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
    )
    tokenizer_dir = directory / "tokenizer"
    tokenizer_dir.mkdir()
    Tokenizer(models.BPE()).save(str(tokenizer_dir / "tokenizer.json"))
    save_policy(Qwen3ForCausalLM(config), tokenizer_dir, directory / "policy")
    return directory / "policy"


def _time_steps(policy: Path, dtype: str, max_context: int) -> None:
    decoder = SlotDecoder(load_model(policy, dtype), 128, max_context)
    generator = random.Random(0)
    with torch.inference_mode():
        for rows, context in ((16, 256), (64, 256), (64, 512), (128, 256), (128, 512)):
            positions = [generator.randrange(context // 2, context) for _ in range(rows)]
            best = _best(lambda r=rows, p=positions: decoder.decode([1] * r, p))
            logger.info(
                "%s decode, %d rows, contexts %d to %d: %.2f ms a step, %.0f tokens/s",
                dtype, rows, context // 2, context, best * 1e3, rows / best,
            )  # fmt: skip
        for rows, tokens, start in ((24, 160, 0), (8, 40, 300)):
            chunks = [Chunk(i, start, [generator.randrange(1000) for _ in range(tokens)]) for i in range(rows)]
            best = _best(lambda c=chunks: decoder.prefill(c))
            logger.info(
                "%s prefill, %d rows of %d tokens after %d: %.2f ms, %.0f tokens/s",
                dtype, rows, tokens, start, best * 1e3, rows * tokens / best,
            )  # fmt: skip


def _best(call: Callable[[], object], repeats: int = 20) -> float:
    call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


async def _time_episodes(policy: Path, dtype: str, sessions: int, max_context: int) -> float:
    """Sampled tokens a second of episodes of 5 turns: 160 tokens of prompt, up to 48 sampled and 40 observed a turn."""
    engine = LocalEngine(EngineConfig(dtype=dtype, max_batch=128, max_context=max_context), seed=0)
    await engine.load(policy, 0)
    generator = random.Random(0)

    async def episode(index: int) -> int:
        ids = [generator.randrange(1000) for _ in range(160)]
        sampled = 0
        for _ in range(5):
            sampling = SamplingParams(1.0, generator.randrange(16, 49), ())
            completion = await engine.generate(f"{index}", ids, sampling)
            sampled += len(completion.token_ids)
            ids += [*completion.token_ids.tolist(), *(generator.randrange(1000) for _ in range(40))]
            await asyncio.sleep(generator.random() * 0.05)
        await engine.release(f"{index}")
        return sampled

    start = time.process_time()
    sampled = sum(await asyncio.gather(*(episode(i) for i in range(sessions))))
    seconds = time.process_time() - start
    await engine.close()
    logger.info("%s episodes, %d at once: %.2f s, %.0f sampled tokens/s", dtype, sessions, seconds, sampled / seconds)
    return sampled / seconds


def _time_transformers(policy: Path, dtype: str) -> float:
    """Sampled tokens a second of a static batch of 64 prompts, without turns: the peer's best case."""
    model = load_model(policy, dtype)
    model.set_attn_implementation("sdpa")
    prompts = torch.randint(0, 1000, (64, 160))
    start = time.process_time()
    with torch.inference_mode():
        model.generate(prompts, max_new_tokens=48, min_new_tokens=48, do_sample=True, top_k=0, pad_token_id=0)
    return 64 * 48 / (time.process_time() - start)


if __name__ == "__main__":
    main()
