"""How tests of ours look in a language: the `[canary]` table of its sandbox.toml.

Two that must fail and two that must pass stand in a test file while it's graded: what turns failures into passes turns
ours too. A form is the text of one such test. Placeholders: {name} is its random name in the language's style, {a}, {b}
and {word} are random, {sum} stands for a + b and {size} for the length of the word: rightly in a test that must pass,
wrongly in one that must fail, so that only the arithmetic tells the two apart.
"""

import re
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

STYLES = ("snake", "kebab", "pascal", "plain")
_STYLE = re.compile(rf"\{{(?:{'|'.join(STYLES)})\}}")


@dataclass(frozen=True)
class CanarySpec:
    """`first`, `last`, `definitions` and `plan` are patterns for `re.search` in the whole text, `^` and `$` for lines.

    The first two go before the line in which the first match of `first` ends, with that line's indentation; a file
    without a match gets none. The last two go before the line of the next match of `last` ({indent} in it: that
    indentation), or at the end of the file if `last` is empty.
    With `call`, the form goes before the line of `definitions`, and the call of it to the place of the test.
    `plan`: its group is the number of tests that the file announces. `exit_code`: of a run with failures.
    `fails_as`: what the report calls an assertion that doesn't hold.
    `is_ordered`: the report has the tests of a file in the file's order.
    """

    files: tuple[str, ...]
    first: str
    name: str
    forms: tuple[str, ...]
    last: str = ""
    call: str = ""
    definitions: str = ""
    plan: str = ""
    exit_code: int = 1
    fails_as: Literal["failed", "error"] = "failed"
    is_ordered: bool = False


class CanaryTable(BaseModel):
    """The table as it's written; its mistakes are found when it's read."""

    model_config = ConfigDict(extra="forbid", strict=True)

    files: list[str] = Field(min_length=1)
    first: str = Field(min_length=1)
    name: str = Field(min_length=1)
    forms: list[str] = Field(min_length=2)
    last: str = ""
    call: str = ""
    definitions: str = ""
    plan: str = ""
    exit_code: int = Field(default=1, ge=1, le=255)
    fails_as: Literal["failed", "error"] = "failed"
    is_ordered: bool = False

    @model_validator(mode="after")
    def _is_sound(self) -> "CanaryTable":
        if len(_STYLE.findall(self.name)) != 1:
            raise ValueError(f"name {self.name!r}: wants one of {{{'}, {'.join(STYLES)}}}")
        for form in self.forms:
            if "{name}" not in form or not ("{sum}" in form or "{size}" in form):
                raise ValueError(f"form {form[:60]!r}: wants {{name}}, and {{sum}} or {{size}}")
        for pattern in (self.first, self.last.replace("{indent}", ""), self.definitions, self.plan):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"pattern {pattern!r}: {error}") from error
        if self.plan and re.compile(self.plan).groups != 1:
            raise ValueError(f"plan {self.plan!r}: wants one group, the number of tests")
        if bool(self.call) != bool(self.definitions):
            raise ValueError("call and definitions go together")
        return self

    def spec(self) -> CanarySpec:
        fields = self.model_dump()
        return CanarySpec(**fields | {"files": tuple(self.files), "forms": tuple(self.forms)})
