"""Builds images on one Docker engine: Debian, the base on it, and a language on the base.

An image carries the hash of what it was made of in a label, so what is there already isn't built again. Debian comes
from the local swe-rl/debian, made by mmdebstrap without any image registry, or from a public image that is named.
Nothing here runs code of a repository or of a task.
"""

import logging
import shutil
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, DockerException, ImageNotFound
from docker.models.images import Image
from requests.exceptions import ConnectionError as RequestConnectionError
from requests.exceptions import Timeout

from swe_rl.errors import ConfigError, SandboxError, SandboxUnavailableError
from swe_rl.images.context import Recipe, language_recipe, read_dockerfile, write_context
from swe_rl.task.language import LanguageSpec

logger = logging.getLogger(__name__)

DEBIAN, BASE = "swe-rl/debian", "swe-rl/base"
SUITE = "bookworm"
LABEL, CONTENT_LABEL = "swe-rl.image", "swe-rl.content"
BUILD_TIMEOUT_S = 3600
# As the public slim images leave them out; packages that are installed later go by the same rules.
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/man/*/*")


@dataclass(frozen=True, slots=True)
class Built:
    """One image: `own_bytes` is what it adds to the base, `versions` the installed ones of the packages it asks for."""

    label: str
    name: str
    is_cached: bool
    size_bytes: int
    own_bytes: int
    versions: dict[str, str]
    content: str
    seconds: float


class Builder:
    """`base`: a public image to stand on (pulled if absent), else the local Debian, made if absent."""

    def __init__(self, root: Path, cache_dir: Path, base: str | None = None, is_forced: bool = False) -> None:
        """Raises SandboxUnavailableError where no engine answers."""
        try:
            self._client = docker.from_env(timeout=BUILD_TIMEOUT_S)
            self._client.ping()
        except (DockerException, RequestConnectionError, Timeout) as error:
            raise SandboxUnavailableError(
                f"docker: no engine answers: {error}; start one or set DOCKER_HOST"
            ) from error
        self._root, self._cache_dir, self._base, self._is_forced = root, cache_dir, base, is_forced

    def build_base(self) -> Built:
        """What every language stands on."""
        debian = self._pulled(self._base) if self._base else self._debian()
        recipe = Recipe(BASE, "base", read_dockerfile(self._root / "base"), below=str(debian.id))
        return self._build(recipe, str(debian.id), 0)

    def build(self, languages: list[LanguageSpec], base: Built, num_jobs: int = 1) -> Iterator[Built | SandboxError]:
        """In the order given; the failure of one doesn't keep the others from being built."""
        recipes = [language_recipe(language, base.content) for language in languages]
        with ThreadPoolExecutor(num_jobs) as pool:
            yield from pool.map(lambda recipe: self._outcome(recipe, base), recipes)

    def close(self) -> None:
        self._client.close()

    def _outcome(self, recipe: Recipe, base: Built) -> Built | SandboxError:
        try:
            return self._build(recipe, BASE, base.size_bytes)
        except SandboxError as error:
            return error

    def _build(self, recipe: Recipe, below: str, below_bytes: int) -> Built:
        started = time.monotonic()
        image = _translated(self._find, recipe.name)
        is_cached = image is not None and image.labels.get(CONTENT_LABEL) == recipe.content and not self._is_forced
        if image is None or not is_cached:
            logger.info("building %s", recipe.name)
            image = _translated(self._make, recipe, below)
        size = int(image.attrs["Size"])
        return Built(
            label=recipe.label,
            name=recipe.name,
            is_cached=is_cached,
            size_bytes=size,
            own_bytes=size - below_bytes,
            versions=_translated(self._versions, recipe) | dict(pin.split("==") for pin in recipe.wheels),
            content=recipe.content,
            seconds=time.monotonic() - started,
        )

    def _make(self, recipe: Recipe, below: str) -> Image:
        self._cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._cache_dir) as context:
            write_context(recipe, self._cache_dir / "wheels", context)
            context.seek(0)
            answer = self._client.api.build(
                fileobj=context,
                custom_context=True,
                tag=recipe.name,
                buildargs={"BASE_IMAGE": below},
                labels={LABEL: recipe.label, CONTENT_LABEL: recipe.content},
                network_mode="host",
                nocache=self._is_forced,
                rm=True,
                forcerm=True,
                decode=True,
            )
            said: deque[str] = deque(maxlen=5)
            for event in answer:
                said.append(" ".join(str(event.get("stream", "")).split()))
                if "error" in event:
                    words = "; ".join(line for line in said if line)
                    raise SandboxError(f"image {recipe.name}: the build failed: {event['error']}: {words}")
        return self._client.images.get(recipe.name)

    def _versions(self, recipe: Recipe) -> dict[str, str]:
        if not recipe.packages:
            return {}
        query = ["dpkg-query", "--show", "--showformat=${Package} ${Version}\\n", *recipe.packages]
        output = self._client.containers.run(recipe.name, query, network_mode="none", remove=True)
        return dict(line.split(" ", 1) for line in output.decode().splitlines())

    def _find(self, name: str) -> Image | None:
        try:
            return self._client.images.get(name)
        except ImageNotFound:
            return None

    def _pulled(self, name: str) -> Image:
        try:
            return _translated(self._find, name) or _translated(self._client.images.pull, name)
        except SandboxError as error:
            raise SandboxUnavailableError(f"image {name}: neither here nor to be pulled: {error}") from error

    def _debian(self) -> Image:
        image = _translated(self._find, DEBIAN)
        if image is not None:
            return image
        if shutil.which("mmdebstrap") is None:
            raise ConfigError(
                f"image {DEBIAN}: isn't here, and mmdebstrap neither: install it, or name a public image: "
                f"--base debian:{SUITE}-slim"
            )
        logger.info("making %s with mmdebstrap", DEBIAN)
        self._cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._cache_dir) as scratch:
            tar = Path(scratch, "debian.tar")
            rules = [f"--dpkgopt=path-exclude={glob}" for glob in _LEFT_OUT]
            command = ["mmdebstrap", "--variant=minbase", "--include=ca-certificates", *rules, SUITE, str(tar)]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                words = result.stderr.strip().splitlines() or ["no reason given"]
                raise SandboxError(f"image {DEBIAN}: mmdebstrap failed: {words[-1]}")
            changes = [f"LABEL {LABEL}=debian"]
            _translated(self._client.api.import_image_from_file, str(tar), DEBIAN, "latest", changes)
        return self._client.images.get(DEBIAN)


def _translated(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (APIError, DockerException, RequestConnectionError, Timeout) as error:
        raise SandboxError(f"docker: {error}") from error
