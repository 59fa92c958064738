"""Proves that a session of a task shows an agent no history and no solution: its repository, its places, its image.

The workspace is looked at for each task. An image is the same for all tasks of a language, so one reading of it, which
takes seconds to minutes, looks for the lines of all of them.
"""

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from swe_rl.errors import SandboxError
from swe_rl.grade.history import find_history
from swe_rl.grade.leaks import EVERYWHERE, SCAN_LIMITS, SESSION_PLACES, find_lines, find_stores, telling_lines
from swe_rl.grade.run import task_limits
from swe_rl.sandbox.base import Backend, SandboxSpec
from swe_rl.task.language import LanguageSpec
from swe_rl.task.spec import TaskSpec


class Exposure:
    """Looks at `concurrency` sessions at once; `scratch_dir` gets a copy of each workspace for a moment."""

    def __init__(
        self, backend: Backend, languages: Mapping[str, LanguageSpec], scratch_dir: Path, concurrency: int = 2
    ) -> None:
        self._backend, self._languages, self._scratch_dir = backend, languages, scratch_dir
        self._slots = asyncio.Semaphore(concurrency)
        self._seen_in_image: dict[str, str] = {}

    async def scan_images(self, tasks: Sequence[TaskSpec]) -> None:
        """Reads every image that the tasks use; `problem` then tells of it. Raises SandboxError or TaskError."""
        by_language: dict[str, list[TaskSpec]] = defaultdict(list)
        for task in tasks:
            by_language[task.language].append(task)
        for language, those in sorted(by_language.items()):
            if language in self._languages:
                await self._scan_image(self._languages[language], those)

    async def problem(self, task: TaskSpec) -> str:
        """What a session of the task shows that it mustn't, in one line; '' for nothing. Raises SandboxError."""
        async with self._slots:
            return await self._problem(task) or self._seen_in_image.get(task.task_id, "")

    async def _problem(self, task: TaskSpec) -> str:
        lines = await asyncio.to_thread(telling_lines, task)
        language = self._languages[task.language]
        spec = SandboxSpec(task.environment_dir, language.language, task_limits(task, language), language.env)
        sandbox = await self._backend.create(spec)
        try:
            found = await find_lines(sandbox, lines, SESSION_PLACES)
            stores = await find_stores(sandbox, SESSION_PLACES)
            with tempfile.TemporaryDirectory(prefix="history-", dir=self._scratch_dir) as name:
                await sandbox.snapshot(Path(name) / "workspace")
                history = await asyncio.to_thread(find_history, Path(name) / "workspace")
        finally:
            await sandbox.close()
        if history:
            return f"the session's repository has {'; '.join(history[:3])}"
        if stores:
            return f"the session holds object stores: {', '.join(stores[:3])}"
        if found:
            return "a line of the solution is in the session: {}: {!r}".format(*next((p, n) for n, p in found.items()))
        return ""

    async def _scan_image(self, language: LanguageSpec, tasks: Sequence[TaskSpec]) -> None:
        lines = {task.task_id: await asyncio.to_thread(telling_lines, task) for task in tasks}
        wanted = sorted({line for those in lines.values() for line in those})
        with tempfile.TemporaryDirectory(prefix="scan-", dir=self._scratch_dir) as name:
            sandbox = await self._backend.create(SandboxSpec(Path(name), language.language, SCAN_LIMITS, language.env))
            try:
                found = await find_lines(sandbox, wanted, EVERYWHERE)
                stores = await find_stores(sandbox, EVERYWHERE)
            finally:
                await sandbox.close()
        if stores:
            raise SandboxError(f"the image of {language.language} holds object stores: {', '.join(stores[:5])}")
        for task_id, those in lines.items():
            for line in those:
                if line in found:
                    words = f"a line of the solution is in the image of {language.language}: {found[line]}: {line!r}"
                    self._seen_in_image.setdefault(task_id, words)
