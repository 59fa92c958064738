"""Groups to store, and a process that stores them until it is killed: `store_process.py VERB RUN_DIR URL [ARGS]`."""

import sys
from pathlib import Path

import numpy as np

from swe_rl.errors import StoreError
from swe_rl.store.policies import PolicyStore
from swe_rl.store.rollouts import RolloutStore
from swe_rl.store.steps import StepRule
from swe_rl.trajectory import Group, Segment, StopReason, ToolCall, Trajectory, Turn
from swe_rl.verdict import Outcome, TestCounts, Verdict, Violation

VERDICTS = (
    Verdict(
        Outcome.VIOLATION,
        0.0,
        TestCounts(1, 2),
        TestCounts(3, 4),
        (Violation("hidden-tests", "täst.py", "“edited”\n\ud800"),),
        {"agreed": True, "exit_code": None, "ratio": 0.1},
        "ab" * 32,
        1.25,
    ),
    Verdict(Outcome.RESOLVED, 1.0),
    Verdict(Outcome.ENVIRONMENT_ERROR, None),
    None,
)


def make_trajectory(group_id: str, task_id: str, number: int, version: int, split: str = "train") -> Trajectory:
    """6 + number tokens: two of prompt, two sampled, one observed, the rest sampled."""
    length = 6 + number
    sampled = np.array([False, False, True, True, False] + [True] * (length - 5))
    rng = np.random.default_rng(number)
    segment = np.where(sampled, Segment.TOOL_ARGS, Segment.PROMPT).astype(np.uint8)
    segment[4] = Segment.OBSERVATION
    return Trajectory(
        trajectory_id=f"{group_id}-{number}",
        group_id=group_id,
        task_id=task_id,
        split=split,
        token_ids=rng.integers(0, 2**31 - 1, length).astype(np.int32),
        sampled=sampled,
        infer_logprobs=np.where(sampled, -rng.random(length), np.nan).astype(np.float32),
        policy_version=np.where(sampled, version, -1).astype(np.int32),
        segment=segment,
        turn=np.array([-1, -1, 0, 0, 0] + [1] * (length - 5), dtype=np.int16),
        turns=(
            Turn(2, 4, (ToolCall("view", {"path": "ü.py", "lines": [1, 2], "bad": "\udcff"}, 2, 4),), False, 0, 0.5),
            Turn(5, length, (), True, None, 0.0),
        ),
        temperature=0.7,
        stop_reason=StopReason.SUBMITTED,
        verdict=VERDICTS[number % len(VERDICTS)],
    )


def make_group(index: int, version: int = 0, size: int = 4, task_id: str = "", group_id: str = "") -> Group:
    group_id, task_id = group_id or f"g{index:05d}", task_id or f"task-{index % 3}"
    trajectories = tuple(make_trajectory(group_id, task_id, n, version) for n in range(size))
    return Group(group_id, task_id, "train", index, version, trajectories)


def write_policy(directory: Path, version: int) -> None:
    """Stands for weights: two files whose bytes depend on the version."""
    (directory / "config.json").write_text("{}")
    for part in (1, 2):
        (directory / f"model-{part}.safetensors").write_bytes(bytes([version % 251, part]) * 4000)


def append_forever(run_dir: Path, url: str) -> None:
    store = RolloutStore(run_dir, url)
    while True:
        index = store.next_index()
        store.append(make_group(index, version=index // 2))
        print(index, flush=True)


def append_range(run_dir: Path, url: str, first: int, last: int) -> None:
    store = RolloutStore(run_dir, url)
    print(sum(store.append(make_group(index)) for index in range(first, last)), flush=True)


def train_forever(run_dir: Path, url: str) -> None:
    rollouts, policies = RolloutStore(run_dir, url), PolicyStore(run_dir, url)
    while True:
        latest = policies.latest()
        version = 0 if latest is None else latest.version + 1
        groups = rollouts.take(StepRule(2), version, 10**6)
        if groups is None:
            return
        ids = [group.group_id for group in groups]
        print(version, *ids, flush=True)
        policies.publish(lambda directory, v=version: write_policy(directory, v), version, ids, ["train"])


def publish_once(run_dir: Path, url: str, version: int, *group_ids: str) -> None:
    try:
        PolicyStore(run_dir, url).publish(lambda directory: write_policy(directory, version), version, group_ids)
    except StoreError as error:
        print(f"refused: {error}", flush=True)
        return
    print("published", flush=True)


def take_and_wait(run_dir: Path, url: str) -> None:
    taken = RolloutStore(run_dir, url).take(StepRule(1), 0, 0)
    print(taken and taken[0].group_id, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    verb, path, database, *rest = sys.argv[1:]
    arguments = [int(part) if part.isdigit() else part for part in rest]
    globals()[verb](Path(path), database, *arguments)
