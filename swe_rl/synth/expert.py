"""The demonstrator of the family: it knows the protocol and the slot, and seldom reads which choice is right.

It views the file, puts one of the slot's other choices in, perhaps runs the tests, perhaps tries again, and submits.
It takes the choice that the issue asks for `INFORMED_SHARE` of the time and else draws uniformly: what it shows is how
to work, and which repair fits which issue is left to reinforcement learning.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from swe_rl.errors import TaskError
from swe_rl.synth.family import SynthTask

FIRST_WORDS = ("I read the file.", "Look at the source.", "Open the file first.")
INFORMED_SHARE = 0.15
TEST_SHARE = 0.6
RETRY_SHARE = 0.6


@dataclass(slots=True)
class _Progress:
    task: SynthTask
    rng: Random
    line: str
    untried: list[str]


class Expert:
    """Replies for many concurrent sessions; deterministic for a seed and a session's name."""

    def __init__(self, tasks: Iterable[SynthTask], seed: int = 0, max_turns: int = 6) -> None:
        self._tasks = {task.instruction: task for task in tasks}
        self._seed = seed
        self._max_turns = max_turns
        self._progress: dict[str, _Progress] = {}

    def reply(self, session_id: str, turn: int, context: str) -> str:
        """The next completion, without the stop token. Raises TaskError where no task of ours is in the context."""
        if turn == 0:
            return self._first(session_id, context)
        at = self._progress[session_id]
        observation = context.rpartition("<tool_response>")[2]
        if turn == 1:
            return self._edit(at)
        if '"run_tests"' not in context.rpartition("<tool_call>")[2]:  # an edit came before
            return _call("run_tests") if at.rng.random() < TEST_SHARE else _call("submit")
        may_retry = "FAIL" in observation and at.untried and turn < self._max_turns - 1
        return self._edit(at) if may_retry and at.rng.random() < RETRY_SHARE else _call("submit")

    def _first(self, session_id: str, context: str) -> str:
        found = [task for instruction, task in self._tasks.items() if instruction in context]
        if not found:
            raise TaskError(f"session {session_id}: the expert knows no task with this issue: {context[:200]!r}")
        task = found[0]
        rng = Random(f"{self._seed}/{session_id}")
        untried = list(task.alternatives)
        rng.shuffle(untried)
        if rng.random() < INFORMED_SHARE:
            untried.sort(key=task.fixed_line.__eq__)  # the last is tried first
        self._progress[session_id] = _Progress(task, rng, task.broken_line, untried)
        return rng.choice(FIRST_WORDS) + _call("view", path=task.source_path)

    def _edit(self, at: _Progress) -> str:
        old, at.line = at.line, at.untried.pop()
        return _call("edit", path=at.task.source_path, old=old, new=at.line)


def document_text(task: SynthTask) -> str:
    """The issue and the right source: what a policy may have read before it ever acts."""
    source = task.files[task.source_path].replace(task.broken_line, task.fixed_line)
    return f"{task.instruction}\n{source}"


def tokenizer_texts(task: SynthTask) -> list[str]:
    """Texts with the statistics of an episode on the task, to train a tokenizer on."""
    edit = _call("edit", path=task.source_path, old=task.broken_line, new=task.alternatives[0])
    return [
        f"{task.instruction}\nFiles:\n" + "\n".join(sorted(task.files)),
        *task.files.values(),
        edit + _call("view", path=task.source_path) + _call("run_tests") + _call("submit"),
        "user\nassistant\nok\nFAIL test_0: expected 3, got 4\n1 failed, 1 passed\nexit 1\nerror: `old` is not in src",
    ]


def _call(name: str, **arguments: str) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"
