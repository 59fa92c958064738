"""Routes of tasks and verdicts: what there is to do, the patch of a session, and what the hidden tests say of it.

An answer never holds a hidden test, a solution, or a path of the host.
"""

import asyncio
import hashlib
import re
from typing import Annotated

from fastapi import APIRouter, Query

from swe_rl.service.failures import documented
from swe_rl.service.routes.context import (
    FILE_DEADLINE_S,
    GRADE_DEADLINE_S,
    Live,
    Who,
    deadline,
    task_info,
    using,
)
from swe_rl.wire import GradePatch, PatchBody, PoolInfo, Prefetch, TaskInfo, VerdictBody

router = APIRouter(responses=documented(404))


@router.get("/tasks", tags=["tasks"])
async def list_tasks(
    live: Live, who: Who, split: Annotated[str | None, Query(max_length=200)] = None
) -> list[TaskInfo]:
    """All tasks, or those of one split."""
    tasks = live.tasks.tasks(split)
    return await asyncio.to_thread(lambda: [task_info(task) for task in tasks])  # the first call hashes all folders


@router.get("/tasks/{task_id}", tags=["tasks"])
async def get_task(task_id: str, live: Live, who: Who) -> TaskInfo:
    return await asyncio.to_thread(task_info, live.tasks.get(task_id))


@router.post("/pool", tags=["tasks"])
async def prefetch(body: Prefetch, live: Live, who: Who) -> PoolInfo:
    """Says which task's sandboxes will be asked for soon, so that they wait by then."""
    blueprint = await live.blueprint(body.task_id)
    num_wanted = live.pool.want(blueprint, body.count)
    return PoolInfo(capacity=live.pool.capacity, num_warm=live.pool.num_warm(blueprint.key), num_wanted=num_wanted)


@router.get("/sessions/{session_id}/patch", tags=["grading"])
async def get_patch(session_id: str, live: Live, who: Who) -> PatchBody:
    """What was changed since the task's base, computed on the host: the session's own git plays no part in it."""
    async with using(live, session_id, who.name, FILE_DEADLINE_S, "the patch") as session:
        patch = await live.gradings.capture_patch(session)
    digest = hashlib.sha256(patch.encode("utf-8", "surrogatepass")).hexdigest()
    return PatchBody(patch=patch, sha256=digest, num_files=len(re.findall(r"^diff --git ", patch, re.MULTILINE)))


@router.post("/sessions/{session_id}/grade", tags=["grading"])
async def grade(session_id: str, live: Live, who: Who) -> VerdictBody:
    """Runs the hidden tests on the session's patch in a fresh sandbox. The verdict stands: it is given again."""
    async with using(live, session_id, who.name, GRADE_DEADLINE_S, "grading") as session:
        verdict = await live.gradings.grade_session(session)
    return VerdictBody.model_validate(verdict.to_dict())


@router.post("/grades", tags=["grading"])
async def grade_patch(body: GradePatch, live: Live, who: Who) -> VerdictBody:
    """Grades a patch against a task without any session."""
    async with deadline(GRADE_DEADLINE_S, f"grading a patch for {body.task_id}"):
        verdict = await live.gradings.grade_patch(body.task_id, body.patch, who.name, body.level)
    return VerdictBody.model_validate(verdict.to_dict())
