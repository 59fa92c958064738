"""Opens a backend by name; `auto` takes bubblewrap, and Docker where the kernel forbids user namespaces."""

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from swe_rl.errors import SandboxUnavailableError
from swe_rl.sandbox.base import Backend
from swe_rl.sandbox.bubblewrap import BubblewrapBackend
from swe_rl.task.language import LanguageSpec

logger = logging.getLogger(__name__)

BackendKind = Literal["auto", "bubblewrap", "docker", "docker-runsc"]
_MIN_SHM_BYTES = 2 * 1024**3


async def open_backend(
    kind: BackendKind, languages: Mapping[str, LanguageSpec], scratch_dir: Path | None = None
) -> Backend:
    """A backend that has passed its own check. Raises SandboxUnavailableError, for `auto` with both reasons."""
    scratch = scratch_dir or default_scratch_dir()
    if kind in ("docker", "docker-runsc"):
        return await _checked(_docker(languages, scratch, kind))
    try:
        return await _checked(BubblewrapBackend(languages, scratch))
    except SandboxUnavailableError as refusal:
        if kind == "bubblewrap":
            raise
        try:
            backend = await _checked(_docker(languages, scratch, "docker"))
        except SandboxUnavailableError as other:
            raise SandboxUnavailableError(f"no sandbox can be made here. {refusal}. {other}") from other
        logger.warning("bubblewrap can't be used (%s); using Docker instead", refusal)
        return backend


def default_scratch_dir() -> Path:
    """In memory where /dev/shm has room (small files are made far faster there), else below the temporary directory."""
    shm = Path("/dev/shm")
    if shm.is_dir() and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free >= _MIN_SHM_BYTES:
        return shm / f"swe-rl-{os.getuid()}"
    return Path(tempfile.gettempdir()) / f"swe-rl-{os.getuid()}"


def _docker(languages: Mapping[str, LanguageSpec], scratch_dir: Path, kind: str) -> Backend:
    from swe_rl.sandbox.docker import DockerBackend  # the SDK is slow to import and seldom needed

    backend: Backend = DockerBackend(languages, scratch_dir, "runsc" if kind == "docker-runsc" else "runc")
    return backend


async def _checked(backend: Backend) -> Backend:
    try:
        await backend.check()
    except BaseException:
        await backend.close()
        raise
    return backend
