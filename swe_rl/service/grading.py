"""What is decided about a session's work: visible tests, the patch, the verdict. All of it on the host, as data.

A verdict stands: a session is graded once, except where the environment failed. No name of a hidden test leaves here.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from swe_rl.errors import PatchError, PathError, SandboxError
from swe_rl.grade.grader import Grader
from swe_rl.grade.patch import make_patch
from swe_rl.grade.run import task_limits
from swe_rl.sandbox.base import RUNNER_DIR, Command, CommandResult
from swe_rl.service.blueprint import require_task
from swe_rl.service.journal import Journal
from swe_rl.service.metrics import ServiceMetrics
from swe_rl.service.session import Session
from swe_rl.task.language import LanguageSpec, fill_command
from swe_rl.task.spec import TaskSpec
from swe_rl.task.taskset import TaskSet
from swe_rl.verdict import Level, Outcome, TestCounts, Verdict


class Gradings:
    """Judges sessions and bare patches; every verdict is counted and noted down."""

    def __init__(
        self,
        grader: Grader,
        tasks: TaskSet,
        languages: Mapping[str, LanguageSpec],
        metrics: ServiceMetrics,
        journal: Journal,
    ) -> None:
        self._grader = grader
        self._tasks = tasks
        self._languages = languages
        self._metrics = metrics
        self._journal = journal

    async def run_visible_tests(self, session: Session) -> CommandResult:
        """The tests that the agent may see, with the language's runner at /runner. Raises TaskError without a task."""
        task = require_task(session.blueprint, "run_tests")
        language = self._languages[task.language]
        argv = task.visible_command or language.visible_command
        command = Command(
            argv=fill_command(argv, report="/tmp/visible.report", runner=RUNNER_DIR, nonce="/tmp/visible.nonce"),
            env=session.blueprint.spec.env,
            timeout_s=task_limits(task, language).timeout_s,
            runner_dir=language.runner_dir,
        )
        return await session.sandbox.run(command)

    async def capture_patch(self, session: Session) -> str:
        """The difference between the base and the working directory, computed on the host. Raises PathError."""
        tree = await session.sandbox.read_tree()
        return await asyncio.to_thread(make_patch, session.base, tree, session.blueprint.language.ignored_globs)

    async def grade_session(self, session: Session) -> Verdict:
        """Grades once: a repeated call gives the first verdict, except where the environment failed.

        Raises SandboxError where the session ends meanwhile: that cancels the grading, not its caller.
        """
        task = require_task(session.blueprint, "grade")
        earlier = session.grading
        if earlier is None or (earlier.done() and not _is_final(earlier)):
            earlier = session.grading = asyncio.create_task(self._grade(session, task))
        try:
            return await asyncio.shield(earlier)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not earlier.cancelled() or (caller is not None and caller.cancelling()):
                raise
            raise SandboxError(f"session {session.session_id}: ended while it was graded") from None

    async def grade_patch(self, task_id: str, patch: str, owner: str, level: Level | None = None) -> Verdict:
        """Grades a patch that no session made. Raises TaskError for an unknown task."""
        verdict = _without_words(await self._grader.grade(self._tasks.get(task_id), patch, level))
        self._note(verdict, None, owner, task_id)
        return verdict

    async def _grade(self, session: Session, task: TaskSpec) -> Verdict:
        try:
            patch = await self.capture_patch(session)
        except (PathError, PatchError) as error:  # what the agent left can't be a patch: its own doing, not a fault
            verdict = Verdict(
                Outcome.PATCH_FAILED,
                0.0,
                TestCounts(0, len(task.fail_to_pass)),
                TestCounts(0, len(task.pass_to_pass)),
                signals={"patch": str(error)},
            )
        else:
            verdict = _without_words(await self._grader.grade(task, patch))
        self._note(verdict, session.session_id, session.terms.owner, task.task_id)
        return verdict

    def _note(self, verdict: Verdict, session_id: str | None, owner: str, task_id: str) -> None:
        self._metrics.grades.labels(verdict.outcome.value).inc()
        self._journal.graded(session_id, owner, task_id, verdict)


def _without_words(verdict: Verdict) -> Verdict:
    """A fault keeps its class alone: its words, which the grader has logged, may name hidden files."""
    fault = verdict.signals.get("fault")
    if fault is None:
        return verdict
    return replace(verdict, signals=verdict.signals | {"fault": str(fault).partition(":")[0]})


def _is_final(grading: "asyncio.Task[Verdict]") -> bool:
    if grading.cancelled() or grading.exception() is not None:
        return False
    return grading.result().outcome is not Outcome.ENVIRONMENT_ERROR
