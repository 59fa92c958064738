"""Routes of a session's files: one file as bytes, a directory as a tar."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from swe_rl.errors import PathError
from swe_rl.sandbox.tree import MAX_FILE_BYTES
from swe_rl.service.archive import UNPACK_S, pack, unpack
from swe_rl.service.failures import documented
from swe_rl.service.routes.context import FILE_DEADLINE_S, SLACK_S, Live, Who, using

ARCHIVE_DEADLINE_S = 300.0
TAR = "application/x-tar"
router = APIRouter(prefix="/sessions/{session_id}", responses=documented(404), tags=["files"])
Path = Annotated[str, Query(max_length=4096, description="relative to the working directory", examples=["src/a.py"])]
Folder = Annotated[str, Query(max_length=4096, description="relative to the working directory", examples=["src"])]


def _bytes_of(media_type: str) -> dict[str, Any]:
    return {"content": {media_type: {"schema": {"type": "string", "format": "binary"}}}}


@router.get("/files", response_class=Response, responses={200: _bytes_of("application/octet-stream")})
async def read_file(
    session_id: str,
    live: Live,
    who: Who,
    path: Path,
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_FILE_BYTES)] = MAX_FILE_BYTES,
) -> Response:
    """The bytes of a regular file, whole or a part; no link is followed."""
    async with using(live, session_id, who.name, FILE_DEADLINE_S, "reading a file") as session:
        data = await session.sandbox.read_file(path)
    return Response(data[offset : offset + limit], media_type="application/octet-stream")


@router.put("/files", status_code=204, openapi_extra={"requestBody": _bytes_of("application/octet-stream")})
async def write_file(session_id: str, request: Request, live: Live, who: Who, path: Path) -> None:
    """Writes a whole file at once, with its parents; an executable stays one."""
    live.sessions.find(session_id, who.name)  # before the body is read
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_FILE_BYTES:
            raise PathError(f"path {path!r}: more than the {MAX_FILE_BYTES} bytes that a file may have")
    async with using(live, session_id, who.name, FILE_DEADLINE_S, "writing a file") as session:
        await session.sandbox.write_file(path, bytes(data))


@router.get("/archive", response_class=Response, responses={200: _bytes_of(TAR)})
async def read_archive(session_id: str, live: Live, who: Who, path: Folder = ".") -> Response:
    """A directory as a plain tar: regular files and links, nothing of .git."""
    async with using(live, session_id, who.name, ARCHIVE_DEADLINE_S, "packing an archive") as session:
        tree = await session.sandbox.read_tree()
        data = await asyncio.to_thread(pack, tree, path)
    return Response(data, media_type=TAR)


@router.put("/archive", status_code=204, openapi_extra={"requestBody": _bytes_of(TAR)})
async def write_archive(session_id: str, request: Request, live: Live, who: Who, path: Folder = ".") -> None:
    """Unpacks a plain tar below a directory, inside the sandbox and with its rights."""
    live.sessions.find(session_id, who.name)
    data = await request.body()
    async with using(live, session_id, who.name, UNPACK_S + SLACK_S, "unpacking an archive") as session:
        await unpack(session.sandbox, path, data)
