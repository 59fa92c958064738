"""Builds on a real engine: what is there stays, what changed is built, and a failure is one line."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from swe_rl.errors import SandboxError, SandboxUnavailableError
from swe_rl.images.build import Builder, Built
from swe_rl.task.language import LanguageSpec

docker = pytest.importorskip("docker")
pytestmark = pytest.mark.docker

DOCKERFILE = "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN echo %s > /word\nUSER 10001\n"


@pytest.fixture
def language(tmp_path: Path, builder: Builder) -> Iterator[LanguageSpec]:
    """A language with an image of its own, which is removed in the end; there's an engine, since there's a builder."""
    name = f"swe-rl/test-{uuid4().hex[:8]}"
    for folder, text in (("toy", DOCKERFILE % "one"), ("base", "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "Dockerfile").write_text(text)
    yield LanguageSpec("toy", tmp_path / "toy", ("true",), ("true",), "lines", image={"name": name})
    client = docker.from_env()
    if client.images.list(name=name):
        client.images.remove(name, force=True)
    client.close()


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    try:
        builder = Builder(tmp_path, tmp_path / "cache")
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    yield builder
    builder.close()


@pytest.fixture
def base(builder: Builder) -> Built:
    client = docker.from_env()
    found = client.images.list(name="swe-rl/base")
    client.close()
    if not found:
        pytest.skip("no image swe-rl/base; build it with: swe-rl images build perl")
    return Built("base", "swe-rl/base", True, int(found[0].attrs["Size"]), 0, {}, "content", 0.0)


def test_an_image_is_built_once_and_again_when_its_dockerfile_changes(
    language: LanguageSpec, builder: Builder, base: Built
) -> None:
    (first,) = builder.build([language], base)
    (second,) = builder.build([language], base)
    assert isinstance(first, Built) and isinstance(second, Built)
    assert (first.is_cached, second.is_cached) == (False, True)
    assert first.content == second.content and 0 <= first.own_bytes < 1000
    (language.root / "Dockerfile").write_text(DOCKERFILE % "two")
    (third,) = builder.build([language], base)
    assert isinstance(third, Built) and not third.is_cached


def test_a_failed_build_is_one_line_and_keeps_no_other_from_being_built(
    language: LanguageSpec, builder: Builder, base: Built
) -> None:
    (language.root / "Dockerfile").write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN echo no such tool && false\n")
    other = language.root.parent / "other"
    whole = LanguageSpec("other", other, (), (), "lines", image=language.image)
    other.mkdir()
    (other / "Dockerfile").write_text(DOCKERFILE % "three")
    failure, built = builder.build([language, whole], base)
    assert isinstance(failure, SandboxError) and "no such tool" in str(failure) and "\n" not in str(failure)
    assert isinstance(built, Built)
