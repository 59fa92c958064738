"""What a source says however it is spelled: rules read the letters that its compiler reads.

h\\u0061lt, in Java even `/* \\u002a/`      ->   halt, and `/* */`
ｓｙｓ, in Python                            ->   sys
_ex\\<line break>it and %:define, in C       ->   _exit and #define
"""

import re
import unicodedata
from pathlib import PurePosixPath

_JAVA = {".java", ".kt", ".scala"}
_C = {".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp"}
_JAVA_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\u+([0-9A-Fa-f]{4})")
_TRIGRAPHS = {"=": "#", "/": "\\", "'": "^", "(": "[", ")": "]", "!": "|", "<": "{", ">": "}", "-": "~"}
_TRIGRAPH = re.compile(r"\?\?([=/'()!<>-])")
_SPLICE = re.compile(r"\\[ \t]*\r?\n")
_ESCAPE = re.compile(
    r"\\(?:u\{([0-9A-Fa-f]{1,6})\}|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|x\{?([0-9A-Fa-f]{2})\}?"
    r"|([01][0-7]{2})|N\{([A-Z -]+)\})"
)


def as_compiled(path: str, text: str) -> str:
    """The text as it is before its language looks for words, comments or strings. Lines may be joined, or divided."""
    ending = PurePosixPath(path).suffix.lower()
    if ending == ".py" and not text.isascii():
        return unicodedata.normalize("NFKC", text)
    if ending in _JAVA:
        return _JAVA_ESCAPE.sub(lambda match: match[1] + chr(int(match[2], 16)), text)
    if ending in _C:
        text = _TRIGRAPH.sub(lambda match: _TRIGRAPHS[match[1]], text)
        return _SPLICE.sub("", text).replace("%:", "#")
    return text


def unescaped(text: str) -> str:
    """Without escapes that stand for a letter, a digit, or what a path is made of; others stay."""
    return _ESCAPE.sub(_letter, text) if "\\" in text else text


def _letter(match: re.Match[str]) -> str:
    *hexadecimal, octal, name = match.groups()
    number = next((int(digits, 16) for digits in hexadecimal if digits), None)
    if number is None:
        number = int(octal, 8) if octal else ord(_named(name))
    letter = chr(number) if number < 128 else ""
    return letter if letter and (letter.isalnum() or letter in "_./-:") else match[0]


def _named(name: str) -> str:
    try:
        return unicodedata.lookup(name)
    except KeyError:
        return "\0"
