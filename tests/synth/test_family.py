"""The parametric family: deterministic, disjoint by construction, and what it says of tests is true when they run."""

import itertools
import json
import re
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest

from swe_rl.errors import TaskError
from swe_rl.synth.expert import Expert
from swe_rl.synth.family import SynthTask, all_bugs, make_task
from swe_rl.synth.nouns import WORDS
from swe_rl.synth.templates import TEMPLATES
from swe_rl.synth.write import solution_patch, write_family
from swe_rl.task.spec import read_task
from swe_rl.task.taskset import TaskSet

NUM = 300


@pytest.fixture(scope="module")
def train() -> list[SynthTask]:
    return [make_task("train", index) for index in range(NUM)]


@pytest.fixture(scope="module")
def verified() -> list[SynthTask]:
    return [make_task("verified", index) for index in range(256)]


def test_a_task_is_a_function_of_seed_split_and_index_alone(train: list[SynthTask]) -> None:
    assert make_task("train", 7) == train[7]
    assert make_task("train", 7, seed=1) != train[7]


def test_no_bug_instance_of_train_is_in_verified_by_construction() -> None:
    held_out = {bug.bug_id for bug in all_bugs() if bug.is_held_out}
    assert held_out
    assert {bug.bug_id for bug in all_bugs()} - held_out
    assert all(bug.is_held_out for bug in all_bugs() if bug.template.is_held_out)


def test_every_right_choice_of_a_seen_template_keeps_two_wrong_ones_for_training_and_holds_one_out() -> None:
    held_out = Counter((b.template.name, b.right, b.language) for b in all_bugs() if b.is_held_out)
    for bug in all_bugs():
        if not bug.template.is_held_out:
            assert held_out[(bug.template.name, bug.right, bug.language)] == 1
            assert len(bug.template.kind.choices) - 1 >= 3


def test_drawn_parts_share_neither_bugs_nor_templates_nor_names(
    train: list[SynthTask], verified: list[SynthTask]
) -> None:
    assert not {t.bug.bug_id for t in train} & {t.bug.bug_id for t in verified}
    held_out = {t.bug.template.name for t in verified if t.labels["holdout"] == "template"}
    assert held_out == {t.name for t in TEMPLATES if t.is_held_out}
    assert not held_out & {t.bug.template.name for t in train}
    assert not set(WORDS["train"]) & set(WORDS["verified"])
    assert not {path for t in train for path in t.files} - {"src/stats.js"} & {p for t in verified for p in t.files}


def test_verified_has_a_quarter_of_whole_held_out_templates(verified: list[SynthTask]) -> None:
    assert Counter(t.labels["holdout"] for t in verified) == {"template": 64, "instance": 192}


def test_both_languages_and_all_kinds_are_drawn(train: list[SynthTask]) -> None:
    assert {t.bug.language for t in train} == {"python", "javascript"}
    assert {t.labels["kind"] for t in train} == {t.kind.name for t in TEMPLATES}


def test_a_task_has_tests_of_both_sorts_and_one_fix_among_the_alternatives(train: list[SynthTask]) -> None:
    for task in train:
        assert task.fail_to_pass
        assert task.pass_to_pass
        assert task.files[task.source_path].count(task.broken_line) == 1
        assert task.alternatives.count(task.fixed_line) == 1
        assert task.broken_line not in task.alternatives


def test_the_issue_never_holds_source_of_the_fix(train: list[SynthTask]) -> None:
    for task in train:
        assert task.fixed_line.strip() not in task.instruction


def test_hidden_tests_are_not_in_the_environment(train: list[SynthTask]) -> None:
    for task in train:
        assert not set(task.hidden) & set(task.files)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(TaskError, match="expected train or verified"):
        make_task("test", 0)


def test_written_folders_read_back_as_tasks_and_a_second_write_changes_nothing(tmp_path: Path) -> None:
    write_family(tmp_path, num_train=5, num_verified=5, seed=3)
    tasks = TaskSet.load([tmp_path])
    hashes = {task.task_id: task.content_sha256 for task in tasks}
    assert tasks.splits == ["train", "verified"]
    write_family(tmp_path, num_train=5, num_verified=5, seed=3)
    assert {task.task_id: task.content_sha256 for task in TaskSet.load([tmp_path])} == hashes
    task = make_task("train", 2, 3)
    read = read_task(tmp_path / "train" / task.task_id)
    assert (read.fail_to_pass, read.pass_to_pass) == (task.fail_to_pass, task.pass_to_pass)
    assert read.solution_patch == solution_patch(task)
    assert read.labels == task.labels


def test_verified_is_frozen_and_a_changed_folder_is_found(tmp_path: Path) -> None:
    frozen = json.loads((resources.files("swe_rl.synth") / "verified.json").read_text())
    assert len(frozen) == 256
    write_family(tmp_path, num_train=0, num_verified=256)
    changed = tmp_path / "verified" / "synth-verified-00009" / "instruction.md"
    changed.write_text(changed.read_text() + " ")
    with pytest.raises(TaskError, match=r"synth-verified-00009.*frozen"):
        write_family(tmp_path, num_train=0, num_verified=256)


def play(expert: Expert, task: SynthTask, session: str, observation: str) -> list[str]:
    replies: list[str] = []
    context = task.instruction
    for turn in range(6):
        reply = expert.reply(session, turn, context)
        replies.append(reply)
        if '"submit"' in reply:
            break
        context += f"{reply}<tool_response>\n{observation}\n</tool_response>"
    return replies


def test_the_expert_follows_the_issue_seldom_and_else_chooses_uniformly(train: list[SynthTask]) -> None:
    task = train[0]
    expert = Expert([task])
    first_edits = Counter(
        line
        for session in range(900)
        for line in task.alternatives
        if json.dumps(line)[1:-1] + '"}}' in play(expert, task, f"s{session}", "ok")[1]
    )
    assert sum(first_edits.values()) == 900
    right = first_edits.pop(task.fixed_line)
    assert 330 < right < 450  # 390 expected of 900, standard deviation 15
    assert len(first_edits) == 2
    assert min(first_edits.values()) > 200  # of 255 expected


def test_the_expert_edits_what_stands_there_and_never_tries_a_choice_twice(train: list[SynthTask]) -> None:
    for number, task in enumerate(train[:50]):
        replies = play(Expert([task]), task, f"s{number}", "FAIL test_0: expected 1, got 2")
        edits = [json.loads(re.findall(r"\{.*\}", r)[0])["arguments"] for r in replies if '"edit"' in r]
        assert edits[0]["old"] == task.broken_line
        assert all(now["old"] == before["new"] for before, now in itertools.pairwise(edits))
        assert len({e["new"] for e in edits}) == len(edits)


def test_the_expert_refuses_a_task_that_it_was_not_given(train: list[SynthTask]) -> None:
    with pytest.raises(TaskError, match="no task with this issue"):
        Expert(train[:1]).reply("s", 0, train[1].instruction)
