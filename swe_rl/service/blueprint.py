"""What a session is made of: a task's repository, or a language's empty directory, and the limits that hold.

Blueprints with the same key give sandboxes that can't be told apart, which is what the warm pool needs to know.
Nothing here makes a sandbox.
"""

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from swe_rl.errors import ConfigError, TaskError
from swe_rl.grade.run import task_limits
from swe_rl.sandbox.base import FileEntry, Limits, SandboxSpec
from swe_rl.sandbox.tree import read_tree
from swe_rl.sandbox.workspace import content_hash
from swe_rl.task.language import LanguageSpec
from swe_rl.task.spec import TaskSpec
from swe_rl.task.taskset import TaskSet
from swe_rl.wire import CreateSession, SessionLimits

MAX_HELD_TREES = 512


@dataclass(frozen=True, slots=True)
class Blueprint:
    """`base`: the files before anything ran, against which a patch is made; `key`: hash of all that `spec` says.

    `is_fork`: begins from a snapshot, which goes away; the pool doesn't keep such sandboxes.
    """

    task: TaskSpec | None
    language: LanguageSpec
    base: Mapping[str, FileEntry]
    spec: SandboxSpec
    key: str
    is_fork: bool = False


class Blueprints:
    """Makes blueprints of requests; trees and their hashes are read once and held, up to a number."""

    def __init__(self, tasks: TaskSet, languages: Mapping[str, LanguageSpec], empty_dir: Path) -> None:
        """`empty_dir` will be an empty directory by the time that a session of a language alone is made."""
        self._tasks = tasks
        self._languages = languages
        self._empty_dir = empty_dir
        self._held: OrderedDict[Path, tuple[Mapping[str, FileEntry], str]] = OrderedDict()

    async def of_request(self, request: CreateSession) -> Blueprint:
        """Raises TaskError for an unknown task, ConfigError for an unknown language."""
        if request.task_id is None:
            return await self.of_language(request.language or "", request.limits, request.env)
        return await self.of_task(request.task_id, request.limits, request.env)

    async def of_task(
        self, task_id: str, wish: SessionLimits | None = None, env: Mapping[str, str] | None = None
    ) -> Blueprint:
        task = self._tasks.get(task_id)
        language = self._languages[task.language]
        limits = _lowered(task_limits(task, language), wish)
        return await self._make(task, language, task.environment_dir, limits, env or {})

    async def of_language(self, name: str, wish: SessionLimits | None, env: Mapping[str, str]) -> Blueprint:
        language = self._languages.get(name)
        if language is None:
            raise ConfigError(f"request: language {name!r} isn't one of: {', '.join(sorted(self._languages))}")
        limits = _lowered(Limits(language.timeout_s, language.memory_mb, language.num_pids), wish)
        return await self._make(None, language, self._empty_dir, limits, env)

    async def _make(
        self, task: TaskSpec | None, language: LanguageSpec, source: Path, limits: Limits, env: Mapping[str, str]
    ) -> Blueprint:
        base, digest = await self._tree(source)
        spec = SandboxSpec(source, language.language, limits, language.env | dict(env))
        words = [digest, language.language, asdict(limits), sorted(spec.env.items())]
        key = hashlib.sha256(json.dumps(words).encode()).hexdigest()
        return Blueprint(task, language, base, spec, key)

    async def _tree(self, source: Path) -> tuple[Mapping[str, FileEntry], str]:
        found = self._held.get(source)
        if found is None:
            found = await asyncio.to_thread(_read, source)
            self._held[source] = found
            while len(self._held) > MAX_HELD_TREES:
                self._held.popitem(last=False)
        else:
            self._held.move_to_end(source)
        return found


def require_task(blueprint: Blueprint, what: str) -> TaskSpec:
    """Raises TaskError where the session was made of a language alone."""
    if blueprint.task is None:
        raise TaskError(f"{what}: this session was made of a language alone; make one with a task_id")
    return blueprint.task


def _read(source: Path) -> tuple[Mapping[str, FileEntry], str]:
    tree = read_tree(source)
    return tree, content_hash(tree)


def _lowered(limits: Limits, wish: SessionLimits | None) -> Limits:
    given = wish.model_dump(exclude_none=True) if wish else {}
    return replace(limits, **{name: min(value, getattr(limits, name)) for name, value in given.items()})
