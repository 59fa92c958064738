"""What goes to the engine, and the hash by which an image is known to be there already."""

import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from swe_rl.errors import ConfigError
from swe_rl.images.context import Recipe, image_name, language_recipe, write_context
from swe_rl.task.language import read_language

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (
    b"ARG BASE_IMAGE=swe-rl/base\nFROM ${BASE_IMAGE}\nRUN apt-get update \\\n"
    b"    && apt-get install -y --no-install-recommends perl \\\n"
    b"        g++ libc6-dev \\\n    && rm -rf /var/lib/apt/lists/*\n"
)
RECIPE = Recipe("swe-rl/perl", "perl", DOCKERFILE, ("a==1",), "sha256:1")


@pytest.mark.parametrize(
    "change", [{"dockerfile": b"x"}, {"wheels": ("a==2",)}, {"wheels": ()}, {"below": "sha256:2"}, {"label": "lua"}]
)
def test_every_ingredient_changes_the_hash(change: dict[str, object]) -> None:
    assert replace(RECIPE, **change).content != RECIPE.content


def test_the_hash_depends_on_nothing_else() -> None:
    assert replace(RECIPE, name="elsewhere/perl").content == RECIPE.content


def test_ingredients_do_not_run_into_each_other() -> None:
    one, other = replace(RECIPE, wheels=("a==1", "b==1")), replace(RECIPE, wheels=("a==1b==1",))
    assert one.content != other.content


def test_the_packages_are_those_of_the_install_command() -> None:
    assert RECIPE.packages == ("perl", "g++", "libc6-dev")
    assert Recipe("n", "l", b"FROM a\nRUN apt-get update\n").packages == ()


def test_a_context_holds_the_dockerfile_and_wheels_with_their_modes(tmp_path: Path) -> None:
    folder = tmp_path / "a==1"
    folder.mkdir()
    with zipfile.ZipFile(folder / "a-1-py3-none-any.whl", "w") as wheel:
        for name, mode in (("a/bin/tool", 0o755), ("a/data", 0o600), ("a-1.dist-info/RECORD", 0o644)):
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            wheel.writestr(info, name)
    file = io.BytesIO()
    write_context(RECIPE, tmp_path, file)
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        modes = {entry.name: entry.mode for entry in archive}
        assert archive.extractfile("Dockerfile").read() == DOCKERFILE
    assert modes == {"Dockerfile": 0o644, "wheels/a/bin/tool": 0o755, "wheels/a/data": 0o644}


@pytest.mark.parametrize("pin", ["a", "a>=1", "a==1; evil", "--index-url=x", "a==1 b==2"])
def test_a_wheel_must_be_pinned(pin: str) -> None:
    language = replace(read_language(ROOT / "sandboxes/perl"), image={"wheels": [pin]})
    with pytest.raises(ConfigError, match="pin"):
        language_recipe(language, "")


def test_an_image_is_called_as_the_language_says() -> None:
    language = read_language(ROOT / "sandboxes/perl")
    assert image_name(language) == "swe-rl/perl"
    assert image_name(replace(language, image={"name": "mine/perl:5"})) == "mine/perl:5"


def test_a_language_without_a_dockerfile_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Dockerfile"):
        language_recipe(replace(read_language(ROOT / "sandboxes/perl"), root=tmp_path), "")
