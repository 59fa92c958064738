"""The benchmarks are scripts beside the package: their modules are imported as the scripts do it."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs a script with --json; its exit code joins its report as `exit_code`."""

    def run(name: str, *arguments: str) -> dict[str, Any]:
        memory = Path("/dev/shm")
        scratch = memory if os.access(memory, os.W_OK) else tmp_path
        argv = [sys.executable, str(BENCHMARKS / name), "--json", "--scratch-dir", str(scratch), *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=1200, check=False)
        if "no sandbox can be made here" in done.stderr or ("bubblewrap: " in done.stderr and not done.stdout):
            pytest.skip(f"no sandbox can be made on this machine: {done.stderr[-500:]}")
        assert done.stdout, done.stderr[-3000:]
        return {**json.loads(done.stdout), "exit_code": done.returncode}

    return run
