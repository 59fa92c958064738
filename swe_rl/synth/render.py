"""How a task of the family looks on disk: source files, visible and hidden tests, and the issue, by language."""

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from swe_rl.synth.kinds import AGGREGATE, Choice, Language
from swe_rl.synth.templates import Template

_SUFFIX = {"python": "py", "javascript": "js"}
_STATS_JS = """// What the other files need of lists.

const sum = (values) => values.reduce((a, b) => a + b, 0);
const min = (values) => Math.min(...values);
const max = (values) => Math.max(...values);
const len = (values) => values.length;

module.exports = { sum, min, max, len };
"""
_ISSUES = (
    "{call} should {says}. It returns {got}, expected {want}.",
    "Wrong result of {name}: it has to {says}, but {call} is {got} and not {want}.",
    "Expected {name} to {says}. {call} gives {got} instead of {want}.",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One call: its arguments, the expected value, and what each choice of the slot would return."""

    arguments: tuple[Any, ...]
    expected: Any
    right: Choice
    wrong: Choice
    results: dict[Choice, Any]

    @property
    def passes_when_broken(self) -> bool:
        return not self.differs_for(self.wrong)

    def differs_for(self, choice: Choice) -> bool:
        return bool(self.results[choice] != self.expected)


def function_name(verb: str, noun: str, language: Language) -> str:
    return f"{verb}_{noun}" if language == "python" else verb + noun.capitalize()


def _test_path(name: str, language: Language) -> str:
    return f"tests/test_{name}.py" if language == "python" else f"tests/{name}.test.js"


def literal(value: Any, language: Language) -> str:
    """The value as source text: strings in single quotes, as both languages take them."""
    if isinstance(value, bool):
        return str(value) if language == "python" else str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(literal(v, language) for v in value) + "]"
    return repr(value) if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True, slots=True)
class Repository:
    """Two source files (the second is a bystander and right) and their visible tests."""

    language: Language
    name: str
    template: Template
    right: Choice
    wrong: Choice
    cases: list[Case]
    other_name: str
    other: Template
    other_choice: Choice
    bystander: Case

    @property
    def source_path(self) -> str:
        return f"src/{self.name}.{_SUFFIX[self.language]}"

    @property
    def hidden_path(self) -> str:
        return _test_path("hidden", self.language)

    def line(self, choice: Choice) -> str:
        """The line that holds the slot, with its indentation and without the line's end."""
        return _return_line(self.template, choice, self.language)

    def files(self) -> dict[str, str]:
        suffix = _SUFFIX[self.language]
        files = {
            self.source_path: _source(self.name, self.template, self.right, self.wrong, self.language),
            f"src/{self.other_name}.{suffix}": _source(
                self.other_name, self.other, self.other_choice, self.other_choice, self.language
            ),
            _test_path(self.name, self.language): self._tests({0: self.cases[0], 1: self.cases[-1]}),
        }
        if self.language == "javascript" and AGGREGATE in (self.template.kind, self.other.kind):
            files["src/stats.js"] = _STATS_JS
        return files

    def hidden_tests(self) -> str:
        """All cases, and one call of the bystander as the last test."""
        return self._tests(dict(enumerate(self.cases)), with_bystander=True)

    def instruction(self, rng: Random) -> str:
        case = self.cases[0]
        return rng.choice(_ISSUES).format(
            name=self.name,
            call=self._call(case),
            says=self.template.says.format(phrase=self.right.phrase),
            got=literal(case.results[self.wrong], self.language),
            want=literal(case.expected, self.language),
        )

    def correct_source(self) -> str:
        return _source(self.name, self.template, self.right, self.right, self.language)

    def _call(self, case: Case, name: str = "") -> str:
        return f"{name or self.name}({', '.join(literal(a, self.language) for a in case.arguments)})"

    def _tests(self, cases: dict[int, Case], with_bystander: bool = False) -> str:
        names = [self.name, self.other_name] if with_bystander else [self.name]
        calls = {i: (self._call(case), case.expected) for i, case in cases.items()}
        if with_bystander:
            calls[len(cases)] = (self._call(self.bystander, self.other_name), self.bystander.expected)
        return _python_tests(names, calls) if self.language == "python" else _javascript_tests(names, calls)


def _python_tests(names: list[str], calls: dict[int, tuple[str, Any]]) -> str:
    return "".join(f"from src.{name} import {name}\n" for name in names) + "".join(
        f"\n\ndef test_{i}():\n    got = {call}\n    want = {literal(want, 'python')}\n"
        "    assert got == want, f'expected {want!r}, got {got!r}'\n"
        for i, (call, want) in calls.items()
    )


_CHECK_JS = """
function check(got, want) {
  if (!isDeepStrictEqual(got, want)) {
    throw new Error(`expected ${JSON.stringify(want)}, got ${JSON.stringify(got)}`);
  }
}
"""


def _javascript_tests(names: list[str], calls: dict[int, tuple[str, Any]]) -> str:
    head = "const { isDeepStrictEqual } = require('node:util');\n"
    head += "".join(f"const {{ {name} }} = require('../src/{name}.js');\n" for name in names) + _CHECK_JS
    return head + "".join(
        f"\ntest('test_{i}', () => check({call}, {literal(want, 'javascript')}));\n"
        for i, (call, want) in calls.items()
    )


def _return_line(template: Template, choice: Choice, language: Language) -> str:
    expression = template.expression(language, choice.text(language))
    return f"    return {expression}" if language == "python" else f"  return {expression};"


def _source(name: str, template: Template, documented: Choice, used: Choice, language: Language) -> str:
    says = template.says.format(phrase=documented.phrase)
    sentence = says[0].upper() + says[1:] + "."
    arguments = ", ".join(template.arguments)
    line = _return_line(template, used, language)
    if language == "python":
        return f'def {name}({arguments}):\n    """{sentence}"""\n{line}\n'
    needs = template.kind is AGGREGATE
    head = "const { sum, min, max, len } = require('./stats.js');\n\n" if needs else ""
    return f"{head}// {sentence}\nfunction {name}({arguments}) {{\n{line}\n}}\n\nmodule.exports = {{ {name} }};\n"
