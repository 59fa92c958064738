"""The trainer's memory and speed against a padded batch with full logits, and against TRL's GRPO, in one run.

One update each over the same long multi-turn trajectories, every trainer in a process of its own. A second workload,
siblings behind one long prompt, is run with and without the prompt shared. Prints a table, or with --json one object:
`runs` (name -> seconds, tokens_per_s, peak_mb, loss, grad_norm), `ratios` (above 1 we are better), `shares` (of a step
that the mask and the metrics cost, ours and plain PyTorch's), `left_out` (name -> why).

    python benchmarks/trainer.py --trl-python /tmp/trl/bin/python --json

TRL may have an interpreter of its own (`pip install trl`); without it, its line says so. With more memory raise
--padded-rows: the peers then waste less time on short batches, and need more memory.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

UPDATE = Path(__file__).with_name("trainer_update.py")
AIMS = {
    "memory_vs_padded_full_logits": 5.0,
    "tokens_per_s_vs_padded_full_logits": 2.0,
    "tokens_per_s_vs_trl": 1.0,
    "shared_prefix_tokens_per_s": 1.0,
}
NUMBERS = {
    "tokens": 32768, "vocab": 151_936, "hidden": 64, "layers": 2, "group-size": 8, "prompt": 256, "tail": 768,
    "row-tokens": 8192, "padded-rows": 2, "threads": 2,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--shared-prompt", type=int, default=1024, help="tokens of the prompt that 8 siblings share")
    parser.add_argument("--trl-python", default=sys.executable, help="interpreter that has trl")
    parser.add_argument("--only", nargs="*", choices=["padded", "trl", "shared"], help="leave the other peers out")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    workload = {name: getattr(args, name.replace("-", "_")) for name in NUMBERS}
    result = measure(workload, args.trl_python, args.shared_prompt, args.only or ["padded", "trl", "shared"])
    print(json.dumps(result, indent=1) if args.json else table(result, workload))


def measure(workload: dict[str, int], trl_python: str, shared_prompt: int, chosen: list[str]) -> dict[str, Any]:
    runs = {"ours": update("ours", workload)}
    left_out: dict[str, str] = {}
    if "padded" in chosen:
        runs["padded"] = update("padded", workload)
    if "trl" in chosen:
        if why := why_not_trl(trl_python):
            left_out["trl"] = why
        else:
            runs["trl"] = update("trl", workload, python=trl_python)
    if "shared" in chosen:
        prompt = workload | {"prompt": shared_prompt, "tail": shared_prompt // 2, "row-tokens": 6 * shared_prompt}
        prompt["group-size"] = 8
        for name, value in (("shared", "true"), ("not_shared", "false")):
            runs[name] = update("ours", prompt, f"--shared-prefix={value}")
    return {"runs": runs, "ratios": ratios(runs), "shares": shares(runs["ours"]), "left_out": left_out}


def update(trainer: str, workload: dict[str, int], *more: str, python: str = sys.executable) -> dict[str, float]:
    """Raises CalledProcessError, after its last lines, if the trainer's process fails."""
    options = [f"--{name}={value}" for name, value in workload.items()]
    root = str(UPDATE.parent.parent)
    done = subprocess.run(
        [python, str(UPDATE), trainer, *options, *more],
        env=os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": str(workload["threads"])},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print(done.stderr[-3000:], file=sys.stderr)
        done.check_returncode()
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures | {"tokens_per_s": figures["num_tokens"] / figures["seconds"]}


def why_not_trl(python: str) -> str:
    if python == sys.executable:
        is_there = importlib.util.find_spec("trl") is not None
    else:
        is_there = subprocess.run([python, "-c", "import trl"], capture_output=True, check=False).returncode == 0
    return "" if is_there else f"{python} has no trl: pip install trl, or name an interpreter by --trl-python"


def ratios(runs: dict[str, dict[str, float]]) -> dict[str, float]:
    ours = runs["ours"]
    found = {}
    if "padded" in runs:
        found["memory_vs_padded_full_logits"] = runs["padded"]["peak_mb"] / ours["peak_mb"]
        found["tokens_per_s_vs_padded_full_logits"] = ours["tokens_per_s"] / runs["padded"]["tokens_per_s"]
    if "trl" in runs:
        found["memory_vs_trl"] = runs["trl"]["peak_mb"] / ours["peak_mb"]
        found["tokens_per_s_vs_trl"] = ours["tokens_per_s"] / runs["trl"]["tokens_per_s"]
    if "shared" in runs:
        found["shared_prefix_tokens_per_s"] = runs["shared"]["tokens_per_s"] / runs["not_shared"]["tokens_per_s"]
    return found


def shares(ours: dict[str, float]) -> dict[str, float]:
    return {
        "mask_and_metrics": ours["mask_s"] / ours["seconds"],
        "plain_mask_and_metrics": ours["plain_mask_s"] / ours["seconds"],
    }


def table(result: dict[str, Any], workload: dict[str, int]) -> str:
    lines = ["one update: " + ", ".join(f"{name} {value}" for name, value in workload.items()), ""]
    lines += ["| trainer | seconds | tokens/s | peak MB | loss | gradient norm |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {name} | {run['seconds']:.1f} | {run['tokens_per_s']:.0f} | {run['peak_mb']:.0f} | {run['loss']:.6f} "
        f"| {run['grad_norm']:.6f} |"
        for name, run in result["runs"].items()
    ]
    lines += [f"\n{name} left out: {why}" for name, why in result["left_out"].items()]
    lines += ["", "| ratio | | aim |", "|---|---|---|"]
    lines += [f"| {name} | {value:.2f} | {AIMS.get(name, '')} |" for name, value in result["ratios"].items()]
    cost = result["shares"]
    lines += [
        "",
        f"mask and metrics: {cost['mask_and_metrics']:.3%} of the step (plain PyTorch, padded: "
        f"{cost['plain_mask_and_metrics']:.3%}; aim: at most 1 %)",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
