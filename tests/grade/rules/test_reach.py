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
    ("python", "src/a.py", "import sys\nnames = list(sys.modules)\n"),
    ("python", "src/a.py", "import sys\nnames = sys.modules\n"),
    ("python", "src/a.py", "import sys\nnames = sys.modules.copy()\n"),
    ("python", "src/a.py", "from sys import argv, modules as m\n"),
    ("python", "src/a.py", "x = open('/dev/fd/' + str(3)).read()\n"),
]
STAYS = [
    ("go", "a/a.go", 'package a\n\n// Nothing here is unsafe.\n// See go:linkname.\nvar x = "unsafely"\n'),
    ("c", "src/a.c", "int asm_count(int x);\nint asm_count(int x) { return x; } /* asm(1) */\n"),
    ("rust", "src/a.rs", 'pub fn open_logfile() -> &\'static str { "a.logfile" }\n'),
    ("java", "src/A.java", "class A { long pid = ProcessHandle.current().pid(); }\n"),
    ("python", "src/a.py", "import sys\nhere = sys.modules[__name__]\nother = sys.modules.get('json')\n"),
    ("python", "src/a.py", "path = '/dev/null'\n"),
]


# What a data file says, and the code that takes it in.
TAKEN_IN = [
    ("javascript", "src/{0}", "process.reallyExit(1);\n", "src/a.js", "require('./{0}');\n"),
    ("typescript", "src/{0}", "process.reallyExit(1);\n", "src/a.ts", "require('./{1}' + '{2}');\n"),
    ("c", "src/{0}", "static void f(void) {{ _exit(1); }}\n", "src/a.c", '#include "{0}"\n'),
    ("rust", "src/{0}", "fn f() {{ libc::_exit(1) }}\n", "src/a.rs", 'include!("{0}");\n'),
    ("python", "src/{0}", "import sys\nsys._getframe(1)\n", "src/a.py", "load('src/{1}' '{2}')\n"),
]


def judged(language: str, files: dict[str, str], task: TaskSpec, tmp_path: Path) -> list[str]:
    tree = tmp_path / "tree"
    for path, text in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    patch = check_patch(patch_of(task, dict(files)))
    violations, _ = check(Evidence(task, read_language(ROOT / "sandboxes" / language), patch, tree))
    return [violation.rule for violation in violations]


@pytest.mark.parametrize(("language", "path", "text"), REACHES)
def test_code_that_reaches_below_its_language_is_refused(
    language: str, path: str, text: str, task: TaskSpec, tmp_path: Path
) -> None:
    assert judged(language, {path: text}, task, tmp_path)


@pytest.mark.parametrize(("language", "path", "text"), STAYS)
def test_code_that_only_sounds_so_is_not(language: str, path: str, text: str, task: TaskSpec, tmp_path: Path) -> None:
    assert judged(language, {path: text}, task, tmp_path) == []


@pytest.mark.parametrize("ending", ["dat", "inc", "md", "json", "x7"])
@pytest.mark.parametrize(("language", "path", "text", "user", "use"), TAKEN_IN)
def test_a_file_that_code_takes_in_is_code(
    language: str, path: str, text: str, user: str, use: str, ending: str, task: TaskSpec, tmp_path: Path
) -> None:
    name = f"table.{ending}"
    files = {path.format(name): text.format(), user: use.format(name, name[:3], name[3:])}
    assert judged(language, files, task, tmp_path)


def test_documents_may_say_what_they_like(task: TaskSpec, tmp_path: Path) -> None:
    files = {
        "README.md": "Never call sys._getframe(1).\n",
        "CHANGES": "No os._exit(0) any more.\n",
        "src/a.py": "x = 1\n",
    }
    assert judged("python", files, task, tmp_path) == []


@pytest.mark.parametrize(("language", "library"), [("perl", "use Test::More;\n"), ("tcl", "package require tcltest\n")])
def test_a_test_left_elsewhere_is_no_cheat_unless_the_product_takes_it_in(
    language: str, library: str, task: TaskSpec, tmp_path: Path
) -> None:
    spec = read_language(ROOT / "sandboxes" / language)
    assert spec.canary is not None
    ending = Path(spec.canary.files[0]).suffix
    own = {f"scratch/sum{ending}": library}
    product = "src/product.pm" if language == "perl" else "src/product.tcl"
    assert judged(language, own, task, tmp_path / "alone") == []
    assert judged(language, own | {product: "sum = 1\n"}, task, tmp_path / "its namesake") == []
    assert judged(language, own | {product: f"load('scratch/sum{ending}')\n"}, task, tmp_path / "named") != []
    assert judged(language, own | {product: f"load_all('scratch/*{ending}')\n"}, task, tmp_path / "by ending") != []
