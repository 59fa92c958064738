"""The functions of the parametric family, read from `templates.toml`: each has one slot and draws its own inputs.

A template never says which choice is right: its `says` sentence takes the phrase of the choice.
"""

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

from swe_rl.synth.inputs import INPUTS, Inputs
from swe_rl.synth.kinds import KINDS, Kind, Language


@dataclass(frozen=True, slots=True)
class Template:
    """`python` and `javascript` are the returned expression with `{slot}`; `inputs` draws one tuple of arguments.

    A held-out template appears in the verified part only.
    """

    name: str
    kind: Kind
    verb: str
    arguments: tuple[str, ...]
    says: str
    python: str
    javascript: str
    inputs: Inputs
    is_held_out: bool = False

    def expression(self, language: Language, slot: str) -> str:
        text = self.python if language == "python" else self.javascript
        return text.replace("{slot}", slot)


def _read() -> tuple[Template, ...]:
    text = (resources.files("swe_rl.synth") / "templates.toml").read_text(encoding="utf-8")
    return tuple(_template(**row) for row in tomllib.loads(text)["template"])


def _template(kind: str, arguments: list[str], inputs: str, **rest: Any) -> Template:
    return Template(kind=KINDS[kind], arguments=tuple(arguments), inputs=INPUTS[inputs], **rest)


TEMPLATES = _read()
