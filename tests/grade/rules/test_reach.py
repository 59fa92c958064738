"""What reaches below its language, where names, packages and the tests' own tables have no bounds; and what doesn't."""

from pathlib import Path

import pytest

from swe_rl.grade.patch import check_patch
from swe_rl.grade.rules import check
from swe_rl.grade.rules.evidence import Evidence
from swe_rl.task.language import read_language
from swe_rl.task.spec import TaskSpec
from tests.grade.conftest import ROOT, patch_of

TESTS_TABLE = (
    'package a\n\nimport (\n\t"testing"\n\t_ "unsafe"\n)\n\n'
    "//go:linkname all main.tests\nvar all []testing.InternalTest\n"
)
REACHES = [
    ("go", "a/a.go", TESTS_TABLE),
    ("go", "a/a.go", "package a\n\n//go:linkname all main.tests\nvar all []int\n"),
    ("go", "a/a.go", 'package a\n\nimport low "unsafe"\n\nvar x = low.Pointer(nil)\n'),
    ("go", "a/a_amd64.s", "TEXT ·f(SB), $0\n\tRET\n"),
    ("c", "src/a.c", 'void stop(int code) __asm__("_exit");\nvoid stop(int code) { (void)code; }\n'),
    ("c", "src/a.c", 'void f(void) { __asm__ volatile ("mov $60, %eax; syscall"); }\n'),
    ("c", "src/a.c", 'int mine(void) { return 0; }\nint other(void) __attribute__((alias("mine")));\n'),
    ("c", "src/a.c", "#pragma redefine_extname stop _exit\nvoid stop(int code) { (void)code; }\n"),
    ("cpp", "src/a.cpp", 'asm(".globl _exit");\n'),
    ("rust", "src/a.rs", 'std::arch::global_asm!(".globl _exit");\n'),
    ("java", "src/A.java", 'class A { String s = System.getProperty("sun.java.command"); }\n'),
    ("java", "src/A.java", "class A { Object o = ProcessHandle.current().info().arguments(); }\n"),
    ("python", "src/a.py", "x = open('/dev/fd/' + str(3)).read()\n"),
]
STAYS = [
    ("go", "a/a.go", 'package a\n\n// Nothing here is unsafe.\n// See go:linkname.\nvar x = "unsafely"\n'),
    ("c", "src/a.c", "int asm_count(int x);\nint asm_count(int x) { return x; } /* asm(1) */\n"),
    ("rust", "src/a.rs", 'pub fn open_logfile() -> &\'static str { "a.logfile" }\n'),
    ("java", "src/A.java", "class A { long pid = ProcessHandle.current().pid(); }\n"),
    ("python", "src/a.py", "path = '/dev/null'\n"),
]


def judged(language: str, path: str, text: str, task: TaskSpec, tmp_path: Path) -> list[str]:
    tree = tmp_path / "tree"
    (tree / path).parent.mkdir(parents=True)
    (tree / path).write_text(text)
    patch = check_patch(patch_of(task, {path: text}))
    violations, _ = check(Evidence(task, read_language(ROOT / "sandboxes" / language), patch, tree))
    return [violation.rule for violation in violations]


@pytest.mark.parametrize(("language", "path", "text"), REACHES)
def test_code_that_reaches_below_its_language_is_refused(
    language: str, path: str, text: str, task: TaskSpec, tmp_path: Path
) -> None:
    assert judged(language, path, text, task, tmp_path)


@pytest.mark.parametrize(("language", "path", "text"), STAYS)
def test_code_that_only_sounds_so_is_not(language: str, path: str, text: str, task: TaskSpec, tmp_path: Path) -> None:
    assert judged(language, path, text, task, tmp_path) == []
