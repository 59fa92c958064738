"""The grammar of git's diff format, read strictly: which files a patch touches, how, and which lines it adds.

One reading only: text outside the grammar, headers that contradict each other and hunks whose counts are wrong are
errors, so what is judged here is what git applies. Nothing is refused for what it does; `check_patch` does that.
"""

import re
from dataclasses import dataclass

from swe_rl.errors import PatchError

_HUNK = re.compile(r"@@ -[0-9]{1,9}(?:,([0-9]{1,9}))? \+[0-9]{1,9}(?:,([0-9]{1,9}))? @@")
_MODE_LINES = ("old mode ", "new mode ", "new file mode ", "deleted file mode ")
_NAME_LINES = ("rename from ", "rename to ", "copy from ", "copy to ")
_OTHER_LINES = ("similarity index ", "dissimilarity index ", "index ")
_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}


@dataclass(frozen=True, slots=True)
class PatchedFile:
    """One section of a patch. `old_path` is None for a new file, `new_path` for a deleted one."""

    old_path: str | None
    new_path: str | None
    modes: tuple[str, ...]
    is_binary: bool
    added_lines: tuple[str, ...]

    @property
    def path(self) -> str:
        return self.new_path or self.old_path or ""

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path for path in (self.old_path, self.new_path) if path is not None))


@dataclass(frozen=True, slots=True)
class ParsedPatch:
    """All sections in the patch's order."""

    files: tuple[PatchedFile, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path that is read or written, once each."""
        return tuple(dict.fromkeys(path for file in self.files for path in file.paths))


def parse_patch(patch: str) -> ParsedPatch:
    """Raises PatchError with the line's number for what isn't git's diff format."""
    lines = patch.split("\n")
    if lines[-1] == "":
        lines.pop()
    reader = _Reader(lines)
    files = []
    while not reader.is_done:
        files.append(_read_file(reader))
    if not files:
        raise PatchError("patch: holds no file; want git's diff format")
    return ParsedPatch(tuple(files))


class _Reader:
    """The lines of a patch and the place that has been reached."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._next = 0

    @property
    def is_done(self) -> bool:
        return self._next >= len(self._lines)

    @property
    def line(self) -> str:
        return "" if self.is_done else self._lines[self._next]

    def take(self) -> str:
        line = self.line
        self._next += 1
        return line

    def fail(self, problem: str) -> PatchError:
        return PatchError(f"patch: line {self._next + 1}: {problem}; want git's diff format")


def _read_file(reader: _Reader) -> PatchedFile:
    if not reader.line.startswith("diff --git "):
        raise reader.fail("expected 'diff --git a/... b/...'")
    header = reader.take()[len("diff --git ") :]
    found: dict[str, str] = {}
    while (key := _extended_key(reader.line)) is not None:
        if key in found:
            raise reader.fail(f"a second {key.strip()!r}")
        found[key] = reader.take()[len(key) :]
    old_name, new_name = _read_names(reader)
    added, is_binary = [], False
    if reader.line == "GIT binary patch":
        is_binary = True
        _skip_binary(reader)
    elif reader.line.startswith("Binary files "):
        raise reader.fail("a binary change without its content")
    while reader.line.startswith("@@ "):
        if old_name is None:
            raise reader.fail("a hunk without --- and +++ lines")
        added += _read_hunk(reader)
    old_path, new_path = _resolve_paths(reader, header, found, old_name, new_name)
    modes = tuple(found[key].strip() for key in _MODE_LINES if key in found)
    if "index " in found and " " in found["index "]:
        modes += (found["index "].rsplit(" ", 1)[1],)
    return PatchedFile(old_path, new_path, modes, is_binary, tuple(added))


def _extended_key(line: str) -> str | None:
    return next((key for key in (*_MODE_LINES, *_NAME_LINES, *_OTHER_LINES) if line.startswith(key)), None)


def _read_names(reader: _Reader) -> tuple[str | None, str | None]:
    if not reader.line.startswith("--- "):
        return None, None
    old = reader.take()[4:]
    if not reader.line.startswith("+++ "):
        raise reader.fail("expected '+++ ' behind '--- '")
    return old, reader.take()[4:]


def _read_hunk(reader: _Reader) -> list[str]:
    match = _HUNK.match(reader.line)
    if match is None:
        raise reader.fail("a hunk's header can't be read")
    reader.take()
    num_old, num_new = (int(count) if count is not None else 1 for count in match.groups())
    added = []
    while num_old > 0 or num_new > 0:
        if reader.is_done:
            raise reader.fail("the patch ends inside a hunk")
        kind, content = reader.line[:1], reader.line[1:]
        if kind not in (" ", "", "+", "-", "\\"):
            raise reader.fail("a hunk is shorter than its header says")
        num_old -= kind in (" ", "", "-")
        num_new -= kind in (" ", "", "+")
        if num_old < 0 or num_new < 0:
            raise reader.fail("a hunk is longer than its header says")
        if kind == "+":
            added.append(content)
        reader.take()
    if reader.line.startswith("\\"):
        reader.take()
    return added


def _skip_binary(reader: _Reader) -> None:
    """One or two blocks, each a 'literal N' or 'delta N' line, base-85 lines, and an empty line."""
    reader.take()
    while re.fullmatch(r"(?:literal|delta) [0-9]+", reader.line):
        reader.take()
        while reader.line:
            reader.take()
        if not reader.is_done:
            reader.take()


def _resolve_paths(
    reader: _Reader, header: str, found: dict[str, str], old_name: str | None, new_name: str | None
) -> tuple[str | None, str | None]:
    """The old and the new path, once everything that names them agrees."""
    old_raw = found.get("rename from ", found.get("copy from "))
    new_raw = found.get("rename to ", found.get("copy to "))
    if (old_raw is None) != (new_raw is None):
        raise reader.fail("a rename or copy with one side only")
    if old_raw is None or new_raw is None:
        old_raw = new_raw = _name_of_header(reader, header)
    elif header != f"{_prefixed('a/', old_raw)} {_prefixed('b/', new_raw)}":
        raise reader.fail("the header and the rename lines name different files")
    is_new, is_deleted = "new file mode " in found, "deleted file mode " in found
    if is_new and is_deleted:
        raise reader.fail("a file that is both new and deleted")
    for name, prefix, raw, is_absent in ((old_name, "a/", old_raw, is_new), (new_name, "b/", new_raw, is_deleted)):
        if name is not None and name.removesuffix("\t") != ("/dev/null" if is_absent else _prefixed(prefix, raw)):
            raise reader.fail("the --- and +++ lines disagree with the header")
    return (None if is_new else _unquote(reader, old_raw)), (None if is_deleted else _unquote(reader, new_raw))


def _name_of_header(reader: _Reader, header: str) -> str:
    """The one path that both halves of 'a/P b/P' name, still quoted if it was; blanks in P need no guess."""
    half = (len(header) - 1) // 2
    left = header[:half]
    raw = '"' + left[3:] if left.startswith('"a/') else left[2:]
    if not raw or header != f"{_prefixed('a/', raw)} {_prefixed('b/', raw)}":
        raise reader.fail("a 'diff --git' line must name the same file as a/... and b/..., or come with rename lines")
    return raw


def _prefixed(prefix: str, raw: str) -> str:
    return f'"{prefix}{raw[1:]}' if raw.startswith('"') else prefix + raw


def _unquote(reader: _Reader, raw: str) -> str:
    """A path as git prints it: in C quotes if it holds control characters, quotes, backslashes or non-ASCII bytes."""
    if not raw.startswith('"'):
        return raw
    if len(raw) < 2 or not re.fullmatch(r'"(?:[^"\\]|\\[0-3][0-7]{2}|\\[abtnvfr"\\])*"', raw):
        raise reader.fail("a quoted path can't be read")
    encoded = re.sub(
        rb"\\([0-3][0-7]{2}|.)",
        lambda match: bytes([int(match[1], 8) if len(match[1]) == 3 else _ESCAPES[match[1].decode()]]),
        raw[1:-1].encode(),
    )
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        raise reader.fail("a path isn't UTF-8") from None
