"""What an image is made of: its Dockerfile, the wheels it copies, the image below it; and a hash over all of these.

The context that goes to the engine is the Dockerfile and, for a language that Debian lacks, wheels from a Python
package index, fetched on this machine and unpacked below wheels/. Nothing else of the repository gets into an image.
"""

import hashlib
import io
import logging
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from swe_rl.errors import ConfigError, SandboxError
from swe_rl.task.language import LanguageSpec

logger = logging.getLogger(__name__)

FETCH_TIMEOUT_S = 900
_PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9._+!-]*")


@dataclass(frozen=True, slots=True)
class Recipe:
    """An image to build: `below` identifies the image that it stands on."""

    name: str
    label: str
    dockerfile: bytes
    wheels: tuple[str, ...] = ()
    below: str = ""

    @property
    def content(self) -> str:
        """Equal exactly if a build would do the same; what a distribution's servers hold on a day isn't in it."""
        parts = [self.label.encode(), self.dockerfile, *(pin.encode() for pin in self.wheels), self.below.encode()]
        digest = hashlib.sha256()
        for part in parts:
            digest.update(b"%d\n" % len(part) + part)
        return digest.hexdigest()

    @property
    def packages(self) -> tuple[str, ...]:
        """The Debian packages that the Dockerfile asks for by name."""
        script = self.dockerfile.decode().replace("\\\n", " ")
        asked = [step.split()[2:] for step in re.split("&&|\n", script) if "apt-get install" in step]
        return tuple(word for words in asked for word in words if not word.startswith("-"))


def image_name(language: LanguageSpec) -> str:
    """As the docker backend looks for it."""
    return str(language.image.get("name") or f"swe-rl/{language.language}")


def language_recipe(language: LanguageSpec, below: str) -> Recipe:
    """Raises ConfigError for a language without a Dockerfile, or a wheel that isn't pinned to one version."""
    wheels = tuple(language.image.get("wheels", ()))
    for pin in wheels:
        if not _PIN.fullmatch(pin):
            raise ConfigError(f"{language.root}/sandbox.toml: image.wheels: {pin!r} isn't a pin like name==1.2.3")
    return Recipe(image_name(language), language.language, read_dockerfile(language.root), wheels, below)


def read_dockerfile(folder: Path) -> bytes:
    try:
        return (folder / "Dockerfile").read_bytes()
    except OSError as error:
        raise ConfigError(f"{folder / 'Dockerfile'}: can't be read: {error.strerror}") from error


def write_context(recipe: Recipe, wheel_dir: Path, file: IO[bytes]) -> None:
    """Writes the context as a tar. Raises SandboxError where a wheel can't be fetched."""
    with tarfile.open(fileobj=file, mode="w") as archive:
        _add(archive, "Dockerfile", recipe.dockerfile, 0o644)
        for pin in recipe.wheels:
            _add_wheel(archive, fetch_wheel(pin, wheel_dir))


def fetch_wheel(pin: str, wheel_dir: Path) -> Path:
    """The wheel of one pinned distribution without its dependencies, downloaded at most once."""
    folder = wheel_dir / pin
    found = sorted(folder.glob("*.whl"))
    if found:
        return found[0]
    logger.info("fetching %s", pin)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        result = subprocess.run(
            [*command, "--dest", str(folder), pin],
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"image: wheel {pin}: can't be fetched: {error}") from error
    found = sorted(folder.glob("*.whl"))
    if result.returncode or not found:
        raise SandboxError(f"image: wheel {pin}: can't be fetched: {_last_line(result.stderr)}")
    return found[0]


def _add_wheel(archive: tarfile.TarFile, wheel: Path) -> None:
    """Its files but those that only an installer needs, with the modes that the wheel gives them."""
    with zipfile.ZipFile(wheel) as content:
        for info in content.infolist():
            if not info.is_dir() and ".dist-info/" not in info.filename:
                mode = 0o755 if (info.external_attr >> 16) & 0o100 else 0o644
                _add(archive, f"wheels/{info.filename}", content.read(info), mode)


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode  # and no time: the engine's own cache goes by the content
    archive.addfile(entry, io.BytesIO(data))


def _last_line(text: str) -> str:
    lines: Iterable[str] = (line.strip() for line in reversed(text.splitlines()))
    return next((line for line in lines if line), "no reason given")
