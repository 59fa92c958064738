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
    parser.add_argument("--recompute", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.out is None:
        runs = measure(args.tokens, args.ranks)
        print(json.dumps({"tokens": args.tokens, "runs": runs}, indent=1) if args.json else table(runs))
    else:
        work(args)


def measure(tokens: int, ranks: list[int]) -> list[dict[str, float]]:
    return [
        {"ranks": size, "recompute": recompute} | launch(size, tokens, recompute)
        for recompute in (False, True)
        for size in ranks
    ]


def launch(ranks: int, tokens: int, recompute: bool) -> dict[str, float]:
    """The largest figures of any rank; raises CalledProcessError, after its last lines, if a rank fails."""
    with tempfile.TemporaryDirectory() as scratch:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        options = [f"--tokens={tokens}", f"--out={scratch}", *(["--recompute"] if recompute else [])]
        done = subprocess.run(
            [sys.executable, *launcher, __file__, *options],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            print(done.stderr[-3000:], file=sys.stderr)
            done.check_returncode()
        found = [json.loads(path.read_text(encoding="utf-8")) for path in Path(scratch).iterdir()]
    return {name: max(of_rank[name] for of_rank in found) for name in found[0]}


def work(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    ranks = join_ranks(int(os.environ["WORLD_SIZE"]))
    model = make_model(MODEL).eval()
    if args.recompute:
        recompute_activations(model)
    run_pass(model, WARM_UP_TOKENS, ranks)
    before, started = peak_mb(), time.process_time()
    run_pass(model, args.tokens, ranks)
    figures = {"peak_mb": peak_mb() - before, "cpu_s": time.process_time() - started}
    (args.out / f"{ranks.rank}.json").write_text(json.dumps(figures), encoding="utf-8")
    leave_ranks()


def run_pass(model: Any, tokens: int, ranks: Ranks) -> None:
    ids = torch.randint(0, MODEL.vocab, (tokens,), generator=torch.Generator().manual_seed(0))
    scores = token_scores(model, ids, torch.zeros_like(ids), torch.ones(tokens), 1024, context=ranks.context)
    scores.logprobs.nansum().backward()


def table(runs: list[dict[str, float]]) -> str:
    lines = ["| ranks | recompute | peak MB of a rank | CPU seconds of a rank |", "|---|---|---|---|"]
    lines += [
        f"| {run['ranks']} | {str(run['recompute']).lower()} | {run['peak_mb']:.0f} | {run['cpu_s']:.1f} |"
        for run in runs
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
