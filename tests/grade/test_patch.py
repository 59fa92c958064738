"""Patches are made from trees alone, refused for what no solution needs, and applied whole or not at all."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.errors import PatchError
from swe_rl.grade.patch import MAX_DEPTH, MAX_FILES, MAX_PATCH_BYTES, apply_patch, check_patch, make_patch
from swe_rl.sandbox.base import FileEntry


def entry(data: bytes | str, mode: str = "100644") -> FileEntry:
    return FileEntry(mode, data.encode() if isinstance(data, str) else data)


def write_tree(root: Path, tree: dict[str, FileEntry]) -> None:
    for path, file in tree.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if file.mode == "120000":
            (root / path).symlink_to(file.data.decode())
        else:
            (root / path).write_bytes(file.data)
            (root / path).chmod(0o755 if file.mode == "100755" else 0o644)


def read_tree(root: Path) -> dict[str, FileEntry]:
    return {
        str(path.relative_to(root)): entry(path.read_bytes(), "100755" if path.stat().st_mode & 0o100 else "100644")
        for path in root.rglob("*")
        if path.is_file()
    }


BASE = {
    "a.py": entry("one\ntwo\nthree\n"),
    "crlf.txt": entry("one\r\ntwo\r\n"),
    "no_newline.txt": entry("end"),
    "run.sh": entry("echo\n"),
    'with blank/käse "q" b/x.txt': entry("x\n"),
    "gone/deep/file.txt": entry("gone\n"),
    "bytes.dat": entry(b"\0\1\2"),
    "latin1.txt": entry(b"caf\xe9\n"),
    ".gitattributes": entry("*.txt text eol=crlf\n"),
}

CHANGES = {
    "nothing but an edit": {"a.py": entry("one\n2\nthree\n")},
    "an edit that looks like a header": {"a.py": entry("one\ndiff --git b/z b/z\n--- a/z\n+++ b/z\nthree\n")},
    "a new file": {"new/n.py": entry("n\n")},
    "an empty new file": {"new/pkg/__init__.py": entry("")},
    "a new executable": {"new.sh": entry("echo\n", "100755")},
    "a deletion": {"gone/deep/file.txt": None},
    "a mode change": {"run.sh": entry("echo\n", "100755")},
    "line ends kept": {"crlf.txt": entry("one\r\n2\r\n")},
    "line ends changed": {"crlf.txt": entry("one\ntwo\n")},
    "a last line without an end": {"no_newline.txt": entry("end\nmore")},
    "a path that needs quotes": {'with blank/käse "q" b/x.txt': entry("y\n")},
    "a new path with blanks and b/": {"n b/n b/n.txt": entry("y\n")},
    "a new path that needs quotes": {"ta\tb/ü.txt": entry("y\n")},
    "a directory in place of a file": {"a.py": None, "a.py/b.py": entry("b\n")},
    "a file in place of a directory": {"gone/deep/file.txt": None, "gone": entry("g\n")},
    "attributes that call text binary": {".gitattributes": entry("* binary\n"), "a.py": entry("1\n")},
    "attributes that change line ends": {
        ".gitattributes": entry("*.txt text eol=lf\n* ident\n"),
        "crlf.txt": entry("one\n2\r\n$Id$\n"),
        "no_newline.txt": entry("end\r\n"),
        "deep/.gitattributes": entry("* text eol=crlf working-tree-encoding=UTF-16\n"),
        "deep/x.txt": entry("one\ntwo\n"),
    },
    "attributes alone": {".gitattributes": entry("* -text\r\n")},
    "a carriage return alone": {"a.py": entry("one\rtwo\nthree\n")},
    "a form feed and a line separator": {"a.py": entry("one\ftwo\u2028x\n")},
}
BINARY_CHANGES = {
    "bytes": {"bytes.dat": entry(b"\0\1\3")},
    "text that isn't UTF-8": {"latin1.txt": entry(b"caf\xe8\n")},
    "a new binary": {"new.bin": entry(bytes(range(256)) * 20)},
    "a deleted binary": {"bytes.dat": None},
}


def changed(change: dict[str, FileEntry | None]) -> dict[str, FileEntry]:
    return {path: file for path, file in {**BASE, **change}.items() if file is not None}


@pytest.mark.parametrize("name", [*CHANGES, *BINARY_CHANGES])
def test_a_made_patch_turns_the_base_into_the_tree(name: str, tmp_path: Path) -> None:
    tree = changed({**CHANGES, **BINARY_CHANGES}[name])
    write_tree(tmp_path, BASE)
    patch = make_patch(BASE, tree)
    apply_patch(patch, tmp_path, allow_binary=name in BINARY_CHANGES)
    assert read_tree(tmp_path) == tree


def test_equal_trees_make_no_patch_and_need_no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert make_patch(BASE, dict(BASE)) == ""


def test_a_patch_names_exactly_what_differs() -> None:
    tree = changed({"a.py": entry("1\n"), "new/n.py": entry("n\n"), "gone/deep/file.txt": None})
    assert set(check_patch(make_patch(BASE, tree)).paths) == {"a.py", "new/n.py", "gone/deep/file.txt"}


def test_caches_that_running_code_leaves_are_no_part_of_a_patch() -> None:
    tree = changed({"__pycache__/a.pyc": entry(b"\0"), "x/.pytest_cache/v": entry("v"), "target/x.o": entry(b"\0")})
    assert make_patch(BASE, tree, ignored_globs=["target/**"]) == ""
    assert "target/x.o" in make_patch(BASE, tree)


def test_a_file_of_the_base_is_never_ignored() -> None:
    base = {"target/kept.txt": entry("1\n")}
    assert make_patch(base, {}, ignored_globs=["target/**"]) != ""


def test_hostile_git_configuration_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "ran"
    (tmp_path / ".gitconfig").write_text(
        f'[diff]\n external = "touch {mark}; true"\n[core]\n fsmonitor = touch {mark}\n'
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", f"touch {mark}")
    patch = make_patch(BASE, changed({"a.py": entry("1\n")}))
    assert "+1\n" in patch and not mark.exists()


def test_a_link_to_the_host_is_captured_as_its_target_only(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("hush")
    patch = make_patch(BASE, changed({"gone/deep/file.txt": None, "gone": entry(str(secret), "120000")}))
    assert str(secret) in patch and "hush" not in patch
    with pytest.raises(PatchError, match="symbolic link"):
        check_patch(patch)


def section(path: str, mode: str = "100644", line: str = "x") -> str:
    return f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{line}\n"


@pytest.mark.parametrize(
    "path",
    ["../out.txt", "a/../../out.txt", "/etc/passwd", ".git/config", "a/.GIT/hooks/x", "a//b", "./a", "a\\b", "a/."],
)
def test_a_path_out_of_the_repository_is_refused(path: str) -> None:
    with pytest.raises(PatchError, match="path"):
        check_patch(section(path))


@pytest.mark.parametrize(("mode", "word"), [("120000", "symbolic link"), ("160000", "submodule"), ("104755", "mode")])
def test_a_mode_that_no_solution_needs_is_refused(mode: str, word: str) -> None:
    with pytest.raises(PatchError, match=word):
        check_patch(section("a", mode))


def test_a_mode_change_to_a_link_is_refused() -> None:
    with pytest.raises(PatchError, match="symbolic link"):
        check_patch("diff --git a/a b/a\nold mode 100644\nnew mode 120000\n")


def test_binary_content_is_refused_unless_allowed() -> None:
    patch = make_patch(BASE, changed({"bytes.dat": entry(b"\0\t")}))
    with pytest.raises(PatchError, match="binary"):
        check_patch(patch)
    assert check_patch(patch, allow_binary=True).files[0].is_binary


def test_a_patch_that_is_too_large_is_refused() -> None:
    with pytest.raises(PatchError, match="bytes"):
        check_patch(section("a", line="x" * MAX_PATCH_BYTES))


@pytest.mark.parametrize(
    "patch",
    [
        "hello\n",
        "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
        "diff --git a/x b/y\n--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n",
        "diff --git a/x b/x\n--- a/x\n+++ b/tests/x\n@@ -1 +1 @@\n-a\n+b\n",
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-a\n+b\n",
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n+c\n",
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\nnoise\n",
        "diff --git a/x b/y\nrename from x\nrename to tests/y\n",
        "diff --git a/x b/x\nBinary files a/x and b/x differ\n",
        'diff --git "a/\\8" "b/\\8"\nnew file mode 100644\n',
        'diff --git "a/\\377" "b/\\377"\nnew file mode 100644\n',
        section("a", line="\ud800"),
        section("n" * 300),
    ],
)
def test_what_has_no_single_reading_is_refused(patch: str) -> None:
    with pytest.raises(PatchError):
        check_patch(patch)


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 10, "\u0663", "-1", "1e3", ""])
@pytest.mark.parametrize("header", ["-{0},1 +1,1", "-1,{0} +1,1", "-1,1 +{0},1", "-1,1 +1,{0}"])
def test_a_hunk_whose_numbers_git_would_not_read_is_refused(header: str, number: str) -> None:
    patch = f"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ {header.format(number)} @@\n-x\n+y\n"
    with pytest.raises(PatchError, match="line"):
        check_patch(patch)


@pytest.mark.parametrize(
    "grown",
    [
        {f"f{i}": FileEntry("100644", b"") for i in range(MAX_FILES + 1)},
        {f"f{i}": FileEntry("100644", b"x\n" * (MAX_PATCH_BYTES // 16)) for i in range(9)},
        {"f": FileEntry("100644", bytes(MAX_PATCH_BYTES + 1))},
    ],
)
def test_what_no_check_would_take_is_not_even_compared(
    grown: dict[str, FileEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PatchError, match="make it smaller"):
        make_patch({"g": FileEntry("100644", b"")}, grown)


def test_a_patch_of_too_many_files_or_folders_is_refused() -> None:
    new = "diff --git a/{0} b/{0}\nnew file mode 100644\n"
    assert check_patch("".join(new.format(f"f{i}") for i in range(MAX_FILES)))
    with pytest.raises(PatchError, match=f"{MAX_FILES + 1} files"):
        check_patch("".join(new.format(f"f{i}") for i in range(MAX_FILES + 1)))
    assert check_patch(new.format("/".join("d" * MAX_DEPTH)))
    with pytest.raises(PatchError, match="deep"):
        check_patch(new.format("/".join("d" * (MAX_DEPTH + 1))))


def test_a_rename_touches_both_of_its_paths() -> None:
    parsed = check_patch("diff --git a/tests/x b/src/x\nsimilarity index 100%\nrename from tests/x\nrename to src/x\n")
    assert parsed.paths == ("tests/x", "src/x")


def test_a_patch_with_one_bad_part_changes_nothing(tmp_path: Path) -> None:
    write_tree(tmp_path, BASE)
    good = make_patch(BASE, changed({"a.py": entry("1\n")}))
    bad = "diff --git a/run.sh b/run.sh\n--- a/run.sh\n+++ b/run.sh\n@@ -1 +1 @@\n-other\n+x\n"
    with pytest.raises(PatchError, match="doesn't apply"):
        apply_patch(good + bad, tmp_path)
    assert read_tree(tmp_path) == BASE


def test_a_patch_never_writes_beyond_a_link_of_the_tree(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    write_tree(root, {"a.py": entry("a\n")})
    (root / "link").symlink_to(outside)
    with pytest.raises(PatchError, match="link"):
        apply_patch(section("link/x"), root)
    with pytest.raises(PatchError, match="link"):
        apply_patch("diff --git a/link b/link\n--- a/link\n+++ b/link\n@@ -1 +1 @@\n-a\n+b\n", root)
    assert not any(outside.iterdir())


def test_a_patch_applies_inside_another_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    root = tmp_path / "sub"
    write_tree(root, BASE)
    apply_patch(make_patch(BASE, changed({"a.py": entry("1\n")})), root)
    assert (root / "a.py").read_text() == "1\n"


lines = st.lists(
    st.sampled_from(["a", "b", "-- c", "++ d", "", "@@ -1 +1 @@", "diff --git a/x b/x", "\\ No"]), max_size=8
)
texts = st.builds(lambda rows, end: "\n".join(rows) + ("\n" if end else ""), lines, st.booleans())
trees = st.dictionaries(st.sampled_from(["x", "y/z", "y/w", "q r"]), texts.map(entry), max_size=4)


@settings(max_examples=25, deadline=None)
@given(base=trees, tree=trees)
def test_any_pair_of_text_trees_makes_the_round_trip(
    base: dict[str, FileEntry], tree: dict[str, FileEntry], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("tree")
    write_tree(root, base)
    patch = make_patch(base, tree)
    if patch:
        apply_patch(patch, root)
    assert read_tree(root) == tree
