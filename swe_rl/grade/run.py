"""One run of the hidden tests: a tree is built on the host, one command runs in a fresh sandbox, its report is read.

    copy of the base -> patch -> rules -> protected files restored -> hidden tests -> canaries    (on the host, as data)
    -> the tests' command -> report, and the test files read back -> judgement

What a policy or a run wrote is read in a process apart. What a level asks of a run is its plan. Nothing here retries or
decides about rewards.
"""

import asyncio
import os
import secrets
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from swe_rl.errors import PatchError, PathError
from swe_rl.grade.apart import UnreadableError, run_apart
from swe_rl.grade.canary import Planted, plant, target_files
from swe_rl.grade.judge import Judgement, judge
from swe_rl.grade.parsers import PARSERS
from swe_rl.grade.parsers.report import ParsedReport
from swe_rl.grade.patch import apply_patch
from swe_rl.grade.patch_format import ParsedPatch
from swe_rl.grade.restore import restore_protected, write_overlay
from swe_rl.grade.rules import check
from swe_rl.grade.rules.evidence import Evidence
from swe_rl.grade.seal import seal
from swe_rl.grade.tree import copy_tree, read_report
from swe_rl.sandbox.base import REPORT_DIR, RUNNER_DIR, Backend, Command, CommandResult, Limits, Sandbox, SandboxSpec
from swe_rl.task.language import LanguageSpec, fill_command
from swe_rl.task.spec import TaskSpec
from swe_rl.verdict import Outcome, Violation

OUTPUT_LIMIT_BYTES = 256 * 1024


class ViolationFound(Exception):
    """Ends a run before anything of the patch has run."""

    def __init__(self, violations: tuple[Violation, ...]) -> None:
        super().__init__(f"{len(violations)} violations")
        self.violations = violations


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What one run is like. `has_variants`: the task's variants/ are written over its tests/."""

    has_canaries: bool = True
    is_shuffled: bool = False
    has_variants: bool = False


@dataclass
class _Built:
    """What the host knows of the tree: `restored` protected paths that were put back, and `written`, the test files
    that must be the same after the run."""

    restored: tuple[str, ...] = ()
    planted: Planted = Planted()
    written: dict[str, bytes] = field(default_factory=dict)
    test_files: list[str] = field(default_factory=list)


class TestRun:
    """One task with one patch, to be run as often as a level asks; each run has a tree and a sandbox of its own."""

    __test__ = False  # not a test class, whatever its name begins with

    def __init__(self, backend: Backend, task: TaskSpec, language: LanguageSpec, patch: str) -> None:
        self._backend, self._task, self._language, self._patch = backend, task, language, patch

    async def run(self, plan: RunPlan, scratch_dir: Path | None, signals: dict[str, Any]) -> Judgement:
        """Raises PatchError, ViolationFound, and SandboxError or OSError for a fault of the environment.

        `signals` gets what was seen on the way.
        """
        with tempfile.TemporaryDirectory(prefix="grade-", dir=scratch_dir, ignore_cleanup_errors=True) as name:
            scratch, tree = Path(name), Path(name) / "tree"
            patch = await asyncio.to_thread(self._apply, tree)
            flags = await self._check(patch, tree)
            built = await asyncio.to_thread(self._build, plan, patch, tree)
            signals |= {"restored": list(built.restored), "flags": [asdict(flag) for flag in flags]}
            result, report, changed = await self._execute(plan, built, scratch)
        judgement = judge(self._task, result, report, built.planted)
        if changed and judgement.outcome is not Outcome.TIMEOUT:
            return replace(judgement, outcome=Outcome.VIOLATION, violations=(*judgement.violations, changed))
        return judgement

    def _apply(self, tree: Path) -> ParsedPatch:
        copy_tree(self._task.environment_dir, tree)
        return apply_patch(self._patch, tree, scratch_dir=tree.parent) if self._patch else ParsedPatch(())

    async def _check(self, patch: ParsedPatch, tree: Path) -> tuple[Violation, ...]:
        """The flags, which cost nothing."""
        if not patch.files:
            return ()
        try:
            violations, flags = await run_apart(check, Evidence(self._task, self._language, patch, tree))
        except UnreadableError as error:
            raise PatchError(f"the patch can't be checked: {error}; expected sources that can be parsed") from error
        if violations:
            raise ViolationFound(violations)
        return flags

    def _build(self, plan: RunPlan, patch: ParsedPatch, tree: Path) -> _Built:
        task, language, built = self._task, self._language, _Built()
        built.restored = restore_protected(patch, task, language, tree) if patch.files else ()
        hidden = write_overlay(task.tests_dir, tree)
        if plan.has_variants:
            hidden += write_overlay(task.variants_dir, tree)
        built.test_files = [path for path in _files_below(tree) if language.is_test_file(path)]
        targets = target_files(built.test_files, tree, (*task.fail_to_pass, *task.pass_to_pass))
        if plan.has_canaries and language.canary:
            built.planted = plant(tree, language.canary, targets, secrets.SystemRandom())
        built.written = {path: (tree / path).read_bytes() for path in {*hidden, *targets}}
        return built

    async def _execute(
        self, plan: RunPlan, built: _Built, scratch: Path
    ) -> tuple[CommandResult, ParsedReport, Violation | None]:
        directory, word, nonce = _report_directory(scratch), secrets.token_hex(8), secrets.token_hex(16)
        report_name, nonce_name = f"{word}.report", f"{word}.nonce"
        (directory / nonce_name).write_text(nonce + "\n")  # a file, since a command line stays readable for all
        (directory / nonce_name).chmod(0o644)  # whatever the umask
        template = self._task.test_command or self._language.test_command
        argv = fill_command(
            template, report=f"{REPORT_DIR}/{report_name}", runner=RUNNER_DIR, nonce=f"{REPORT_DIR}/{nonce_name}"
        )
        if plan.is_shuffled and self._language.takes_files and self._task.test_command is None:
            argv += tuple(secrets.SystemRandom().sample(built.test_files, len(built.test_files)))
        limits = task_limits(self._task, self._language)
        spec = SandboxSpec(scratch / "tree", self._language.language, limits, self._language.env, is_disposable=True)
        command = Command(
            argv=argv,
            env=self._language.env,
            timeout_s=limits.timeout_s,
            output_limit_bytes=OUTPUT_LIMIT_BYTES,
            report_dir=directory,
            runner_dir=self._language.runner_dir,
        )
        sandbox = await self._backend.create(spec)
        try:
            result = await sandbox.run(command)
            num_changed, num_missing = await _count_changes(sandbox, built.written)
        finally:
            await sandbox.close()
        awaited = nonce if any("{nonce}" in part for part in template) else None
        report = await self._parse(directory / report_name, awaited, result)
        if report.is_parsed:  # a runner that was killed couldn't put them back
            num_changed += num_missing
        return result, report, _change(num_changed, len(built.written))

    async def _parse(self, path: Path, nonce: str | None, result: CommandResult) -> ParsedReport:
        report_format = self._language.report_format
        try:
            return await run_apart(_read_and_parse, report_format, path, nonce, result.stdout, result.stderr)
        except UnreadableError as error:
            return ParsedReport.unparsed(f"the report can't be read: {error}")


def _read_and_parse(report_format: str, path: Path, nonce: str | None, stdout: bytes, stderr: bytes) -> ParsedReport:
    data, problem = read_report(path.parent, path.name)
    report = PARSERS[report_format](data, stdout, stderr)
    if report.is_parsed and nonce is not None and report.seal != seal(nonce, data or b""):
        return replace(report, is_parsed=False, problem="the report's end mark isn't its seal")
    return replace(report, problem=problem) if problem and not report.is_parsed else report


def task_limits(task: TaskSpec, language: LanguageSpec) -> Limits:
    """The language's limits with the task's overrides."""
    return Limits(
        timeout_s=task.timeout_s or language.timeout_s,
        memory_mb=task.memory_mb or language.memory_mb,
        num_pids=language.num_pids,
    )


def _report_directory(scratch: Path) -> Path:
    """Made after the agent's stage, below a directory of a random name; all that it gets has random names, too."""
    directory = scratch / "report"
    directory.mkdir()
    directory.chmod(0o777)  # the sandbox's user may be another; the scratch directory above is ours alone
    return directory


async def _count_changes(sandbox: Sandbox, written: dict[str, bytes]) -> tuple[int, int]:
    """Test files that say something else after the run; those that are gone, or have something else in their place."""
    num_changed = num_missing = 0
    for path, data in written.items():
        try:
            num_changed += await sandbox.read_file(path) != data
        except PathError:
            num_missing += 1
    return num_changed, num_missing


def _change(num_changed: int, num_written: int) -> Violation | None:
    evidence = f"{num_changed} of {num_written} test files aren't what they were before the run"
    return Violation("tests_changed", "", evidence) if num_changed else None


def _files_below(tree: Path) -> list[str]:
    found = []
    for folder, _, names in os.walk(tree):
        prefix = Path(folder).relative_to(tree)
        found += [(prefix / name).as_posix() for name in names if not os.path.islink(os.path.join(folder, name))]
    return sorted(found)
