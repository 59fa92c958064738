"""Grades one patch in sandboxes that the agent has never seen. Only the patch crosses from the agent's side.

    patch -> the runs of a level, each in a fresh sandbox -> verdict

Whatever the patch does ends in a verdict. A fault of the environment is retried once, from nothing, then it's
ENVIRONMENT_ERROR with no reward.
"""

import asyncio
import hashlib
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from swe_rl.errors import ConfigError, PatchError, SandboxError, TaskError
from swe_rl.grade.judge import Judgement
from swe_rl.grade.level import run_plans
from swe_rl.grade.parsers import PARSERS
from swe_rl.grade.run import TestRun, ViolationFound
from swe_rl.sandbox.base import Backend
from swe_rl.task.language import LanguageSpec
from swe_rl.task.spec import TaskSpec
from swe_rl.verdict import Level, Outcome, TestCounts, Verdict

logger = logging.getLogger(__name__)

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
        level: Level = "standard",
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
        self._level = level

    async def grade(self, task: TaskSpec, patch: str, level: Level | None = None) -> Verdict:
        """Never raises for what the patch does. Raises TaskError for a task whose language isn't known.

        `level`: instead of the grader's own.
        """
        self._language(task)
        if patch.strip():
            async with self._slots:
                started = time.monotonic()
                verdict = await self._grade_with_retry(task, patch, level or self._level)
        else:
            started = time.monotonic()
            verdict = Verdict(Outcome.EMPTY_PATCH, 0.0, *_no_counts(task))
        sha256 = hashlib.sha256(patch.encode("utf-8", "surrogatepass")).hexdigest()
        verdict = replace(verdict, patch_sha256=sha256, duration_s=time.monotonic() - started)
        logger.info("graded %s: %s in %.2f s", task.task_id, verdict.outcome.value, verdict.duration_s)
        return verdict

    async def run_once(self, task: TaskSpec, patch: str = "") -> Judgement:
        """One run of the hidden tests over the patched base, for `check`. Raises SandboxError for an environment fault,
        PatchError and ViolationFound for the patch."""
        async with self._slots:
            return await self._judge(task, patch, "standard", {})

    async def _grade_with_retry(self, task: TaskSpec, patch: str, level: Level) -> Verdict:
        for attempt in range(1, ENVIRONMENT_ATTEMPTS + 1):
            signals: dict[str, Any] = {"attempts": attempt, "level": level}
            try:
                judgement = await self._judge(task, patch, level, signals)
            except PatchError as error:
                return Verdict(Outcome.PATCH_FAILED, 0.0, *_no_counts(task), signals=signals | {"patch": str(error)})
            except ViolationFound as error:
                return Verdict(Outcome.VIOLATION, 0.0, *_no_counts(task), error.violations, signals)
            except (SandboxError, OSError) as error:
                logger.warning("grading %s (%s): attempt %d: %s", task.task_id, task.language, attempt, error)
                fault = f"{type(error).__name__}: {error}"
            else:
                return _verdict(judgement, signals)
        return Verdict(
            Outcome.ENVIRONMENT_ERROR, None, *_no_counts(task), signals={"attempts": attempt, "fault": fault}
        )

    async def _judge(self, task: TaskSpec, patch: str, level: Level, signals: dict[str, Any]) -> Judgement:
        """All runs of a level from nothing, up to the first that doesn't resolve the task."""
        run = TestRun(self._backend, task, self._language(task), patch)
        judgements = []
        for plan in run_plans(level, task):
            judgements.append(await run.run(plan, self._scratch_dir, signals))
            if judgements[-1].outcome is not Outcome.RESOLVED:
                break
        signals["num_runs"] = len(judgements)
        return judgements[-1]

    def _language(self, task: TaskSpec) -> LanguageSpec:
        try:
            return self._languages[task.language]
        except KeyError:
            known = ", ".join(sorted(self._languages))
            raise TaskError(f"task {task.task_id}: language {task.language!r} isn't one of: {known}") from None


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
