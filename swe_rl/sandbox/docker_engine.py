"""The Docker engine behind one backend: connection, blocking calls in threads, ownership of containers.

Every container carries its owner in a label: host, process id, that process's start, and the backend. What a dead
process of this host left is removed when the next backend connects. Nothing here runs a command.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import docker
from docker.errors import APIError, DockerException, NotFound
from docker.models.containers import Container
from requests.exceptions import ConnectionError as RequestConnectionError
from requests.exceptions import Timeout

from swe_rl.errors import SandboxError, SandboxTimeoutError, SandboxUnavailableError
from swe_rl.sandbox.instance import is_dead, new_instance_id

logger = logging.getLogger(__name__)
T = TypeVar("T")

API_TIMEOUT_S = 60
MAX_THREADS = 64
OWNER_LABEL = "swe-rl.owner"
LOG_SLACK_S = 1.0  # the log's clock isn't quite the monotonic one


class Engine:
    """One engine (DOCKER_HOST, else the local one); connects at the first use."""

    def __init__(self) -> None:
        self.owner = new_instance_id()
        self._executor = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="docker")
        self._client: docker.DockerClient | None = None
        self._is_closed = False

    def start(self, function: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        """Runs a blocking function in a thread; its failures become this project's errors."""
        return asyncio.get_running_loop().run_in_executor(self._executor, _translated, function, *arguments)

    def connect(self) -> docker.DockerClient:
        """Blocking. Raises SandboxUnavailableError where no engine answers."""
        self.require_open()
        if self._client is None:
            try:
                client = docker.from_env(timeout=API_TIMEOUT_S, max_pool_size=MAX_THREADS)
                client.ping()
            except (DockerException, RequestConnectionError, Timeout) as error:
                where = os.environ.get("DOCKER_HOST", "the local socket")
                raise SandboxUnavailableError(
                    f"docker: no engine answers at {where}: {error}; start one or set DOCKER_HOST"
                ) from error
            self._client = client
            remove_abandoned(client)
        return self._client

    async def close(self) -> None:
        """Removes every container of this owner."""
        self._is_closed = True
        client, self._client = self._client, None
        try:
            if client is not None:
                await self.start(_remove_labelled, client, f"{OWNER_LABEL}={self.owner}")
                client.close()
        finally:
            self._executor.shutdown(wait=False)

    def require_open(self) -> None:
        if self._is_closed:
            raise SandboxError("docker: the backend is closed")


def remove_container(container: Container) -> None:
    """With its volumes, running or not; nothing happens where it's gone or going already."""
    try:
        container.remove(force=True, v=True)
    except NotFound:
        return
    except APIError as error:
        if error.status_code != 409:
            raise


def _translated(function: Callable[..., T], *arguments: Any) -> T:
    try:
        return function(*arguments)
    except Timeout as error:
        raise SandboxTimeoutError(f"docker: the engine didn't answer within {API_TIMEOUT_S} s: {error}") from error
    except RequestConnectionError as error:
        raise SandboxUnavailableError(f"docker: the connection to the engine was lost: {error}") from error
    except DockerException as error:
        raise SandboxError(f"docker: {error}") from error
    except SandboxError:  # some of these are OSErrors, too
        raise
    except OSError as error:
        raise SandboxError(f"docker: {error.strerror or error}") from error


def _remove_labelled(client: docker.DockerClient, label: str) -> None:
    for container in client.containers.list(all=True, filters={"label": label}, ignore_removed=True):
        remove_container(container)


def remove_abandoned(client: docker.DockerClient) -> int:
    """Removes the containers of this host's dead processes; how many."""
    count = 0
    for container in client.containers.list(all=True, filters={"label": OWNER_LABEL}, ignore_removed=True):
        if is_dead(container.labels[OWNER_LABEL]):
            logger.info("removing container %s, left by %s", container.name, container.labels[OWNER_LABEL])
            remove_container(container)
            count += 1
    return count


def log_has_oom(container_id: str, since_s: float) -> bool:
    """Whether this host's kernel log tells of an OOM kill in the container's group; false where it can't be read."""
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        while True:
            try:
                record = os.read(log, 8192)
            except BrokenPipeError:  # a record was overwritten meanwhile; the next read goes on behind it
                continue
            except OSError:
                return False
            head, _, text = record.partition(b";")
            if container_id.encode() in text and text.startswith(b"oom-kill:"):
                microseconds = head.split(b",")[2]
                if int(microseconds) / 1e6 >= since_s - LOG_SLACK_S:
                    return True
    finally:
        os.close(log)
