"""A grader that asks a sandbox service: proves tasks where they will be used, from outside, by the public API alone.

Only patches go out and only verdicts come back. The base is run by a patch that adds one file which no test looks at,
since an empty patch is judged without a run.
"""

import asyncio
from collections.abc import Sequence

from swe_rl.client import SandboxClient
from swe_rl.errors import SandboxError, TaskError
from swe_rl.grade.judge import Judgement
from swe_rl.task.spec import TaskSpec
from swe_rl.verdict import Level, Outcome, Verdict

_NAME = "swe-rl-check.txt"
NO_CHANGE = (
    f"diff --git a/{_NAME} b/{_NAME}\nnew file mode 100644\n--- /dev/null\n+++ b/{_NAME}\n@@ -0,0 +1 @@\n+unchanged\n"
)


class RemoteGrader:
    """At most `concurrency` gradings at once."""

    def __init__(self, client: SandboxClient, concurrency: int, level: Level | None = None) -> None:
        self._client = client
        self._level = level
        self._slots = asyncio.Semaphore(concurrency)

    async def compare(self, tasks: Sequence[TaskSpec]) -> None:
        """Raises TaskError where the service's copy of a task is missing or another one."""
        theirs = {task.task_id: task.content_sha256 for task in await self._client.list_tasks()}
        for task in tasks:
            found = theirs.get(task.task_id)
            if found != task.content_sha256:
                what = "isn't there" if found is None else f"has the hash {found[:12]}, here {task.content_sha256[:12]}"
                raise TaskError(f"task {task.task_id!r}: at the service it {what}; serve the same folder of tasks")

    async def grade(self, task: TaskSpec, patch: str, level: Level | None = None) -> Verdict:
        async with self._slots:
            return await self._client.grade_patch(task.task_id, patch, level or self._level)

    async def run_once(self, task: TaskSpec, patch: str = "") -> Judgement:
        """Raises SandboxError for an environment fault."""
        verdict = await self.grade(task, patch or NO_CHANGE)
        if verdict.outcome is Outcome.ENVIRONMENT_ERROR:
            raise SandboxError(str(verdict.signals.get("fault", "unknown fault")))
        return Judgement(
            outcome=verdict.outcome,
            fail_to_pass=verdict.fail_to_pass,
            pass_to_pass=verdict.pass_to_pass,
            violations=verdict.violations,
            signals={"problem": "", **verdict.signals},
        )
