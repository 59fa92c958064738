"""One optimiser update over long multi-turn trajectories by one of three trainers; `trainer.py` runs a process of each.

    ours     swe_rl's Trainer: packed rows, tiles of the logits, sampled tokens only
    padded   plain PyTorch: a padded batch, full logits, log_softmax, gather
    trl      TRL's GRPOTrainer, its own loss path, on the same padded batch

All see the same model, tokens, mask of sampled tokens and advantages, and take the mean over sampled tokens; so loss
and gradient norm, which are printed beside seconds and peak memory (VmHWM), have to agree. One JSON object to stdout.
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F
from trainer import NUMBERS
from transformers import Qwen3Config, Qwen3ForCausalLM

LEARNING_RATE = 1e-5
PAD = 0


class Episode(NamedTuple):
    """`advantage` is the reward less its group's mean; the first `prompt` tokens are the group's own."""

    group: int
    token_ids: np.ndarray
    sampled: np.ndarray
    prompt: int
    reward: float
    advantage: float


def make_episodes(args: argparse.Namespace) -> list[Episode]:
    """Groups of `args.group_size`, lengths uniform within a factor of three, about `args.tokens` tokens in all."""
    rng = np.random.default_rng(0)
    num_groups = max(1, args.tokens // (args.group_size * (args.prompt + args.tail)))
    episodes = []
    for group in range(num_groups):
        prompt = rng.integers(1, args.vocab, args.prompt)
        for member in range(args.group_size):
            num = int(rng.integers(args.tail // 2, 3 * args.tail // 2 + 1))
            token_ids = np.concatenate([prompt, rng.integers(1, args.vocab, num)])
            # turns of 100 tokens of which the first 40 are the policy's, the others observed
            sampled = (np.arange(len(token_ids)) - args.prompt) % 100 < 40
            sampled[: args.prompt] = False
            reward = float(member % 2)
            episodes.append(Episode(group, token_ids, sampled, args.prompt, reward, reward - 0.5))
    return episodes


def make_model(args: argparse.Namespace) -> Any:
    torch.manual_seed(0)
    make: Any = Qwen3ForCausalLM
    return make(
        Qwen3Config(
            vocab_size=args.vocab,
            hidden_size=args.hidden,
            intermediate_size=2 * args.hidden,
            num_hidden_layers=args.layers,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=64,
            max_position_embeddings=65536,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=1,
            pad_token_id=PAD,
        )
    )


def update_ours(args: argparse.Namespace, episodes: Sequence[Episode]) -> dict[str, float]:
    from trainer_ours import update

    with tempfile.TemporaryDirectory() as scratch:
        return update(args, make_model(args), episodes, Path(scratch))


class Padded(NamedTuple):
    """[B, P] prompts padded on the left, [B, C] completions on the right."""

    prompt_ids: torch.Tensor
    prompt_mask: torch.Tensor
    completion_ids: torch.Tensor
    completion_mask: torch.Tensor
    sampled: torch.Tensor
    advantages: torch.Tensor


def padded_batches(episodes: Sequence[Episode], rows: int) -> Iterator[Padded]:
    for start in range(0, len(episodes), rows):
        part = episodes[start : start + rows]
        width = max(len(e.token_ids) - e.prompt for e in part)
        prompt = max(e.prompt for e in part)

        def right(values: Sequence[np.ndarray], width: int = width) -> torch.Tensor:
            return torch.from_numpy(np.stack([np.pad(v, (0, width - len(v))) for v in values]).astype(np.int64))

        heads = [np.pad(e.token_ids[: e.prompt], (prompt - e.prompt, 0)) for e in part]
        masks = [np.pad(np.ones(e.prompt), (prompt - e.prompt, 0)) for e in part]
        yield Padded(
            torch.from_numpy(np.stack(heads).astype(np.int64)),
            torch.from_numpy(np.stack(masks).astype(np.int64)),
            right([e.token_ids[e.prompt :] for e in part]),
            right([np.ones(len(e.token_ids) - e.prompt) for e in part]),
            right([e.sampled[e.prompt :] for e in part]),
            torch.tensor([e.advantage for e in part]),
        )


def update_padded(args: argparse.Namespace, episodes: Sequence[Episode]) -> dict[str, float]:
    model = make_model(args)

    def loss_of(batch: Padded, denominator: int) -> torch.Tensor:
        ids = torch.cat([batch.prompt_ids, batch.completion_ids], 1)
        mask = torch.cat([batch.prompt_mask, batch.completion_mask], 1)
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
        log_p = F.log_softmax(logits, -1).gather(2, ids[:, 1:, None]).squeeze(2)
        log_p = log_p[:, -batch.completion_ids.shape[1] :]
        ratio = torch.exp(log_p - log_p.detach())
        gain = torch.minimum(ratio, ratio.clamp(0.8, 1.2)) * batch.advantages[:, None]
        return -(gain * batch.sampled).sum() / denominator

    return run_update(model, args, episodes, loss_of)


def update_trl(args: argparse.Namespace, episodes: Sequence[Episode]) -> dict[str, float]:
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": PAD, "<eos>": 1}, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    with tempfile.TemporaryDirectory() as scratch:
        config = GRPOConfig(
            output_dir=scratch, use_cpu=True, bf16=False, report_to=[], beta=0.0, loss_type="dapo", temperature=1.0,
            gradient_checkpointing=False, per_device_train_batch_size=2, num_generations=2, steps_per_generation=1,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=make_model(args),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": ["<eos>"] * 2}),
            processing_class=tokenizer,
        )
        trainer.current_gradient_accumulation_steps = 1
        trainer.model.train()

        def loss_of(batch: Padded, denominator: int) -> torch.Tensor:
            inputs = batch._asdict() | {"tool_mask": batch.sampled, "num_items_in_batch": torch.tensor(denominator)}
            return trainer.compute_loss(trainer.model, inputs)

        return run_update(trainer.model, args, episodes, loss_of)


def run_update(
    model: Any, args: argparse.Namespace, episodes: Sequence[Episode], loss_of: Callable[[Padded, int], torch.Tensor]
) -> dict[str, float]:
    """Gradients of all padded batches, clipping and AdamW, as `Trainer.update` does; two episodes warm up."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    figures = {}
    for part in (episodes[:2], episodes):
        started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        total, denominator = 0.0, sum(int(e.sampled.sum()) for e in part)
        for batch in padded_batches(part, args.padded_rows):
            loss = loss_of(batch, denominator)
            loss.backward()
            total += float(loss.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf))
        optimizer.step()
        figures = {"seconds": time.perf_counter() - started, "loss": total, "grad_norm": norm}
    return figures


def peak_mb() -> float:
    """The most memory that this process had at once."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


UPDATES = {"ours": update_ours, "padded": update_padded, "trl": update_trl}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trainer", choices=UPDATES)
    parser.add_argument("--shared-prefix", choices=["true", "false"], default="true")
    for name in NUMBERS:
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    episodes = make_episodes(args)
    figures = UPDATES[args.trainer](args, episodes)
    num_tokens = sum(len(e.token_ids) for e in episodes)
    print(json.dumps(figures | {"num_tokens": num_tokens, "peak_mb": peak_mb()}))


if __name__ == "__main__":
    main()
