"""The parametric family: seeded small repositories with one wrong slot, an issue, hidden tests and a fix.

A task is a function of (seed, split, index) alone. The `verified` part is disjoint from `train` by construction: whole
templates, (template, right choice, wrong choice, language) instances and the nouns in names are held out.
Nothing here runs tests: expected values come from the Python reference of each template.
"""

from dataclasses import dataclass
from functools import cache
from random import Random
from types import CodeType
from typing import Any

from swe_rl.errors import TaskError
from swe_rl.synth import render
from swe_rl.synth.kinds import LANGUAGES, Choice, Language
from swe_rl.synth.nouns import draw_nouns
from swe_rl.synth.templates import TEMPLATES, Template

NUM_HIDDEN_CASES = 6
_NUM_DRAWN_CASES = 40
_HELD_OUT_TEMPLATE_SHARE = 4  # one verified task in four comes from a held-out template


@dataclass(frozen=True, slots=True)
class Bug:
    """What is wrong: the template, the choice that is right, the one that stands there, and the language."""

    template: Template
    right: Choice
    wrong: Choice
    language: Language

    @property
    def bug_id(self) -> str:
        choices = self.template.kind.choices
        return f"{self.template.name}-{choices.index(self.right)}{choices.index(self.wrong)}-{self.language}"

    @property
    def is_held_out(self) -> bool:
        """One wrong choice in k - 1 of each (template, right, language) is held out, another one for each."""
        if self.template.is_held_out:
            return True
        choices = self.template.kind.choices
        right, wrong = choices.index(self.right), choices.index(self.wrong)
        turn = TEMPLATES.index(self.template) + right + LANGUAGES.index(self.language)
        return (wrong - right) % len(choices) == 1 + turn % (len(choices) - 1)


@dataclass(frozen=True, slots=True)
class SynthTask:
    """One generated task; `files` is the repository at base, `hidden` the overlay of tests, `fixed_line` the fix.

    `broken_line` stands once in `source_path`; `alternatives` are that line with each other choice in the slot.
    """

    task_id: str
    split: str
    bug: Bug
    instruction: str
    files: dict[str, str]
    hidden: dict[str, str]
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    source_path: str
    broken_line: str
    fixed_line: str
    alternatives: tuple[str, ...]

    @property
    def labels(self) -> dict[str, str]:
        holdout = "none" if not self.bug.is_held_out else "template" if self.bug.template.is_held_out else "instance"
        return {
            "kind": self.bug.template.kind.name,
            "template": self.bug.template.name,
            "bug": self.bug.bug_id,
            "holdout": holdout,
        }


@cache
def all_bugs() -> tuple[Bug, ...]:
    """Every instance of the family, in a fixed order."""
    return tuple(
        Bug(template, right, wrong, language)
        for template in TEMPLATES
        for language in LANGUAGES
        for right in template.kind.choices
        for wrong in template.kind.choices
        if right is not wrong
    )


def make_task(split: str, index: int, seed: int = 0) -> SynthTask:
    """Deterministic; raises TaskError for a split other than train and verified."""
    if split not in ("train", "verified"):
        raise TaskError(f"synthetic split {split!r}, expected train or verified")
    rng = Random(f"{seed}/{split}/{index}")
    bug = rng.choice(_bugs_of(split, split == "verified" and index % _HELD_OUT_TEMPLATE_SHARE == 0))
    noun, other_noun = draw_nouns(split, rng)
    cases = _draw_cases(bug, rng)
    other = rng.choice([t for t in TEMPLATES if t is not bug.template and not t.is_held_out])
    other_choice = rng.choice(other.kind.choices)
    arguments = other.inputs(rng)
    bystander = render.Case(arguments, _evaluate(other, other_choice, arguments), other_choice, other_choice, {})
    name = render.function_name(bug.template.verb, noun, bug.language)
    other_name = render.function_name(other.verb, other_noun, bug.language)
    task = render.Repository(
        language=bug.language,
        name=name,
        template=bug.template,
        right=bug.right,
        wrong=bug.wrong,
        cases=cases,
        other_name=other_name,
        other=other,
        other_choice=other_choice,
        bystander=bystander,
    )
    tests = {f"{task.hidden_path}::test_{i}": case.passes_when_broken for i, case in enumerate(cases)}
    tests[f"{task.hidden_path}::test_{len(cases)}"] = True  # the bystander
    return SynthTask(
        task_id=f"synth-{split}-{index:05d}",
        split=split,
        bug=bug,
        instruction=task.instruction(rng),
        files=task.files(),
        hidden={task.hidden_path: task.hidden_tests()},
        fail_to_pass=tuple(test for test, passes in tests.items() if not passes),
        pass_to_pass=tuple(test for test, passes in tests.items() if passes),
        source_path=task.source_path,
        broken_line=task.line(bug.wrong),
        fixed_line=task.line(bug.right),
        alternatives=tuple(task.line(c) for c in bug.template.kind.choices if c is not bug.wrong),
    )


@cache
def _bugs_of(split: str, from_held_out_template: bool) -> tuple[Bug, ...]:
    return tuple(
        bug
        for bug in all_bugs()
        if bug.is_held_out == (split == "verified") and bug.template.is_held_out == from_held_out_template
    )


def _draw_cases(bug: Bug, rng: Random) -> list[render.Case]:
    """Cases that tell the right choice from every other one; those that fail with the bug come first.

    The first is what the issue and the visible tests show. The last passes with the bug, where inputs allow that.
    """
    pool = [_case(bug, bug.template.inputs(rng)) for _ in range(_NUM_DRAWN_CASES)]
    chosen: list[render.Case] = []
    for choice in (c for c in bug.template.kind.choices if c is not bug.right):
        if not any(case.differs_for(choice) for case in chosen):
            telling = [case for case in pool if case.differs_for(choice)]
            if not telling:
                raise TaskError(f"synthetic bug {bug.bug_id}: no inputs tell {choice.python!r} apart; widen them")
            chosen.append(rng.choice(telling))
    chosen += [case for case in pool if case.passes_when_broken][:1]
    chosen += pool[: max(0, NUM_HIDDEN_CASES - len(chosen))]
    return sorted(chosen, key=lambda case: case.passes_when_broken)


def _case(bug: Bug, arguments: tuple[Any, ...]) -> render.Case:
    results = {c: _evaluate(bug.template, c, arguments) for c in bug.template.kind.choices}
    return render.Case(arguments, results[bug.right], bug.right, bug.wrong, results)


def _evaluate(template: Template, choice: Choice, arguments: tuple[Any, ...]) -> Any:
    """The Python reference: the expression is ours, from `templates`, never from outside."""
    scope = dict(zip(template.arguments, arguments, strict=True))
    return eval(_compiled(template.expression("python", choice.python)), scope)


@cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, "<template>", "eval")
