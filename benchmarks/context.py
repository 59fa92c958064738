"""What ranks that work on one row together save each: memory and CPU time of one forward and backward pass.

    python benchmarks/context.py [--tokens 8192] [--json]

One row that is one document, all of whose tokens are scored, on 1, 2 and 4 processes with a thread each; a small model
without sharded weights. `peak_mb` is the largest growth of a rank's memory over what it had with its weights, `cpu_s`
the time on the CPU of the busiest rank: on a machine with as many free cores that is how long the pass takes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from trainer_update import make_model, peak_mb

from swe_rl.model import recompute_activations, token_scores
from swe_rl.train.ranks import Ranks, join_ranks, leave_ranks

MODEL = argparse.Namespace(vocab=1024, hidden=256, layers=6)
WARM_UP_TOKENS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.out is None:
        runs = measure(args.tokens, args.ranks)
        print(json.dumps({"tokens": args.tokens, "runs": runs}, indent=1) if args.json else table(runs))
    else:
        work(args)


def measure(tokens: int, ranks: list[int]) -> list[dict[str, Any]]:
    return [{"ranks": size, **figures} for size in ranks for figures in launch(size, tokens)]


def launch(ranks: int, tokens: int) -> list[dict[str, Any]]:
    """The largest figures of any rank; raises CalledProcessError, after its last lines, if one fails."""
    with tempfile.TemporaryDirectory() as scratch:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        done = subprocess.run(
            [sys.executable, *launcher, __file__, f"--tokens={tokens}", f"--out={scratch}"],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            print(done.stderr[-3000:], file=sys.stderr)
            done.check_returncode()
        found = [json.loads(path.read_text(encoding="utf-8")) for path in Path(scratch).iterdir()]
    return [{name: max(one[name] for one in kind) for name in kind[0]} for kind in zip(*found, strict=True)]


def work(args: argparse.Namespace) -> None:
    """Recomputed first: it takes less memory, and the kernel remembers the most alone."""
    torch.set_num_threads(1)
    ranks = join_ranks(int(os.environ["WORLD_SIZE"]))
    model = make_model(MODEL).eval()
    recompute_activations(model)
    run_pass(model, WARM_UP_TOKENS, ranks)
    before, kinds = peak_mb(), []
    for is_recomputed in (True, False):
        if not is_recomputed:
            model.gradient_checkpointing_disable()
        started = time.process_time()
        run_pass(model, args.tokens, ranks)
        seconds = time.process_time() - started
        kinds.append({"recompute": is_recomputed, "peak_mb": peak_mb() - before, "cpu_s": seconds})
    (args.out / f"{ranks.rank}.json").write_text(json.dumps(kinds), encoding="utf-8")
    leave_ranks()


def run_pass(model: Any, tokens: int, ranks: Ranks) -> None:
    ids = torch.randint(0, MODEL.vocab, (tokens,), generator=torch.Generator().manual_seed(0))
    scores = token_scores(model, ids, torch.zeros_like(ids), torch.ones(tokens), 1024, context=ranks.context)
    scores.logprobs.nansum().backward()


def table(runs: list[dict[str, Any]]) -> str:
    lines = ["| ranks | recompute | peak MB of a rank | CPU seconds of a rank |", "|---|---|---|---|"]
    lines += [
        f"| {run['ranks']} | {str(run['recompute']).lower()} | {run['peak_mb']:.0f} | {run['cpu_s']:.1f} |"
        for run in runs
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
