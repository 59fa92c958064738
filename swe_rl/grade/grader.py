"""Grades one patch in a sandbox that the agent has never seen. Only the patch crosses from the agent's side.

    fresh copy of the base -> apply patch -> restore protected files -> write hidden tests      (on the host, as data)
    -> one command in a fresh sandbox -> read the report -> parse -> judge                      (product code runs here)

Whatever the patch does ends in a verdict. A fault of the environment is retried once, then it's ENVIRONMENT_ERROR
with no reward.
"""

import asyncio
import hashlib
import logging
import secrets
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from swe_rl.errors import ConfigError, PatchError, SandboxError, TaskError
from swe_rl.grade.judge import Judgement, judge
from swe_rl.grade.parsers import PARSERS
from swe_rl.grade.parsers.report import ParsedReport
from swe_rl.grade.patch import apply_patch
from swe_rl.grade.restore import restore_protected, write_overlay
from swe_rl.grade.rules import find_flags, find_violations
from swe_rl.grade.rules.evidence import Evidence
from swe_rl.grade.tree import copy_tree, read_report
from swe_rl.sandbox.base import REPORT_DIR, RUNNER_DIR, Backend, Command, CommandResult, Limits, SandboxSpec
from swe_rl.task.language import LanguageSpec, fill_command
from swe_rl.task.spec import TaskSpec
from swe_rl.verdict import Outcome, TestCounts, Verdict, Violation

logger = logging.getLogger(__name__)

OUTPUT_LIMIT_BYTES = 256 * 1024
ENVIRONMENT_ATTEMPTS = 2


class Grader:
    """Grades at most `concurrency` patches at once; `scratch_dir` holds trees while they are being built.

    A scratch_dir on the backend's own file system lets the backend take a tree over without a copy.
    """

    def __init__(
        self,
        backend: Backend,
        languages: dict[str, LanguageSpec],
        concurrency: int = 2,
        scratch_dir: Path | None = None,
    ) -> None:
        """Raises ConfigError for a language whose report format has no parser."""
        for language in languages.values():
            if language.report_format not in PARSERS:
                known = ", ".join(sorted(PARSERS))
                raise ConfigError(f"{language.root}: report_format {language.report_format!r} isn't one of: {known}")
        self._backend = backend
        self._languages = languages
        self._slots = asyncio.Semaphore(concurrency)
        self._scratch_dir = scratch_dir

    async def grade(self, task: TaskSpec, patch: str) -> Verdict:
        """Never raises for what the patch does. Raises TaskError for a task whose language isn't known."""
        language = self._language(task)
        if patch.strip():
            async with self._slots:
                started = time.monotonic()
                verdict = await self._grade_with_retry(task, language, patch)
        else:
            started = time.monotonic()
            verdict = Verdict(Outcome.EMPTY_PATCH, 0.0, *_no_counts(task))
        sha256 = hashlib.sha256(patch.encode("utf-8", "surrogatepass")).hexdigest()
        verdict = replace(verdict, patch_sha256=sha256, duration_s=time.monotonic() - started)
        logger.info("graded %s: %s in %.2f s", task.task_id, verdict.outcome.value, verdict.duration_s)
        return verdict

    async def run_base(self, task: TaskSpec) -> Judgement:
        """Runs the hidden tests over the unpatched base, for `check`. Raises SandboxError for an environment fault."""
        async with self._slots:
            return await self._run_attempt(task, self._language(task), "", {})

    async def _grade_with_retry(self, task: TaskSpec, language: LanguageSpec, patch: str) -> Verdict:
        for attempt in range(1, ENVIRONMENT_ATTEMPTS + 1):
            signals: dict[str, Any] = {"attempts": attempt}
            try:
                judgement = await self._run_attempt(task, language, patch, signals)
            except PatchError as error:
                return Verdict(Outcome.PATCH_FAILED, 0.0, *_no_counts(task), signals=signals | {"patch": str(error)})
            except _ViolationFound as error:
                return Verdict(Outcome.VIOLATION, 0.0, *_no_counts(task), error.violations, signals)
            except (SandboxError, OSError) as error:
                logger.warning("grading %s (%s): attempt %d: %s", task.task_id, language.language, attempt, error)
                fault = f"{type(error).__name__}: {error}"
            else:
                return _verdict(judgement, signals)
        return Verdict(
            Outcome.ENVIRONMENT_ERROR, None, *_no_counts(task), signals={"attempts": attempt, "fault": fault}
        )

    async def _run_attempt(
        self, task: TaskSpec, language: LanguageSpec, patch: str, signals: dict[str, Any]
    ) -> Judgement:
        """One grading from nothing; `signals` gets what was seen on the way."""
        with tempfile.TemporaryDirectory(prefix="grade-", dir=self._scratch_dir, ignore_cleanup_errors=True) as name:
            scratch = Path(name)
            signals |= await asyncio.to_thread(_build_tree, task, language, patch, scratch / "tree")
            result, report = await self._run_tests(task, language, scratch)
        return judge(task, result, report)

    async def _run_tests(
        self, task: TaskSpec, language: LanguageSpec, scratch: Path
    ) -> tuple[CommandResult, ParsedReport]:
        report_dir, word, nonce = scratch / "report", secrets.token_hex(8), secrets.token_hex(16)
        report_name, nonce_name = f"{word}.report", f"{word}.nonce"
        report_dir.mkdir()
        report_dir.chmod(0o777)  # the sandbox's user may be another; the scratch directory above is ours alone
        (report_dir / nonce_name).write_text(nonce + "\n")  # a file, since a command line stays readable for all
        (report_dir / nonce_name).chmod(0o644)  # whatever the umask
        limits = task_limits(task, language)
        template = task.test_command or language.test_command
        command = Command(
            argv=fill_command(
                template,
                report=f"{REPORT_DIR}/{report_name}",
                runner=RUNNER_DIR,
                nonce=f"{REPORT_DIR}/{nonce_name}",
            ),
            env=language.env,
            timeout_s=limits.timeout_s,
            output_limit_bytes=OUTPUT_LIMIT_BYTES,
            report_dir=report_dir,
            runner_dir=language.runner_dir,
        )
        spec = SandboxSpec(scratch / "tree", language.language, limits, language.env, is_disposable=True)
        sandbox = await self._backend.create(spec)
        try:
            result = await sandbox.run(command)
        finally:
            await sandbox.close()
        # Megabytes that the run may have written: reading them here would hold up every other session.
        report = await asyncio.to_thread(_parse_report, language, report_dir / report_name, result)
        if report.is_parsed and any("{nonce}" in part for part in template) and report.nonce != nonce:
            report = replace(report, is_parsed=False, problem="the report's end mark lacks the runner's nonce")
        return result, report

    def _language(self, task: TaskSpec) -> LanguageSpec:
        try:
            return self._languages[task.language]
        except KeyError:
            known = ", ".join(sorted(self._languages))
            raise TaskError(f"task {task.task_id}: language {task.language!r} isn't one of: {known}") from None


class _ViolationFound(Exception):
    """Ends an attempt before anything runs."""

    def __init__(self, violations: tuple[Violation, ...]) -> None:
        super().__init__(f"{len(violations)} violations")
        self.violations = violations


def task_limits(task: TaskSpec, language: LanguageSpec) -> Limits:
    """The language's limits with the task's overrides."""
    return Limits(
        timeout_s=task.timeout_s or language.timeout_s,
        memory_mb=task.memory_mb or language.memory_mb,
        num_pids=language.num_pids,
    )


def _build_tree(task: TaskSpec, language: LanguageSpec, patch: str, tree: Path) -> dict[str, Any]:
    """Lays the tree to test; returns signals: protected paths that were put back, and flags that cost nothing.

    Raises PatchError and _ViolationFound.
    """
    copy_tree(task.environment_dir, tree)
    restored: tuple[str, ...] = ()
    flags: tuple[Violation, ...] = ()
    if patch:
        parsed = apply_patch(patch, tree, scratch_dir=tree.parent)
        evidence = Evidence(task, language, parsed, tree)
        violations = find_violations(evidence)
        if violations:
            raise _ViolationFound(violations)
        flags = find_flags(evidence)
        restored = restore_protected(parsed, task, language, tree)
    write_overlay(task, tree)
    return {"restored": list(restored), "flags": [asdict(flag) for flag in flags]}


def _parse_report(language: LanguageSpec, path: Path, result: CommandResult) -> ParsedReport:
    data, problem = read_report(path.parent, path.name)
    report = PARSERS[language.report_format](data, result.stdout, result.stderr)
    return replace(report, problem=problem) if problem and not report.is_parsed else report


def _verdict(judgement: Judgement, signals: dict[str, Any]) -> Verdict:
    return Verdict(
        outcome=judgement.outcome,
        reward=1.0 if judgement.outcome is Outcome.RESOLVED else 0.0,
        fail_to_pass=judgement.fail_to_pass,
        pass_to_pass=judgement.pass_to_pass,
        violations=judgement.violations,
        signals=signals | judgement.signals,
    )


def _no_counts(task: TaskSpec) -> tuple[TestCounts, TestCounts]:
    return TestCounts(0, len(task.fail_to_pass)), TestCounts(0, len(task.pass_to_pass))
