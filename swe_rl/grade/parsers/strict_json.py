"""JSON as a report may be read: what has two meanings is refused. Knows no report format.

Python's own reader takes the last of two equal keys, and NaN for a number; another reader of the same bytes may not.
"""

import json
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from swe_rl.grade.parsers.report import Parse, ParsedReport
from swe_rl.task.language import first_problem

Model = TypeVar("Model", bound=BaseModel)


class NotJsonError(ValueError):
    """The bytes aren't one JSON value, or not one of the expected shape; its text quotes nothing of them."""


def read_json(data: bytes) -> Any:
    """Bytes that aren't UTF-8 become U+FFFD. Raises NotJsonError."""
    try:
        return json.loads(data.decode("utf-8", "replace"), object_pairs_hook=_unique, parse_constant=_refuse)
    except RecursionError:
        raise NotJsonError("nests too deeply") from None
    except NotJsonError:
        raise
    except ValueError:
        raise NotJsonError("isn't JSON") from None


def read_model(data: bytes, model: type[Model]) -> Model:
    """The value as a `model`, without conversions between types. Raises NotJsonError."""
    value = read_json(data)
    try:
        return model.model_validate(value, strict=True)
    except ValidationError as error:
        raise NotJsonError(f"isn't what the runner writes: {first_problem(error)}") from None


def parse_by(model: type[Model], read: Callable[[Model], ParsedReport]) -> Parse:
    """The parser of a format whose report file is one value of this shape; it reads neither output stream."""

    def parse(report: bytes | None, stdout: bytes, stderr: bytes) -> ParsedReport:
        if report is None:
            return ParsedReport.unparsed("no report file")
        try:
            value = read_model(report, model)
        except NotJsonError as error:
            return ParsedReport.unparsed(f"the report {error}")
        return read(value)

    return parse


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotJsonError("has an object with one key twice")
    return found


def _refuse(_: str) -> NoReturn:
    raise NotJsonError("has a number that isn't finite")
