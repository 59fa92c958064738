"""Our runners on the host, without a sandbox, through the commands of their languages."""

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from swe_rl.grade.parsers import PARSERS
from swe_rl.grade.parsers.report import ParsedReport
from swe_rl.grade.seal import seal
from swe_rl.task.language import fill_command, read_languages

LANGUAGES = read_languages(Path(__file__).resolve().parents[3] / "sandboxes")
NONCE = "n0nce"


@pytest.fixture
def run_tests(tmp_path: Path) -> Callable[[str, dict[str, str]], tuple[int, ParsedReport]]:
    """Lays a repository and runs its tests: the exit code and the parsed report, which is unparsed without its seal."""

    def run(name: str, files: dict[str, str]) -> tuple[int, ParsedReport]:
        language = LANGUAGES[name]
        if language.missing_tools:
            pytest.skip(f"this machine lacks {', '.join(language.missing_tools)}")
        for path, text in files.items():
            (tmp_path / "repository" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "repository" / path).write_text(text)
        report, nonce = tmp_path / "report", tmp_path / "nonce"
        nonce.write_text(NONCE + "\n")
        argv = fill_command(
            language.test_command, report=str(report), nonce=str(nonce), runner=str(language.runner_dir)
        )
        own = {"CARGO_TARGET_DIR": str(tmp_path / "target"), "GOCACHE": str(tmp_path / "go")}
        environment = dict(os.environ) | language.env | {key: own[key] for key in own.keys() & language.env.keys()}
        result = subprocess.run(
            argv, cwd=tmp_path / "repository", env=environment, capture_output=True, timeout=240, check=False
        )
        assert not nonce.exists(), "the nonce must be gone before any code of the repository runs"
        data = report.read_bytes() if report.exists() else None
        parsed = PARSERS[language.report_format](data, result.stdout, result.stderr)
        is_whole = parsed.is_parsed and parsed.seal == seal(NONCE, data or b"")
        return result.returncode, replace(parsed, is_parsed=is_whole)

    return run
