"""Task folders are read strictly, hashed whole, and frozen by manifests."""

import os
from pathlib import Path

import pytest

from swe_rl.errors import TaskError
from swe_rl.task.quarantine import quarantine, read_quarantine
from swe_rl.task.spec import read_task
from swe_rl.task.taskset import TaskSet, freeze_split, verify_split

TOML = """schema_version = "1"
task_id = "{task_id}"
language = "python"
[labels]
kind = "slot"
[tests]
fail_to_pass = ["a"]
pass_to_pass = ["b"]
"""


def write_task(root: Path, task_id: str = "t-1", split: str = "dev", toml: str = TOML) -> Path:
    folder = root / split / task_id
    for part in ("environment/src", "tests", "solution"):
        (folder / part).mkdir(parents=True)
    (folder / "task.toml").write_text(toml.replace("{task_id}", task_id))
    (folder / "instruction.md").write_text("Repair it.\n")
    (folder / "environment/src/a.py").write_text("x = 1\n")
    (folder / "tests/test_a.py").write_text("assert True\n")
    (folder / "solution/solution.patch").write_bytes(b"diff\r\n")
    return folder


def test_a_task_is_read_whole(tmp_path: Path) -> None:
    toml = TOML + 'command = ["run"]\n[limits]\ntimeout_s = 5.5\nmemory_mb = 99\n'
    task = read_task(write_task(tmp_path, toml=toml))
    assert (task.task_id, task.split, task.language, task.labels) == ("t-1", "dev", "python", {"kind": "slot"})
    assert (task.fail_to_pass, task.pass_to_pass) == (("a",), ("b",))
    assert (task.test_command, task.visible_command) == (("run",), None)
    assert (task.timeout_s, task.memory_mb) == (5.5, 99)
    assert task.solution_patch == "diff\r\n" and len(task.content_sha256) == 64


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('schema_version = "1"', 'schema_version = "2"', ["schema_version"]),
        ('schema_version = "1"\n', "", ["schema_version", "required"]),
        ('"{task_id}"', '"other"', ["task_id", "other"]),
        ('"{task_id}"', '"../x"', ["task_id"]),
        ('language = "python"', "language = 3", ["language", "string"]),
        ('kind = "slot"', "kind = 1", ["labels.kind"]),
        ('["a"]', "[]", ["tests.fail_to_pass"]),
        ('["a"]', '"a"', ["tests.fail_to_pass"]),
        ('["b"]', '["a"]', ["'a'", "twice"]),
        ('["b"]', '["b", "b"]', ["'b'", "twice"]),
        ('["b"]', '[""]', ["empty"]),
        ("[labels]", "[label]", ["label"]),
        ("[tests]", "[tests]\nfail_to_fail = []", ["tests.fail_to_fail", "unknown key"]),
        ("fail_to_pass", "fail_to_pas", ["tests.fail_to_pas:", "unknown key", "1 more"]),
        ("[tests]", "[test]", ["test:", "unknown key"]),
        ("[labels]", "[limits]\ntimeout_s = 0\n[labels]", ["limits.timeout_s"]),
        ("[labels]", "[labels", ["TOML"]),
    ],
)
def test_a_broken_task_file_is_one_line_with_file_and_key(old: str, new: str, words: list[str], tmp_path: Path) -> None:
    assert old in TOML
    folder = write_task(tmp_path, toml=TOML.replace(old, new))
    with pytest.raises(TaskError) as caught:
        read_task(folder)
    message = str(caught.value)
    assert "\n" not in message and "task.toml" in message
    assert all(word in message for word in words), message


def test_a_folder_one_floor_off_is_told_where_a_task_lies(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    with pytest.raises(TaskError, match=r"environment/task\.toml: no such file; a task is a folder <split>/<task_id>"):
        read_task(folder / "environment")


@pytest.mark.parametrize("part", ["environment", "tests", "instruction.md", "task.toml"])
def test_a_missing_part_is_named(part: str, tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    os.rename(folder / part, tmp_path / "away")
    with pytest.raises(TaskError, match=part):
        read_task(folder)


def test_a_task_without_a_solution_says_so_when_asked(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    (folder / "solution/solution.patch").unlink()
    task = read_task(folder)
    with pytest.raises(TaskError, match=r"solution\.patch"):
        _ = task.solution_patch


def test_the_hash_sees_names_modes_and_bytes_and_nothing_else(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    source, seen = folder / "environment/src/a.py", [read_task(folder).content_sha256]
    os.utime(source, (1, 1))
    source.chmod(0o600)
    assert read_task(folder).content_sha256 == seen[0]
    for change in (
        lambda: source.chmod(0o755),
        lambda: source.write_text("x = 2\n"),
        lambda: source.rename(source.with_name("b.py")),
        lambda: (folder / "tests/test_a.py").write_text("assert False\n"),
        lambda: (folder / "solution/solution.patch").write_text("other\n"),
        lambda: (folder / "environment/link").symlink_to("src/b.py"),
        lambda: (folder / "environment/new").write_text(""),
    ):
        change()
        seen.append(read_task(folder).content_sha256)
    assert len(set(seen)) == len(seen)


def test_a_copy_elsewhere_has_the_same_hash(tmp_path: Path) -> None:
    one, two = write_task(tmp_path / "1"), write_task(tmp_path / "2", split="train")
    assert read_task(one).content_sha256 == read_task(two).content_sha256


def test_what_a_task_may_not_hold_is_refused_by_the_hash(tmp_path: Path) -> None:
    for number, spoil in enumerate(
        (
            lambda folder: (folder / "environment/.git").mkdir(),
            lambda folder: (folder / "environment/out").symlink_to("/etc"),
            lambda folder: (folder / "environment/up").symlink_to("../solution/solution.patch"),
            lambda folder: os.mkfifo(folder / "environment/pipe"),
        )
    ):
        folder = write_task(tmp_path, f"t-{number}")
        spoil(folder)
        with pytest.raises(TaskError):
            _ = read_task(folder).content_sha256


def test_a_task_set_is_ordered_and_knows_its_splits(tmp_path: Path) -> None:
    for task_id, split in (("b", "train"), ("a", "train"), ("c", "dev")):
        write_task(tmp_path, task_id, split)
    tasks = TaskSet.load([tmp_path])
    assert [task.task_id for task in tasks] == ["c", "a", "b"] and tasks.splits == ["dev", "train"]
    assert [task.task_id for task in tasks.tasks("train")] == ["a", "b"]
    assert tasks.get("b").split == "train"
    for ask in (lambda: tasks.get("x"), lambda: tasks.tasks("verified")):
        with pytest.raises(TaskError):
            ask()


def test_one_id_in_two_places_is_an_error(tmp_path: Path) -> None:
    write_task(tmp_path / "1", "same", "train")
    write_task(tmp_path / "2", "same", "dev")
    with pytest.raises(TaskError, match="same"):
        TaskSet.load([tmp_path / "1", tmp_path / "2"])


def test_a_root_without_tasks_is_an_error(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "absent"):
        with pytest.raises(TaskError, match=root.name):
            TaskSet.load([root])


def test_a_manifest_notices_a_changed_a_new_and_a_lost_task(tmp_path: Path) -> None:
    root, manifest = tmp_path / "tasks", tmp_path / "dev.json"
    write_task(root, "a")
    folder = write_task(root, "b")
    freeze_split(TaskSet.load([root]), "dev", manifest)
    verify_split(TaskSet.load([root]), "dev", manifest)
    (folder / "instruction.md").write_text("Other.\n")
    with pytest.raises(TaskError, match="b: the folder's hash"):
        verify_split(TaskSet.load([root]), "dev", manifest)
    freeze_split(TaskSet.load([root]), "dev", manifest)
    os.rename(folder, tmp_path / "b")
    with pytest.raises(TaskError, match="b: is in the manifest"):
        verify_split(TaskSet.load([root]), "dev", manifest)
    os.rename(tmp_path / "b", folder)
    write_task(root, "c")
    with pytest.raises(TaskError, match="c: is in split"):
        verify_split(TaskSet.load([root]), "dev", manifest)
    manifest.write_text("[]")
    with pytest.raises(TaskError, match="manifest"):
        verify_split(TaskSet.load([root]), "dev", manifest)


def test_a_quarantined_task_is_left_out_until_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root, manifest = tmp_path / "tasks", tmp_path / "dev.json"
    folder = write_task(root, "a")
    write_task(root, "b")
    freeze_split(TaskSet.load([root]), "dev", manifest)
    assert quarantine(read_task(folder), "passes\nnow and then") == root / "quarantine.json"
    tasks = TaskSet.load([root])
    assert [task.task_id for task in tasks] == ["b"] and "a is left out: quarantined" in caplog.text
    with pytest.raises(TaskError, match="quarantined: passes now and then"):
        tasks.get("a")
    verify_split(tasks, "dev", manifest)
    (folder / "instruction.md").write_text("Other.\n")
    assert [task.task_id for task in TaskSet.load([root])] == ["a", "b"]


def test_a_second_task_joins_the_quarantine(tmp_path: Path) -> None:
    for name in ("a", "b"):
        quarantine(read_task(write_task(tmp_path, name)), "flaky")
    assert set(read_quarantine(tmp_path)) == {"a", "b"}


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": {"reason": "x"}}', "\xff", "[" * 100_000])
def test_a_quarantine_that_can_not_be_read_is_an_error(tmp_path: Path, text: str) -> None:
    write_task(tmp_path)
    (tmp_path / "quarantine.json").write_text(text, encoding="latin-1")
    with pytest.raises(TaskError, match=r"quarantine\.json"):
        TaskSet.load([tmp_path])
