"""Rows of HumanEvalPack (its repair tasks, HumanEvalFix) as task folders: Python, JavaScript, Go and Rust.

A row is one function with a bug that somebody put in, the right one, and a test. The buggy function becomes
environment/, the test is hidden, the way from the buggy to the right one is the solution; the row's example, where it
has one, is a visible test. No sandbox reaches a registry, so the few packages that rows name are replaced by small
files (stand_ins/), and tests that draw random inputs draw the same ones each time.
"""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from swe_rl.errors import TaskError
from swe_rl.task.folder import lay_task, make_solution, make_task_toml

SPLIT = "humanevalpack"
MAX_FILE_BYTES = 64 * 1024 * 1024
_FIELDS = (
    *("task_id", "declaration", "buggy_solution", "canonical_solution", "test", "entry_point", "docstring"),
    *("bug_type", "failure_symptoms"),
)
_MORE_FIELDS = {"Go": ("prompt", "test_setup")}
# Endless loops are among the bugs: a base runs into this limit. Where a run begins with a compiler, which is slow on a
# busy machine, the limit is the language's own.
_TIMEOUT_S = {"python": 15.0, "javascript": 15.0}
_GO_PACKAGES = ("math", "sort", "strings")  # which some rows use and don't name
_SEEDED_RANDOM = """\
let state = 1;
Math.random = () => {
  state = (state * 48271) % 2147483647;
  return state / 2147483647;
};
"""
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Layout:
    """`source`: the path of the file with the bug, and its buggy and its right text. Others map paths to texts."""

    source: tuple[str, str, str]
    visible: dict[str, str]
    hidden: dict[str, str]
    fail_to_pass: str


def import_humanevalpack(path: Path, out_dir: Path) -> list[str]:
    """Writes `<out_dir>/humanevalpack/<task_id>/` for each row of a .jsonl or .jsonl.gz file; the ids.

    Raises TaskError for what isn't such a file, with the line.
    """
    return [_write(row, f"{path}: line {number}", out_dir) for number, row in enumerate(_read(path), start=1)]


def _read(path: Path) -> list[object]:
    try:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise TaskError(f"{path}: more than {MAX_FILE_BYTES} bytes; expected rows of HumanEvalPack")
        return [json.loads(line) for line in data.decode("utf-8").splitlines() if line.strip()]
    except (OSError, EOFError, zlib.error) as error:
        raise TaskError(f"{path}: can't be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{path}: isn't JSON lines in UTF-8: {error}") from error


def _write(row: object, where: str, out_dir: Path) -> str:
    fields = _checked(row, where)
    name, number = fields["task_id"].split("/")
    language = name.lower()
    try:
        layout = _LAYOUTS[name](fields)
    except (AttributeError, IndexError, ValueError) as error:
        raise TaskError(f"{where}: {fields['task_id']}: isn't laid out as a row of {name} is: {error}") from error
    task_id = f"humanevalpack-{language}-{number}"
    source, buggy, right = layout.source
    labels = {"bug_type": fields["bug_type"], "failure_symptoms": fields["failure_symptoms"], "source": SPLIT}
    texts = {f"environment/{path}": text for path, text in (layout.visible | {source: buggy}).items()}
    texts |= {f"tests/{path}": text for path, text in layout.hidden.items()}
    texts["solution/solution.patch"] = make_solution(source, buggy, right)
    texts["instruction.md"] = (
        f"`{fields['entry_point']}` in {source} has a bug. Repair it; this is what it should do:\n\n"
        f"{fields['docstring'].strip()}\n"
    )
    texts["task.toml"] = make_task_toml(task_id, language, labels, [layout.fail_to_pass], [], _TIMEOUT_S.get(language))
    lay_task(out_dir / SPLIT / task_id, texts)
    return task_id


def _checked(row: object, where: str) -> Row:
    fields = {key: value or "" for key, value in row.items()} if isinstance(row, dict) else {}
    match = re.fullmatch(r"(Python|JavaScript|Go|Rust)/(\d{1,6})", str(fields.get("task_id")), re.ASCII)
    if match is None:
        raise TaskError(
            f"{where}: task_id is {fields.get('task_id')!r}, expected e.g. 'Python/0' (or JavaScript, Go, Rust)"
        )
    for key in (*_FIELDS, *_MORE_FIELDS.get(match[1], ())):
        if not isinstance(fields.get(key), str) or not fields[key].strip():
            raise TaskError(f"{where}: {match[0]}: {key} is missing or isn't text; expected a row of HumanEvalPack")
    return fields


def _both(row: Row, prefix: str) -> tuple[str, str]:
    """The buggy text and the right one."""
    buggy, right = (prefix + row[key].rstrip() + "\n" for key in ("buggy_solution", "canonical_solution"))
    return buggy, right


def _python(row: Row) -> _Layout:
    entry = row["entry_point"]

    def test(body: str, name: str) -> str:
        checks = body.strip().removesuffix(f"check({entry})")
        seed = "    import random\n\n    random.seed(0)\n" if "random" in body else ""
        head = f"from solution import *\nfrom solution import {entry}\n\n\n"
        return f"{head}{checks.strip()}\n\n\ndef {name}():\n{seed}    check({entry})\n"

    visible = {"tests/test_import.py": f"from solution import {entry}\n\n\ndef test_it_imports():\n    {entry}\n"}
    if row.get("example_test"):
        visible["tests/test_example.py"] = test(row["example_test"], "test_example")
    hidden = {"tests/test_hidden.py": test(row["test"], "test_hidden")}
    source = ("src/solution.py", *_both(row, row["declaration"]))
    return _Layout(source, visible, hidden, "tests/test_hidden.py::test_hidden")


def _javascript(row: Row) -> _Layout:
    names = ", ".join(re.findall(r"^const (\w+) =", row["declaration"], re.MULTILINE))
    exports = f"\nmodule.exports = {{ {names} }};\n"
    buggy, right = (text + exports for text in _both(row, row["declaration"].lstrip("\n")))

    def test(body: str, name: str) -> str:
        # An assertion of the console says what is wrong and goes on; one of the assert module ends the test.
        head = f"const {{ {names} }} = require('../src/solution');\nconst console = {{ assert: require('assert') }};\n"
        seed = _SEEDED_RANDOM if "Math.random" in body else ""
        return f"{head}{seed}\ntest('{name}', () => {{\n{body.strip()}\n}});\n"

    load = "const solution = require('../src/solution');\n\ntest('it imports', () => solution);\n"
    visible = {"tests/import.test.js": load}
    if row.get("example_test"):
        visible["tests/example.test.js"] = test(row["example_test"], "example")
    stand_ins = {"node_modules/js-md5/index.js": _stand_in("js-md5.js")} if "'js-md5'" in right else {}
    hidden = {"tests/hidden.test.js": test(row["test"], "hidden"), **stand_ins}
    source = ("src/solution.js", buggy, right)
    return _Layout(source, visible | stand_ins, hidden, "tests/hidden.test.js::hidden")


def _go(row: Row) -> _Layout:
    block = re.compile(r"^import \(\n(.*?)^\)\n?", re.MULTILINE | re.DOTALL)
    named = re.findall(r'"([^"]+)"', "".join(block.findall(row.get("import", "") + "\n" + row["test_setup"])))
    packages = sorted({*_GO_PACKAGES, *named} - {"github.com/stretchr/testify/assert"})

    def file(body: str) -> str:
        """Go refuses a package that is imported and not used, so each file names its own."""
        code = re.sub(r"//[^\n]*", "", body)
        used = [name for name in packages if re.search(rf"\b{name.rpartition('/')[2]}\.[A-Z]", code)]
        imports = "".join(f'import "{name}"\n' for name in used)
        return f"package solution\n\n{imports}\n{body}" if imports else f"package solution\n\n{body}"

    def test(body: str, name: str) -> str:
        seeded = body.strip().replace("time.Now().UnixNano()", "nextSeed()")
        return file(re.sub(r"^func Test\w+", f"func {name}", seeded, flags=re.MULTILINE) + "\n")

    buggy, right = (file(text) for text in _both(row, block.sub("", row["prompt"]).lstrip("\n")))
    stand_in = {"assert_test.go": _stand_in("assert_test.go")}
    visible = {"go.mod": "module example.com/solution\n\ngo 1.19\n", **stand_in}
    if row.get("example_test"):
        visible["example_test.go"] = test(row["example_test"], "TestExample")
    hidden = {"hidden_test.go": test(row["test"], "TestHidden"), **stand_in}
    return _Layout(("solution.go", buggy, right), visible, hidden, "example.com/solution::TestHidden")


def _rust(row: Row) -> _Layout:
    crates = ("rand", "regex", "md5")
    whole = row["canonical_solution"] + row["test"]
    needed = [name for name in crates if re.search(rf"\b{name}::|\b{name.title()}::", whole)]
    declaration = re.sub(r"^(\s*)fn ", r"\1pub fn ", row["declaration"], flags=re.MULTILINE)
    for name in set(crates) - set(needed):
        declaration = re.sub(rf"^use {name}\b.*\n", "", declaration, flags=re.MULTILINE)
    buggy, right = _both(row, declaration.lstrip("\n"))
    uses = "".join(re.findall(r"^use .*\n", declaration, re.MULTILINE))
    test = re.findall(r"#\[test\]\s*(?://[^\n]*\s*)*fn (\w+)", row["test"])[0]
    dependencies = "".join(f'{name} = {{ path = "crates/{name}" }}\n' for name in needed)
    manifest = '[package]\nname = "{}"\nversion = "0.1.0"\nedition = "2021"\n'
    entry = re.findall(r"fn (\w+)", declaration)[-1]  # in some rows another name than the entry_point
    load = f"use solution::{entry};\n\n#[test]\nfn it_links() {{\n    let _ = {entry};\n}}\n"
    visible = {"Cargo.toml": manifest.format("solution") + f"\n[dependencies]\n{dependencies}", "tests/links.rs": load}
    stand_ins = {f"crates/{name}/Cargo.toml": manifest.format(name) for name in needed}
    stand_ins |= {f"crates/{name}/src/lib.rs": _stand_in(f"{name}.rs") for name in needed}
    hidden = {"tests/hidden.rs": f"{uses}use solution::*;\n{row['test'].rstrip()}\n"}
    return _Layout(("src/lib.rs", buggy, right), visible | stand_ins, hidden | stand_ins, f"hidden::tests::{test}")


_LAYOUTS: dict[str, Callable[[Row], _Layout]] = {
    "Python": _python,
    "JavaScript": _javascript,
    "Go": _go,
    "Rust": _rust,
}


def _stand_in(name: str) -> str:
    return (resources.files("swe_rl.task.formats") / "stand_ins" / name).read_text(encoding="utf-8")
