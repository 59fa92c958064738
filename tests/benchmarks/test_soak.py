"""The soak in its short form, and that its census sees what it is there to see."""

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
_PLANT = """
import asyncio, ctypes, json, subprocess, sys
from pathlib import Path
from sandbox_soak.census import adopt_orphans, leftovers, reap_orphans

scratch = Path(sys.argv[1])
adopt_orphans()
subprocess.run(["sh", "-c", "setsid sleep 1000 & :"], check=True)
subprocess.run(["sh", "-c", "(exit 0) & :"], check=True)
mounted = ctypes.CDLL(None).mount(b"planted", bytes(scratch / "session"), b"tmpfs", 0, b"size=1m") == 0
reap_orphans(())
left = asyncio.run(leftovers([":no such instance:"], scratch, frozenset()))
if mounted:
    ctypes.CDLL(None).umount2(bytes(scratch / "session"), 2)
print(json.dumps({"left": left, "mounted": mounted}))
subprocess.run(["kill", *(line.split()[0] for line in left["processes"])], check=True)
"""


@pytest.mark.soak
def test_a_short_soak_with_every_fault_leaves_nothing_behind(run_script) -> None:
    report = run_script("soak.py", "--sessions", "60", "--concurrency", "8", "--faults", "0.2")
    assert (report["leaks"], report["problems"]) == (dict.fromkeys(report["leaks"], 0), [])
    assert sum(report["outcomes"].values()) == 60
    assert report["outcomes"]["closed"] > 0
    assert report["ends_in_journal"].get("none", 0) == 0
    assert {"service_killed", "client_gone", "sandbox_killed", "disk_full"} <= set(report["faults_planned"])
    assert report["exit_code"] == 0


@pytest.mark.soak
@pytest.mark.docker
def test_a_short_soak_of_containers_leaves_nothing_behind(run_script, load) -> None:
    if not load("sandbox_soak.census").engine_baseline():
        pytest.skip("no Docker engine answers")
    report = run_script("soak.py", "--sessions", "24", "--concurrency", "4", "--faults", "0.25", "--backend", "docker")
    assert (report["leaks"], report["problems"]) == (dict.fromkeys(report["leaks"], 0), [])
    assert report["exit_code"] == 0


def test_the_census_finds_a_process_a_directory_and_a_mount(tmp_path: Path) -> None:
    (tmp_path / "session").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _PLANT, str(tmp_path)],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(BENCHMARKS)},
    )  # fmt: skip
    seen = json.loads(done.stdout)
    left = seen["left"]
    assert [line.partition(" ")[2] for line in left["processes"]] == ["sleep 1000"]
    assert left["scratch_directories"] == [str(tmp_path / "session")]
    assert left["mounts"] == ([str(tmp_path / "session")] if seen["mounted"] else [])
    assert left["cgroups"] == left["containers"] == []


async def test_what_an_idle_process_holds_more_is_seen_by_kind(load, tmp_path: Path) -> None:
    census = load("sandbox_soak.census")
    before = await census.look_at_idle(os.getpid(), ":no such instance:", tmp_path)
    with open(__file__) as _, socket.socket() as _:  # noqa: ASYNC230
        after = await census.look_at_idle(os.getpid(), ":no such instance:", tmp_path)
    assert census.grown(before, after, is_docker=False) == {f"descriptor {__file__}": 1, "descriptor socket": 1}
    assert census.grown(before, after, is_docker=True) == {f"descriptor {__file__}": 1}
    assert census.grown(after, before, is_docker=False) == {}


def test_the_plan_gives_exactly_the_share_and_every_kind(load) -> None:
    faults = load("sandbox_soak.faults")
    made = faults.plan(1000, 0.05, list(faults.KINDS), random.Random(1))
    assert len(made) == 50
    assert set(made.values()) == set(faults.KINDS)
    assert all(0 <= index < 1000 for index in made)
    assert faults.plan(1000, 0.0, list(faults.KINDS), random.Random(1)) == {}
    assert faults.plan(10, 0.5, [], random.Random(1)) == {}


def test_the_clock_of_a_process_jumps_and_its_monotonic_clock_does_not(load, tmp_path: Path) -> None:
    try:
        clock = load("sandbox_soak.faults").Clock(tmp_path)
    except RuntimeError as error:
        pytest.skip(str(error))
    read = "import time, os; print(time.time(), time.monotonic(), os.environ.get('LD_PRELOAD'))"

    def look() -> tuple[float, float, str]:
        argv, environment = [sys.executable, "-c", read], {**os.environ, **clock.env}
        now, ticks, preload = subprocess.run(
            argv, capture_output=True, text=True, check=True, env=environment
        ).stdout.split()
        return float(now), float(ticks), preload

    first = look()
    clock.shift(-7200.0)
    second = look()
    assert second[0] < first[0] - 3600
    assert first[1] <= second[1]
    assert second[2] == "None"  # what the process starts has the true clock


def test_ends_of_the_journal_are_counted_and_open_ones_named(load, tmp_path: Path) -> None:
    import sqlite3

    connection = sqlite3.connect(tmp_path / "journal.sqlite")
    connection.execute("create table service_sessions (session_id text, reason text)")
    rows = [("a", "closed"), ("b", "closed"), ("c", None), ("d", "lost")]
    connection.executemany("insert into service_sessions values (?, ?)", rows)
    connection.commit()
    connection.close()
    assert load("sandbox_soak.journal").ends(tmp_path / "journal.sqlite") == {"closed": 2, "lost": 1, "none": 1}
