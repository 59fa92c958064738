"""What the benchmark of ranks on one row measures is there to be measured."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "context.py"


def test_each_of_two_ranks_on_a_row_needs_less_memory_than_one_alone():
    options = ["--json", "--tokens=4096", "--ranks", "1", "2"]
    done = subprocess.run([sys.executable, str(BENCHMARK), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peaks = {(run["ranks"], run["recompute"]): run["peak_mb"] for run in json.loads(done.stdout)["runs"]}
    assert len(peaks) == 4
    assert peaks[2, False] < 0.8 * peaks[1, False]
    assert peaks[2, True] < peaks[1, True] < peaks[1, False]
