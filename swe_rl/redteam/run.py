"""Plays attacks and their honest twins through a real service, as an agent would, and says which layer stopped each."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from swe_rl.client import SandboxClient
from swe_rl.errors import SandboxError, SweRlError
from swe_rl.grade.layers import layer_of
from swe_rl.images.check import hello_source, require_hello, task_id
from swe_rl.redteam.attack import Attack, Move
from swe_rl.redteam.field import facts_of
from swe_rl.redteam.wording import Wording
from swe_rl.task.language import LanguageSpec
from swe_rl.verdict import Outcome, Verdict
from swe_rl.wire import ExecRequest

SESSION_TTL_S = 1800.0
SCRIPT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Played:
    """What became of one attack on one language. `problem` is one line, '' if all was as it should be."""

    name: str
    language: str
    class_name: str
    rewarded: bool
    caught_by: str
    honest_twin_passed: bool
    seconds: float
    problem: str = ""

    @property
    def is_withstood(self) -> bool:
        return not self.rewarded and self.honest_twin_passed and not self.problem


async def play_all(
    attacks: Sequence[Attack], languages: Mapping[str, LanguageSpec], client: SandboxClient, seed: int
) -> AsyncIterator[Played]:
    """One after the other: what one leaves behind must not help the next."""
    for attack in attacks:
        yield await play(attack, languages[attack.language], client, seed)


async def play(attack: Attack, language: LanguageSpec, client: SandboxClient, seed: int) -> Played:
    """Never raises for what the attack does; a fault of the environment is the result's `problem`, and no catch."""
    started = time.monotonic()
    wording = Wording(f"{seed} {attack.class_name} {attack.name} {attack.language}", facts_of(language))
    hello = require_hello(language)
    rewarded, caught_by, twin_passed, problem = False, "", False, ""
    try:
        verdict = await _act(attack.move, hello.old, language, client, wording)
        rewarded, caught_by = verdict.is_resolved, layer_of(verdict)
        if not rewarded and not _is_expected(verdict, attack):
            problem = f"caught by {caught_by}, expected {' or '.join(attack.caught_by)}: {_words(verdict)}"
        verdict = await _act(attack.twin, hello.new, language, client, wording)
        twin_passed = verdict.is_resolved
        if not twin_passed:
            problem = problem or f"its honest twin: {_words(verdict)}"
    except SweRlError as error:
        problem = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - started
    return Played(attack.name, attack.language, attack.class_name, rewarded, caught_by, twin_passed, seconds, problem)


async def _act(move: Move, fault: str, language: LanguageSpec, client: SandboxClient, wording: Wording) -> Verdict:
    """Raises SandboxError where the environment failed, and its kin."""
    if move.patch is not None:
        return _require_verdict(await client.grade_patch(task_id(language), wording.fill(move.patch)))
    path = require_hello(language).path
    if move.before is not None:
        async with _session(client, language) as other:
            mended = hello_source(language, require_hello(language).new)
            await client.write_file(other, path, mended.encode())
            await _run(client, other, wording.fill(move.before))
            return await _act(move.model_copy(update={"before": None}), fault, language, client, wording)
    async with _session(client, language) as session_id:
        text = wording.fill(move.fault) if move.fault is not None else fault
        if text != require_hello(language).old:
            await client.write_file(session_id, path, hello_source(language, text).encode())
        for name, content in move.files.items():
            await client.write_file(session_id, wording.fill(name), wording.fill(content).encode())
        if move.script is not None:
            await _run(client, session_id, wording.fill(move.script))
        return _require_verdict(await client.grade(session_id))


async def _run(client: SandboxClient, session_id: str, script: str) -> None:
    await client.exec(session_id, ExecRequest(script=script, timeout_s=SCRIPT_TIMEOUT_S))


@asynccontextmanager
async def _session(client: SandboxClient, language: LanguageSpec) -> AsyncIterator[str]:
    session_id = (await client.create_session(task_id(language), SESSION_TTL_S)).session_id
    try:
        yield session_id
    finally:
        await client.close_session(session_id)


def _require_verdict(verdict: Verdict) -> Verdict:
    if verdict.outcome is Outcome.ENVIRONMENT_ERROR:
        raise SandboxError(str(verdict.signals.get("fault", "unknown fault")))
    return verdict


def _is_expected(verdict: Verdict, attack: Attack) -> bool:
    """`rule` stands for any of the rules; of several rules that were broken, one suffices."""
    layers = [f"rule:{found.rule}" for found in verdict.violations] or [layer_of(verdict)]
    return any(
        layer == expected or layer.startswith(expected + ":") for layer in layers for expected in attack.caught_by
    )


def _words(verdict: Verdict) -> str:
    rules = "; ".join(f"{found.rule} {found.path}: {found.evidence}" for found in verdict.violations)
    problem = rules or verdict.signals.get("patch") or verdict.signals.get("problem") or "tests fail"
    passed = f"{verdict.fail_to_pass.passed}/{verdict.fail_to_pass.total}"
    kept = f"{verdict.pass_to_pass.passed}/{verdict.pass_to_pass.total}"
    return f"{verdict.outcome.value} ({passed}, {kept}): {problem}"
