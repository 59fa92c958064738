"""Text as a terminal would have shown it: what the parsers of printed reports read. Knows no report format."""

import re

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]+[0-~]|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def plain_lines(data: bytes) -> list[str]:
    """Lines without colours and control characters. Bytes that aren't UTF-8 become U+FFFD; CRLF ends a line as LF does.

    A carriage return inside a line stays visible as a space: nothing printed can hide what was printed before it.
    """
    text = _ESCAPE.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n").replace("\r", " ")
    return _CONTROL.sub("", text).split("\n")
