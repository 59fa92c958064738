"""The rule on names that the product defines, and that the harness or the tests then use for the library's."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from swe_rl.grade.rules.added import Change
from swe_rl.grade.rules.evidence import Evidence, read_text
from swe_rl.grade.rules.source import Source
from swe_rl.grade.rules.words import read_names
from swe_rl.verdict import Violation

_C_FUNCTION = re.compile(r"(?<![\w.>])(?:fn )?(\w+)\([^(){};]*(?:\([^()]*\)[^(){};]*)*\)(?:noreturn|c_int| )*\{")
_JAVA_TYPE = re.compile(r"\b(?:class|interface|enum|record) (\w+)")
_RUST_MACRO = re.compile(r"\bmacro_rules! ?(\w+)")
_RUST_SYMBOL = re.compile(r'\bno_mangle\b.{0,60}?\bfn (\w+)|\bexport_name="(\w+)"')
# Names for the linker in Ada, Fortran and Pascal, which don't tell large letters from small ones.
_EXPORTED = {
    "ada": re.compile(r'\b(?:Export\w*|External_Name|Link_Name)\b[^;"]{0,80}"(\w+)"', re.IGNORECASE),
    "fortran": re.compile(r'\bbind\(c,name="(\w+)"', re.IGNORECASE),
    "pascal": re.compile(r'\b(?:alias: ?|exports \w+ name|public name)"(\w+)"', re.IGNORECASE),
}
_SML = re.compile(r"\b(struct|sig|let|local|end)\b|\b(?:fun|and|val rec|val|structure) (\w+)")
_MACRO = re.compile(r"^[ \t]*#[ \t]*(?:define|undef)[ \t]+(\w+)", re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w+")


def shadowed_name(evidence: Evidence) -> Iterator[Violation]:
    """Stops names of the product that the harness or the tests then use in the place of the library's."""
    for change in evidence.changes:
        source = change.new_source
        if source is None:
            continue
        for name in sorted(_shadowing_names(source, change, evidence)):
            yield Violation("shadowed_name", change.path, f"defines {name}, which the tests' harness uses")


def _shadowing_names(source: Source, change: Change, evidence: Evidence) -> set[str]:
    if source.language in ("c", "cpp", "d", "zig"):
        return (_c_functions(source) - _c_functions(change.old_source)) | _new_macros(change, evidence)
    said, before = source.said(), change.old_source.said() if change.old_source else ""
    if source.language == "java":
        return (set(_JAVA_TYPE.findall(said)) - set(_JAVA_TYPE.findall(before))) & read_names("java")
    if source.language == "rust":
        macros = (set(_RUST_MACRO.findall(said)) - set(_RUST_MACRO.findall(before))) & read_names("rust_macros")
        symbols = {match[1] or match[2] for match in _RUST_SYMBOL.finditer(change.says)}
        return macros | (symbols & read_names("c"))
    if source.language in _EXPORTED:
        return set(_EXPORTED[source.language].findall(change.says)) & read_names("c")
    if source.language == "sml":
        return (_top_level(said) - _top_level(before)) & read_names("sml")
    return set()


def _top_level(said: str) -> set[str]:
    """Names that a source of Standard ML defines outside of structures and of expressions."""
    open_words: list[str] = []
    names = set()
    for word, name in _SML.findall(said):
        if word == "end":
            del open_words[-1:]
        elif word:
            open_words.append(word)
        elif all(opened == "local" for opened in open_words):
            names.add(name)
    return names


def _c_functions(source: Source | None) -> set[str]:
    """Functions of the C library that a source defines: the linker takes the product's for everyone."""
    if source is None or PurePosixPath(source.path).stem == "main":
        return set()
    return set(_C_FUNCTION.findall(source.said())) & read_names("c")


def _macros(text: str) -> set[str]:
    """Both as the text stands and without comments: one may stand inside a directive, or look like one in a string."""
    return {*_MACRO.findall(text), *_MACRO.findall(_COMMENT.sub(" ", text))}


def _new_macros(change: Change, evidence: Evidence) -> set[str]:
    """Macros of the change that are words of the harness, of the C library or of the language."""
    new = _macros(change.new or "") - _macros(change.old or "")
    if not new:
        return set()
    headers = [path for path in (*evidence.harness, *evidence.base_tests) if path.suffix == ".h"]
    words = {word for path in headers for word in _WORD.findall(read_text(path) or "")}
    return new & (words | read_names("c") | read_names("c_keywords"))
