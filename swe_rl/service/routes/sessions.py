"""Routes of a session's life: make, list, inspect, fork, end; snapshots; leases of owners."""

from fastapi import APIRouter

from swe_rl.service.failures import documented
from swe_rl.service.leases import Lease
from swe_rl.service.routes.context import FILE_DEADLINE_S, Live, Who, check_env, deadline, session_info, using
from swe_rl.service.service import Service
from swe_rl.service.snapshots import Snapshot
from swe_rl.wire import (
    CreateLease,
    CreateSession,
    CreateSnapshot,
    Fork,
    LeaseInfo,
    SessionInfo,
    SnapshotInfo,
)

FORK_DEADLINE_S = 300.0
router = APIRouter(responses=documented(404))


@router.post("/sessions", status_code=201, tags=["sessions"])
async def create_session(body: CreateSession, live: Live, who: Who) -> SessionInfo:
    """A fresh sandbox of a task or a language."""
    check_env(body.env)
    async with deadline(FILE_DEADLINE_S, "creating a session"):
        return await session_info(await live.create(body, who))


@router.get("/sessions", tags=["sessions"])
async def list_sessions(live: Live, who: Who) -> list[SessionInfo]:
    """The caller's own sessions."""
    return [await session_info(session) for session in live.sessions.select(who.name)]


@router.get("/sessions/{session_id}", tags=["sessions"])
async def get_session(session_id: str, live: Live, who: Who) -> SessionInfo:
    return await session_info(live.sessions.find(session_id, who.name))


@router.delete("/sessions/{session_id}", status_code=204, tags=["sessions"])
async def close_session(session_id: str, live: Live, who: Who) -> None:
    """Kills what runs and removes all; safe to call twice, also for a session that never was."""
    if live.sessions.is_alive(session_id):
        live.sessions.find(session_id, who.name)
    async with deadline(FILE_DEADLINE_S, f"closing session {session_id}"):
        await live.sessions.close(session_id)


@router.post("/sessions/{session_id}/fork", status_code=201, tags=["snapshots"])
async def fork_session(session_id: str, body: Fork, live: Live, who: Who) -> list[SessionInfo]:
    """Sessions that begin with this one's files as they are now; processes and /tmp aren't copied."""
    async with using(live, session_id, who.name, FORK_DEADLINE_S, "forking") as session:
        return [await session_info(fork) for fork in await live.fork(session, body, who)]


@router.post("/sessions/{session_id}/snapshots", status_code=201, tags=["snapshots"])
async def create_snapshot(session_id: str, body: CreateSnapshot, live: Live, who: Who) -> SnapshotInfo:
    """Keeps a session's files as they are now, to be forked later, also when the session has ended."""
    if body.lease_id is not None:
        live.leases.find(body.lease_id, who.name)
    async with using(live, session_id, who.name, FORK_DEADLINE_S, "a snapshot") as session:
        return _snapshot_info(await live.snapshots.take(session, body.ttl_s, body.lease_id))


@router.get("/snapshots", tags=["snapshots"])
async def list_snapshots(live: Live, who: Who) -> list[SnapshotInfo]:
    return [_snapshot_info(snapshot) for snapshot in live.snapshots.select(who.name)]


@router.get("/snapshots/{snapshot_id}", tags=["snapshots"])
async def get_snapshot(snapshot_id: str, live: Live, who: Who) -> SnapshotInfo:
    return _snapshot_info(live.snapshots.find(snapshot_id, who.name))


@router.post("/snapshots/{snapshot_id}/fork", status_code=201, tags=["snapshots"])
async def fork_snapshot(snapshot_id: str, body: Fork, live: Live, who: Who) -> list[SessionInfo]:
    snapshot = live.snapshots.find(snapshot_id, who.name)
    async with deadline(FORK_DEADLINE_S, f"forking snapshot {snapshot_id}"):
        return [await session_info(fork) for fork in await live.fork(snapshot, body, who)]


@router.delete("/snapshots/{snapshot_id}", status_code=204, tags=["snapshots"])
async def delete_snapshot(snapshot_id: str, live: Live, who: Who) -> None:
    """Waits for forks that are being made of it."""
    async with deadline(FORK_DEADLINE_S, f"deleting snapshot {snapshot_id}"):
        await live.snapshots.delete(live.snapshots.find(snapshot_id, who.name))


@router.post("/leases", status_code=201, tags=["leases"])
async def create_lease(body: CreateLease, live: Live, who: Who) -> LeaseInfo:
    """What is made under a lease ends when the lease isn't renewed in time."""
    return _lease_info(live, live.leases.create(who.name, body.ttl_s))


@router.get("/leases", tags=["leases"])
async def list_leases(live: Live, who: Who) -> list[LeaseInfo]:
    return [_lease_info(live, lease) for lease in live.leases.select(who.name)]


@router.post("/leases/{lease_id}/renew", tags=["leases"])
async def renew_lease(lease_id: str, live: Live, who: Who) -> LeaseInfo:
    return _lease_info(live, live.leases.renew(lease_id, who.name))


@router.delete("/leases/{lease_id}", status_code=204, tags=["leases"])
async def end_lease(lease_id: str, live: Live, who: Who) -> None:
    """Ends all that was made under it."""
    async with deadline(FORK_DEADLINE_S, f"ending lease {lease_id}"):
        await live.end_lease(live.leases.find(lease_id, who.name))


def _snapshot_info(snapshot: Snapshot) -> SnapshotInfo:
    task = snapshot.blueprint.task
    return SnapshotInfo(
        snapshot_id=snapshot.snapshot_id,
        session_id=snapshot.session_id,
        task_id=task.task_id if task else None,
        language=snapshot.blueprint.language.language,
        expires_in_s=snapshot.expires_in_s,
        lease_id=snapshot.lease_id,
    )


def _lease_info(live: Service, lease: Lease) -> LeaseInfo:
    return LeaseInfo(
        lease_id=lease.lease_id,
        expires_in_s=lease.expires_in_s,
        num_sessions=len(live.sessions.select(lease.owner, lease.lease_id)),
        num_snapshots=len(live.snapshots.select(lease.owner, lease.lease_id)),
    )
