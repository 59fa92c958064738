"""Task folders of any shape: a load or a hash ends with a task or with one of the project's own errors."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_rl.errors import SweRlError
from swe_rl.grade.leaks import telling_lines
from swe_rl.sandbox.tree import remove_tree
from swe_rl.task.formats.humanevalpack import import_humanevalpack
from swe_rl.task.quarantine import read_quarantine
from swe_rl.task.spec import read_task
from swe_rl.task.taskset import TaskSet, freeze_split, verify_split

OUTSIDE = b"a secret of the machine that no task may show: 51af"
FILES = {
    "task.toml": (
        'schema_version = "1"\ntask_id = "t"\nlanguage = "python"\n[labels]\nkind = "x"\n[tests]\n'
        'fail_to_pass = ["tests/test_a.py::test_a"]\npass_to_pass = []\n[limits]\ntimeout_s = 10\n'
    ),
    "instruction.md": "Mend it.\n",
    "environment/src/a.py": "x = 1\n",
    "tests/tests/test_a.py": "def test_a():\n    pass\n",
    "solution/solution.patch": (
        "diff --git a/src/a.py b/src/a.py\n--- a/src/a.py\n+++ b/src/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    ),
}
NAMES = ["a\nb", "-rf", "..a", "a" * 255, "ü\u202e", " ", "con.", "a\\b", "%s{}", "\udcff"]
QUIETLY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
TOML_VALUE = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=20).map(lambda text: f"'{text}'"),
        st.just("1979-05-27"),
    ),
    lambda inner: st.lists(inner, max_size=3).map(lambda values: f"[{', '.join(map(str, values))}]"),
    max_leaves=5,
)
KEYS = ["schema_version", "task_id", "language", "labels", "tests", "limits", "tests.fail_to_pass", "limits.timeout_s"]


def write_task(root: Path) -> Path:
    folder = root / "dev" / "t"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def use(root: Path) -> None:
    """All that is read of a task folder; nothing but the project's own errors may come of it."""
    try:
        for task in TaskSet.load([root]):
            shown = [
                task.instruction,
                task.content_sha256,
                task.solution_patch,
                *telling_lines(task),
                *task.fail_to_pass,
            ]
            assert OUTSIDE.decode() not in "".join(shown)
    except SweRlError as error:
        assert "\n" not in str(error).strip() and OUTSIDE.decode() not in str(error)


def mutate(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 6)):
        at, other = sorted(rng.choices(range(len(data) + 1), k=2))
        piece = rng.choice(
            [b"", b"\0", b"\xff", b"\r\n", b"'''", b"[[", b"\x1b[2J", b"=", b"{", data[at:other], rng.randbytes(3)]
        )
        data = data[:at] + piece * rng.choice([1, 1, 1, 50]) + data[rng.choice([at, other]) :]
    return data


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("seed", range(30))
def test_a_file_with_any_bytes_changed_is_a_task_or_an_error(tmp_path: Path, name: str, seed: int) -> None:
    rng = random.Random(f"{name} {seed}")
    folder = write_task(tmp_path)
    for _ in range(10):
        (folder / name).write_bytes(mutate(FILES[name].encode(), rng))
        use(tmp_path)


@QUIETLY
@given(key=st.sampled_from(KEYS), value=TOML_VALUE)
def test_a_key_with_any_value_is_a_task_or_an_error(tmp_path: Path, key: str, value: object) -> None:
    folder = write_task(tmp_path)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    (folder / "task.toml").write_text(FILES["task.toml"] + f"\n[more]\n{key} = {text}\n")
    use(tmp_path)
    (folder / "task.toml").write_text(f"{key} = {text}\n" + FILES["task.toml"], errors="replace")
    use(tmp_path)


def link(target: str, at: str) -> Callable[[Path], None]:
    def plant(folder: Path) -> None:
        place = folder / at
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
        os.symlink(target.replace("OUT", str(folder.parents[1].parent / "outside")), place)

    return plant


def deep(folder: Path) -> None:
    here = os.open(folder / "environment", os.O_RDONLY)
    for _ in range(1500):  # deeper than the interpreter's own limit of calls
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def many(folder: Path) -> None:
    for number in range(300):
        (folder / "environment" / f"f{number}").touch()


def sparse(name: str) -> Callable[[Path], None]:
    def plant(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            file.truncate(1 << 40)

    return plant


PLANTS: dict[str, Callable[[Path], None]] = {
    **{f"{at} -> {target}": link(target, at) for at in ("task.toml", "instruction.md", "solution/solution.patch",
       "environment/src/a.py", "environment/src", "environment", "tests", "solution", "tests/tests/test_a.py")
       for target in ("OUT/secret", "OUT", "/etc", "../../../outside/secret", ".", "..", "loop", "/proc/self/environ",
                      "/dev/zero", "environment/src/a.py")},
    "a link to itself": lambda folder: os.symlink("self", folder / "environment/self"),
    "a fifo for a task file": lambda folder: ((folder / "task.toml").unlink(), os.mkfifo(folder / "task.toml"))[1],
    "a fifo for a solution": lambda folder: ((folder / "solution/solution.patch").unlink(),
                                             os.mkfifo(folder / "solution/solution.patch"))[1],
    "a fifo for a test": lambda folder: os.mkfifo(folder / "tests/pipe"),
    "a directory for a task file": lambda folder: ((folder / "task.toml").unlink(), (folder / "task.toml").mkdir())[1],
    "a huge task file": sparse("task.toml"),
    "a huge instruction": sparse("instruction.md"),
    "a huge solution": sparse("solution/solution.patch"),
    "a huge file": sparse("environment/big"),
    "a huge hidden test": sparse("tests/tests/test_a.py"),
    "a deep tree": deep,
    "many files": many,
    "no environment": lambda folder: shutil.rmtree(folder / "environment"),
    "a repository": lambda folder: (folder / "environment/.git").mkdir(),
    **{
        f"a name {name!r}": (lambda folder, name=name: (folder / "environment" / name).write_text("x"))
        for name in NAMES
    },
}  # fmt: skip


@pytest.mark.parametrize("what", PLANTS)
def test_a_folder_with_anything_in_it_is_a_task_or_an_error_and_nothing_outside_is_read(
    tmp_path: Path, what: str
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_bytes(OUTSIDE)
    folder = write_task(tmp_path / "root")
    PLANTS[what](folder)
    use(tmp_path / "root")
    remove_tree(tmp_path / "root")


@pytest.mark.parametrize("seed", range(20))
def test_manifests_and_quarantines_of_any_bytes_are_read_or_an_error(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    write_task(tmp_path / "root")
    tasks = TaskSet.load([tmp_path / "root"])
    freeze_split(tasks, "dev", tmp_path / "dev.json")
    whole = (tmp_path / "dev.json").read_bytes()
    entry = b'{"t": {"content_sha256": "%s", "reason": "x"}}' % (b"0" * 64)
    for _ in range(20):
        (tmp_path / "dev.json").write_bytes(mutate(whole, rng))
        (tmp_path / "root/quarantine.json").write_bytes(mutate(entry, rng))
        for read in (
            lambda: verify_split(tasks, "dev", tmp_path / "dev.json"),
            lambda: read_quarantine(tmp_path / "root"),
        ):
            try:
                read()
            except SweRlError as error:
                assert "json" in str(error)


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_any_bytes_are_imported_or_an_error(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    row = (
        b'{"task_id": "Rust/3", "declaration": "use md5;\\nfn one() -> i32 {\\n", "buggy_solution": "2}", '
        b'"canonical_solution": "1}", "test": "#[test]\\nfn test_one() {}", "entry_point": "one", "docstring": "One.", '
        b'"bug_type": "value misuse", "failure_symptoms": "incorrect output", "prompt": "x", "test_setup": "y"}\n'
    )
    for number in range(30):
        name = rng.choice([b"Rust/3", b"Go/3", b"Python/3", b"JavaScript/3", b"../../3", b"Go/../x"])
        (tmp_path / "rows.jsonl").write_bytes(mutate(row.replace(b"Rust/3", name), rng))
        try:
            import_humanevalpack(tmp_path / "rows.jsonl", tmp_path / f"made{number}")
        except SweRlError as error:
            assert "rows.jsonl" in str(error)
        made = list(tmp_path.glob("made*/**/task.toml"))
        assert all(path.parent.parent.name == "humanevalpack" for path in made)
        [read_task(path.parent) for path in made]
