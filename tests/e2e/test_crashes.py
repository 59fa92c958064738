"""The whole loop is killed at random moments, and the same command goes on: nothing stored is lost or used twice."""

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from swe_rl.config import load_config
from swe_rl.returns import ReturnRule
from swe_rl.store.rollouts import RolloutStore
from swe_rl.store.steps import StepRule

ROOT = Path(__file__).parents[2]
NUM_KILLS = 10
STEPS = 6
GROUPS_PER_STEP = 2
MOST_PER_STEP = 3  # with back-fill
PARTS = ("run", "serve sandbox", "rollout", "train")


def command(run_dir: Path) -> list[str]:
    settings = {
        "run.dir": run_dir,
        "policy.path": ROOT / "checkpoints" / "tiny-repair",
        "synth.num_train": 12,
        "synth.num_verified": 4,
        "rollout.group_size": 2,
        "rollout.groups_per_step": GROUPS_PER_STEP,
        "rollout.max_backfill": MOST_PER_STEP / GROUPS_PER_STEP - 1,
        "train.steps": STEPS,
        "eval.samples_per_task": 1,
        "eval.ks": "[1]",
        "eval.greedy": "false",
        "eval.every": 0,
    }
    arguments = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return [sys.executable, "-m", "swe_rl.cli.main", "run", "--config", "quickstart", *arguments]


def processes(run_dir: Path, part: str) -> list[int]:
    """Live processes of one part of this run, found by their command lines and those of their parents."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "swe_rl.cli.main" in line and f" {part} " in line and str(run_dir) in line:
            found.append(int(entry.name))
    return found


def kill_one(run_dir: Path, rng: random.Random) -> str:
    """SIGKILL to a random part that lives; '' if none does."""
    alive = {part: found for part in PARTS if (found := processes(run_dir, part))}
    if not alive:
        return ""
    part = rng.choice(sorted(alive))
    for process in alive[part]:
        os.kill(process, signal.SIGKILL)
    return part


def start(run_dir: Path) -> subprocess.Popen[bytes]:
    log = run_dir.with_suffix(".log").open("ab")
    return subprocess.Popen(command(run_dir), cwd=ROOT, stdout=log, stderr=log, start_new_session=True)


@pytest.mark.slow
def test_a_run_killed_at_ten_random_moments_goes_on_and_uses_each_group_once(tmp_path: Path) -> None:
    if not (ROOT / "checkpoints" / "tiny-repair").is_dir():
        pytest.fail("checkpoints/tiny-repair isn't there; it comes with the repository")
    rng = random.Random(20)
    killed: Counter[str] = Counter()
    num_runs = 0
    while killed.total() < NUM_KILLS:  # a run may end before its share of kills; then another one follows
        run_dir = tmp_path / f"run{num_runs}"
        killed += kill_until_done(run_dir, NUM_KILLS - killed.total(), rng)
        check_run(run_dir)
        num_runs += 1
    print(f"killed: {dict(killed)} in {num_runs} runs")


def kill_until_done(run_dir: Path, num_kills: int, rng: random.Random) -> Counter[str]:
    """Starts the same command until it ends well, and kills a part of it up to `num_kills` times."""
    killed: Counter[str] = Counter()
    stored: set[tuple[int, str]] = set()
    while True:
        process = start(run_dir)
        part = ""
        if killed.total() < num_kills:
            wait_for_a_moment(process, run_dir, rng)
            part = kill_one(run_dir, rng)
            killed.update([part] if part else [])
        process.wait(300)
        rows = groups(run_dir)
        assert stored <= set(rows), "a stored group was lost"
        stored = set(rows)
        if process.returncode == 0:
            return killed
        assert part, run_dir.with_suffix(".log").read_text()[-3000:]


def wait_for_a_moment(process: subprocess.Popen[bytes], run_dir: Path, rng: random.Random) -> None:
    """Until a random moment of the start, or one soon after some progress: the same on slow and on fast machines."""
    num_events = rng.choice((0, 1, 1, 2, 3))
    extra_s = rng.uniform(0.0, 0.6) if num_events else rng.uniform(0.3, 5.0)
    before = progress(run_dir)
    while process.poll() is None and progress(run_dir) - before < num_events:
        time.sleep(0.01)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(extra_s)


def progress(run_dir: Path) -> int:
    """Stored groups and published policies."""
    return len(groups(run_dir)) + len(list(run_dir.glob("policies/v*/manifest.json")))


def groups(run_dir: Path) -> list[tuple[int, str]]:
    """(index, checksum) of each stored group."""
    index = run_dir / "index.sqlite"
    if not index.exists():
        return []
    with sqlite3.connect(f"file:{index}?mode=ro", uri=True, timeout=10) as connection:
        try:
            return list(connection.execute("SELECT position, sha256 FROM groups ORDER BY position"))
        except sqlite3.OperationalError:
            return []  # killed before the tables were made


def check_run(run_dir: Path) -> None:
    rows = groups(run_dir)
    assert [index for index, _ in rows] == list(range(len(rows)))
    manifests = [
        json.loads((run_dir / "policies" / f"v{v:05d}" / "manifest.json").read_text()) for v in range(STEPS + 1)
    ]
    consumed = [group for manifest in manifests for group in manifest["consumed"]]
    assert len(consumed) == len(set(consumed)) and manifests[0]["consumed"] == []
    config = load_config(run_dir / "config.json")
    step = StepRule.of(config.rollout, ReturnRule.of(config).has_signal)
    store = RolloutStore(run_dir)
    members = [[store.get(int(group[1:])).trajectories for group in m["consumed"]] for m in manifests[1:]]
    store.close()
    assert [step.size([step.has_signal(group) for group in made]) for made in members] == [len(m) for m in members]
    steps = [
        json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").read_text().splitlines() if line.endswith("}")
    ]
    assert set(steps) == set(range(STEPS))
    assert json.loads((run_dir / "report" / "summary.json").read_text())["num_tasks"] == 4
    time.sleep(1)
    assert not [p for part in PARTS for p in processes(run_dir, part)], "a process outlived its run"
