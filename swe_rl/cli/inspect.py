"""`swe-rl inspect`: the state of a run, or the tokens of one of its trajectories."""

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from swe_rl.store.rollouts import RolloutStore
    from swe_rl.trajectory import Trajectory

HELP = "show the state of a run, or one trajectory"

_NUM_RECENT = 8
_PIPED_WIDTH = 160
_COLOURS = {
    "template": "bright_black",
    "prompt": "white",
    "observation": "cyan",
    "reasoning": "magenta",
    "text": "bright_white",
    "tool_name": "bold yellow",
    "tool_args": "green",
    "diff": "bold blue",
    "stop": "red",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="directory of a run")
    parser.add_argument("--trajectory", metavar="ID", help="show this trajectory's tokens, coloured by segment")
    parser.add_argument("--logprobs", action="store_true", help="with --trajectory: one sampled token a line")
    parser.add_argument("--json", action="store_true", help="print the run's state as JSON")
    parser.add_argument("--report", action="store_true", help="write the run's report anew, of what there is by now")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from swe_rl.cli.tables import show_report
    from swe_rl.errors import ConfigError
    from swe_rl.store.rollouts import RolloutStore

    run_dir: Path = args.run_dir
    if args.logprobs and args.trajectory is None:
        raise ConfigError("--logprobs is of one trajectory; name it with --trajectory ID")
    if not (run_dir / "rollouts").is_dir():
        if (run_dir / "config.json").exists() and (run_dir / "policies").is_dir():
            raise ConfigError(f"{run_dir}: the run has sampled nothing yet; look again later")
        raise ConfigError(f"{run_dir}: no rollouts/ in it; expected the directory of a run")
    if args.report:
        show_report(run_dir)
        return 0
    store = RolloutStore(run_dir, _store_url(run_dir))
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    if args.trajectory is not None:
        _show_trajectory(console, run_dir, store.find(args.trajectory), args.logprobs)
    elif args.json:
        print(json.dumps(_state(run_dir, store)))
    else:
        _show_run(console, run_dir, store)
    store.close()
    return 0


def _store_url(run_dir: Path) -> str:
    """Where the run's own configuration says that its index is."""
    path = run_dir / "config.json"
    return str(json.loads(path.read_text())["run"]["store_url"]) if path.exists() else ""


def _state(run_dir: Path, store: "RolloutStore") -> dict[str, Any]:
    from swe_rl.metrics import read_metrics
    from swe_rl.store.policies import PolicyStore

    policies = PolicyStore(run_dir, _store_url(run_dir))
    latest, counts = policies.latest(), store.counts()
    state = {
        "run_dir": str(run_dir),
        "num_steps": len(read_metrics(run_dir / "metrics.jsonl")),
        "num_versions": len(policies.versions()),
        "latest_version": None if latest is None else latest.version,
        "latest_path": None if latest is None else str(latest.path),
        "splits_consumed": [] if latest is None else list(latest.splits),
        "groups_written": counts.written,
        "groups_waiting": counts.waiting,
        "groups_consumed": counts.consumed,
        "groups_dropped": counts.dropped,
        "missing_indices": store.missing_indices(store.next_index()),
        "evaluations": sorted(path.stem for path in (run_dir / "eval").glob("*.json")),
    }
    policies.close()
    return state


def _show_run(console: "Console", run_dir: Path, store: "RolloutStore") -> None:
    from rich.table import Column, Table

    from swe_rl.metrics import read_metrics

    about = Table(title=str(run_dir), show_header=False)
    for name, value in _state(run_dir, store).items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        about.add_row(name.replace("_", " "), "-" if shown in (None, "") else str(shown))
    console.print(about)
    steps = Table("step", "reward", "kept", "|dlogp|", "routers", "seconds", title=f"last {_NUM_RECENT} steps")
    for row in read_metrics(run_dir / "metrics.jsonl")[-_NUM_RECENT:]:
        names = ["reward/mean", "mask/kept_fraction", "mismatch/mean_abs_logprob_diff", "mismatch/router_agreement"]
        names.append("time/step_s")
        steps.add_row(str(int(row["step"])), *(_number(row.get(name)) for name in names))
    console.print(steps)
    recent = store.trajectories()[-_NUM_RECENT:]
    # An id that is cut can't be given to --trajectory, whatever the terminal's width.
    trajectory = Column("trajectory", no_wrap=True)
    last = Table(trajectory, "task", "version", "reward", "outcome", "ended", "turns", "tokens", "group is")
    groups = {group.index: group for group in store.groups()}
    for t in recent:
        group = groups[t.index]
        state = "waiting" if group.consumed_by is None else f"in v{group.consumed_by}"
        state = state if group.dropped_at is None else f"dropped at v{group.dropped_at}"
        cells = (t.trajectory_id, group.task_id, group.policy_version, _number(t.reward), t.outcome or "-")
        last.add_row(*map(str, (*cells, t.stop_reason, t.num_turns, t.num_tokens, state)))
    last.title = f"last {_NUM_RECENT} trajectories"
    console.print(last)


def _show_trajectory(console: "Console", run_dir: Path, t: "Trajectory", is_tabular: bool) -> None:
    from rich.text import Text

    from swe_rl.trajectory import Segment

    legend = Text()
    for segment in Segment:
        legend.append(f" {segment.name.lower()} ", style=f"reverse {_COLOURS[segment.name.lower()]}").append(" ")
    outcome = "not graded" if t.verdict is None else t.verdict.outcome.value
    console.print(f"{t.trajectory_id}  task {t.task_id}  {outcome}  reward {t.reward}  {t.stop_reason.value}")
    console.print(f"{len(t)} tokens, {t.num_sampled} sampled in {len(t.turns)} turns, temperature {t.temperature}")
    console.print(legend)
    texts = _texts(run_dir, t)
    if is_tabular:
        _show_logprobs(console, t, texts, _train_logprobs(run_dir, t))
        return
    body = Text()
    for text, segment in zip(texts, t.segment, strict=True):
        body.append(text, style=_COLOURS[Segment(int(segment)).name.lower()])
    console.print(body, soft_wrap=True)


def _train_logprobs(run_dir: Path, t: "Trajectory") -> dict[int, float]:
    """The trainer's by position, from the newest step that logged the trajectory; empty if none did."""
    from swe_rl.train.token_log import logged_steps, read_token_log

    for step in reversed(logged_steps(run_dir)):
        columns = read_token_log(run_dir, step)
        rows = columns.trajectory_ids[columns.trajectory] == t.trajectory_id
        if rows.any():
            return dict(zip(columns.position[rows].tolist(), columns.train_logprobs[rows].tolist(), strict=True))
    return {}


def _show_logprobs(console: "Console", t: "Trajectory", texts: list[str], trained: dict[int, float]) -> None:
    """One sampled token a line; behind the engine's log-probability the trainer's, where it trained on the token."""
    from rich.text import Text

    from swe_rl.trajectory import Segment

    heads = f"{'at':>6}  {'turn':8}  version {'engine':>8} {'trainer':>9}  {'segment':10s} token"
    console.print(heads, soft_wrap=True, highlight=False)
    for position, text in enumerate(texts):
        if not t.sampled[position]:
            continue
        segment = Segment(int(t.segment[position])).name.lower()
        line = f"{position:6d}  turn {t.turn[position]:3d}  v{t.policy_version[position]:<5d} "
        line += f"{t.infer_logprobs[position]:9.4f} "
        line += f"{trained[position]:9.4f}  " if position in trained else f"{'-':>9}  "
        line += f"{segment:10s} "
        console.print(Text(line).append(repr(text), style=_COLOURS[segment]), soft_wrap=True)


def _texts(run_dir: Path, t: "Trajectory") -> list[str]:
    """What each token spells, with the tokenizer of a policy of the run."""
    from swe_rl.agent.vocabulary import Vocabulary
    from swe_rl.errors import PolicyError

    found = sorted((run_dir / "policies").glob("v*/tokenizer.json"))
    if not found:
        raise PolicyError(f"{run_dir / 'policies'}: no policy with a tokenizer.json; tokens can't be spelled")
    vocabulary = Vocabulary.from_policy(found[-1].parent)
    return [vocabulary.token_bytes(token).decode("utf-8", "replace") for token in t.token_ids.tolist()]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
