"""Patches that nobody would write: no crash, no hang, no reward, and nothing written outside of the tree.

A byte-level mutator works on real patches (solutions and cheats), Hypothesis makes some of the format's own pieces.
"""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.errors import PatchError
from swe_rl.grade.grader import Grader
from swe_rl.grade.patch import apply_patch, check_patch
from swe_rl.grade.rules import check
from swe_rl.grade.rules.evidence import Evidence
from swe_rl.task.language import LanguageSpec
from swe_rl.task.spec import TaskSpec

SEEDS = 400
PIECES = [
    *("diff --git a/src/clamp.py b/src/clamp.py\n", "--- a/src/clamp.py\n", "+++ b/src/clamp.py\n", "--- /dev/null\n"),
    *("@@ -1,2 +1,2 @@\n", "@@ -0,0 +1 @@\n", " def clamp(x, low, high):\n", "-    return max(x, low)\n", "+x = 1\n"),
    *("new file mode 100644\n", "new file mode 120000\n", "deleted file mode 100644\n", "old mode 100644\n"),
    *("rename from src/clamp.py\n", "rename to ../x\n", "copy from a\n", "copy to tests/test_hidden.py\n"),
    *("GIT binary patch\n", "literal 3\n", "Kc$~{i\n", "\n", "\\ No newline at end of file\n", "index 0..1 100755\n"),
    *(
        'diff --git "a/\\303\\251" "b/\\303\\251"\n',
        "diff --git a/.git/x b/.git/x\n",
        "+++ b/../../etc/x\n",
        "\0",
        "\r\n",
    ),
    *("diff --git a/tests b/tests\n", "+++ b//abs\n", "similarity index 100%\n", "\u2028", "\ud800"),
]


def mutate(data: bytes, draw: random.Random) -> bytes:
    """A few changes of the kinds that break parsers: flipped, lost, doubled, moved and foreign bytes."""
    work = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        at, size = draw.randrange(len(work) + 1), draw.randint(1, 40)
        kind = draw.randrange(6)
        if kind == 0 and work:
            work[at % len(work)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del work[at : at + size]
        elif kind == 2:
            work[at:at] = work[at : at + size]
        elif kind == 3:
            work[at:at] = draw.randbytes(size)
        elif kind == 4:
            work[at:at] = draw.choice(PIECES).encode("utf-8", "surrogatepass")
        else:
            cut = work[at : at + size]
            del work[at : at + size]
            place = draw.randrange(len(work) + 1)
            work[place:place] = cut
    return bytes(work)


def listing(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def try_patch(patch: str, task: TaskSpec, python: LanguageSpec, root: Path) -> bool:
    """Applies and judges it in a fresh tree; whether it was accepted. Anything but PatchError is a failure."""
    tree = root / "inside" / "tree"
    for source in sorted(task.environment_dir.rglob("*")):
        target = tree / source.relative_to(task.environment_dir)
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    around = listing(root) - {path for path in listing(root) if path.startswith("inside/tree/")}
    before = {path: (tree / path).read_bytes() for path in listing(tree) if (tree / path).is_file()}
    try:
        parsed = apply_patch(patch, tree, scratch_dir=root / "scratch")
    except PatchError:
        after = {path: (tree / path).read_bytes() for path in listing(tree) if (tree / path).is_file()}
        assert after == before
        return False
    finally:
        assert {path for path in listing(root) if not path.startswith("inside/tree/")} == around
    assert not any(path.is_symlink() for path in tree.rglob("*"))
    evidence = Evidence(task, python, parsed, tree)
    check(evidence)
    return True


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "fuzz" / "scratch").mkdir(parents=True)
    (tmp_path / "fuzz" / "inside").mkdir()
    return tmp_path / "fuzz"


def test_mutated_patches_never_crash_nor_leave_the_tree(task: TaskSpec, python: LanguageSpec, place: Path) -> None:
    num_accepted = 0
    for seed in range(SEEDS):
        draw = random.Random(seed)
        patch = mutate(task.solution_patch.encode(), draw).decode("utf-8", "surrogateescape")
        (place / str(seed) / "scratch").mkdir(parents=True)
        (place / str(seed) / "inside").mkdir()
        num_accepted += try_patch(patch, task, python, place / str(seed))
    assert 0 < num_accepted < SEEDS  # both ways were taken


@settings(max_examples=150, deadline=None)
@given(pieces=st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=12)), max_size=14))
def test_any_arrangement_of_the_format_s_pieces_is_read_or_refused(pieces: list[str]) -> None:
    try:
        parsed = check_patch("".join(pieces))
    except PatchError as error:
        assert "\n" not in str(error)
    else:
        assert all(not path.startswith("/") and ".." not in path.split("/") for path in parsed.paths)


async def test_a_mutated_patch_that_mends_nothing_is_not_rewarded(task: TaskSpec, grader: Grader) -> None:
    """A mutation that leaves the mending line whole may be rewarded; one without it never is."""
    mending = "+    return min(max(x, low), high)"
    judged = []
    for seed in range(SEEDS, SEEDS + 400):
        patch = mutate(task.solution_patch.encode(), random.Random(seed)).decode("utf-8", "surrogateescape")
        if mending not in patch.split("\n"):
            judged.append(await grader.grade(task, patch))
    assert len(judged) > 20
    assert [verdict for verdict in judged if verdict.reward != 0.0] == []
