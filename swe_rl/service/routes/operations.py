"""Routes for operators, open to whoever reaches the service: is it alive, can it take sessions, what has it counted."""

from fastapi import APIRouter, Response

import swe_rl
from swe_rl.service.failures import documented
from swe_rl.service.metrics import CONTENT_TYPE
from swe_rl.service.routes.context import Live
from swe_rl.wire import Health, Ready

router = APIRouter(tags=["operations"])


@router.get("/health", responses={500: documented()[500]})
async def health(live: Live) -> Health:
    """Answers for as long as the process does."""
    return Health(
        status="ok",
        version=swe_rl.__version__,
        backend=live.backend.name,
        num_sessions=len(live.sessions),
        num_tasks=len(live.tasks),
    )


@router.get("/ready", responses={503: {"model": Ready, "description": "No new session can be made now."}})
async def ready(live: Live, response: Response) -> Ready:
    """Whether a new session can be made now, and if not why."""
    problems = live.problems()
    response.status_code = 503 if problems else 200
    return Ready(is_ready=not problems, problems=problems)


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
)
async def metrics(live: Live) -> Response:
    """Prometheus's text format."""
    return Response(live.metrics.render(), media_type=CONTENT_TYPE)
