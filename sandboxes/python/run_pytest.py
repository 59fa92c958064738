"""Run a repository's tests by pytest and write what pytest recorded as JSON lines, for tasks whose tests need pytest.

    run_pytest.py --report REPORT NONCE_FILE [ARGUMENT OF PYTEST ...]

Ids are pytest's node ids. A test is an error if its set-up or tear-down failed, failed if it or one of its subtests did,
skipped, else passed, an expected failure included. A module that can't be collected is an error under its own name. The
end mark is written when pytest's session is over, so a process that leaves before has no whole report. The nonce's file
is removed before pytest, a plugin or anything of the repository is loaded. Exit code: pytest's.
"""

import json
import sys
from hashlib import sha256
from pathlib import Path

RANK = ("passed", "skipped", "failed", "error")
# Nothing of the repository configures pytest but its conftest.py files, which grading takes from the task.
PINNED = (
    "-c", "/dev/null", "--rootdir=.", "-o", "addopts=", "-p", "no:cacheprovider", "--import-mode=importlib",
    "--continue-on-collection-errors",
)


class Recorder:
    """The worst status that each test's stages had."""

    def __init__(self) -> None:
        self.status = {}

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            self._add(report.nodeid, "failed" if report.when == "call" else "error")
        elif report.skipped and not hasattr(report, "wasxfail"):
            self._add(report.nodeid, "skipped")
        elif report.when == "call":
            self._add(report.nodeid, "passed")

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self._add(report.nodeid, "error")

    def _add(self, test_id: str, status: str) -> None:
        self.status[test_id] = max(self.status.get(test_id, "passed"), status, key=RANK.index)


def main(argv: list[str]) -> int:
    if argv[:1] != ["--report"] or len(argv) < 3:
        sys.exit(f"usage: {Path(__file__).name} --report REPORT NONCE_FILE [ARGUMENT OF PYTEST ...]")
    report, nonce_file = Path(argv[1]), Path(argv[2])
    nonce = nonce_file.read_text().strip()
    nonce_file.unlink()
    sys.path.insert(0, "")  # as `python -m pytest` has it, and behind this script's own imports
    import pytest

    recorder = Recorder()
    code = pytest.main([*PINNED, *argv[3:]], plugins=[recorder])
    rows = [{"id": test_id, "status": status} for test_id, status in recorder.status.items()]
    body = "".join(json.dumps(row) + "\n" for row in rows)
    end = {"end": len(rows), "seal": sha256(f"{nonce}\n{body}".encode()).hexdigest()}
    report.write_text(f"{body}{json.dumps(end)}\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
