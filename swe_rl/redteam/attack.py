"""Attacks as data: `<folder>/<class>/<name>.toml`, one cheat a file, with an honest twin that must pass.

cheat = "what it does, in one sentence"
caught_by = ["rule:leaves_process", "report"]     the layers that may catch it (see `grade.layer_of`)
languages = ["python"]                            of [attack.all]; without it, every language

[attack.all]              a change for every language that has no table of its own
fault = "..."             put in the place of the fault of the hello-repository (default: the fault stays)
files = { path = "..." }  files that the agent writes
script = "..."            what the agent runs in its session, behind that
before = "..."            what another session of the same task ran earlier, with the fault mended
patch = "..."             instead of a session: the patch as it is
[attack.python]           in the place of [attack.all]
[twin.all], [twin.python] the same keys; here the fault is mended unless `fault` says otherwise
"""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swe_rl.errors import ConfigError
from swe_rl.task.language import first_problem

ALL = "all"


class Move(BaseModel):
    """What an agent does: an attack on one language, or its honest twin."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    fault: str | None = None
    files: dict[str, str] = Field(default_factory=dict)
    script: str | None = None
    before: str | None = None
    patch: str | None = None


class _AttackFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    cheat: str = Field(min_length=1)
    caught_by: list[str] = Field(min_length=1)
    languages: list[str] | None = None
    attack: dict[str, Move] = Field(min_length=1)
    twin: dict[str, Move] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Attack:
    """One cheat on one language."""

    name: str
    class_name: str
    language: str
    cheat: str
    caught_by: tuple[str, ...]
    move: Move
    twin: Move


def read_attacks(root: Path, languages: Iterable[str]) -> list[Attack]:
    """Every attack below `root` on every one of `languages`. Raises ConfigError, one line with the file and the key."""
    files = sorted(root.glob("*/*.toml"))
    if not files:
        raise ConfigError(f"{root}: holds no <class>/<attack>.toml")
    known = tuple(languages)
    return [attack for path in files for attack in _read_file(path, known)]


def _read_file(path: Path, languages: Iterable[str]) -> list[Attack]:
    try:
        parsed = _AttackFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: can't be read: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_problem(error)}") from error
    attacks = []
    for language in languages:
        is_meant = parsed.languages is None or language in parsed.languages
        move = parsed.attack.get(language, parsed.attack.get(ALL) if is_meant else None)
        if move is None:
            continue
        twin = parsed.twin.get(language, parsed.twin.get(ALL))
        if twin is None:
            raise ConfigError(f"{path}: twin: there is none for {language}; add [twin.{language}] or [twin.all]")
        attacks.append(Attack(path.stem, path.parent.name, language, parsed.cheat, tuple(parsed.caught_by), move, twin))
    return attacks
