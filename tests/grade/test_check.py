"""A check finds each way in which a task can be unfit, by real runs."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from swe_rl.grade.check import CheckStatus, check_task, check_tasks
from swe_rl.grade.grader import Grader
from swe_rl.grade.judge import Judgement
from swe_rl.task.language import LanguageSpec
from swe_rl.task.spec import TaskSpec, read_task

Agent = Callable[[dict[str, str | None]], str]
HIDDEN = "tests/tests/test_hidden.py"
SOLUTION = "solution/solution.patch"


async def failure(task: TaskSpec, grader: Grader) -> str:
    status, problem = await check_task(task, grader)
    assert status is CheckStatus.FAILED
    return problem


async def test_a_sound_task_has_no_problem(grader: Grader, task: TaskSpec) -> None:
    assert await check_task(task, grader) == (CheckStatus.OK, "")


async def test_a_solution_that_does_not_apply_is_a_problem(grader: Grader, task: TaskSpec) -> None:
    (task.root / SOLUTION).write_text(task.solution_patch.replace("max(x, low)\n", "other\n"))
    assert "patch_failed" in await failure(read_task(task.root), grader)


async def test_a_solution_that_repairs_nothing_is_a_problem(grader: Grader, task: TaskSpec, agent: Agent) -> None:
    (task.root / SOLUTION).write_text(agent({"README.md": "better\n"}))
    assert "unresolved" in await failure(read_task(task.root), grader)
    (task.root / SOLUTION).write_text("")
    assert "empty_patch" in await failure(read_task(task.root), grader)


async def test_a_solution_that_edits_tests_is_a_problem(grader: Grader, task: TaskSpec, agent: Agent) -> None:
    fixed = "def clamp(x, low, high):\n    return min(max(x, low), high)\n"
    (task.root / SOLUTION).write_text(agent({"src/clamp.py": fixed, "tests/test_more.py": "def test_x():\n    pass\n"}))
    assert "protected" in await failure(read_task(task.root), grader)


async def test_a_test_that_already_passes_is_no_fail_to_pass(grader: Grader, task: TaskSpec) -> None:
    both = replace(task, fail_to_pass=(*task.fail_to_pass, task.pass_to_pass[0]), pass_to_pass=())
    problem = await failure(both, grader)
    assert f"1 of 2 fail_to_pass tests pass on the unpatched base: {task.pass_to_pass[0]}" in problem


async def test_a_test_that_fails_at_the_base_is_no_pass_to_pass(grader: Grader, task: TaskSpec) -> None:
    swapped = replace(task, pass_to_pass=task.fail_to_pass, fail_to_pass=("tests/test_hidden.py::test_new",))
    (task.root / HIDDEN).write_text(
        "from clamp import clamp\n\n\ndef test_upper():\n    assert clamp(5, 1, 3) == 3\n\n\n"
        "def test_new():\n    assert clamp(6, 1, 3) == 3\n"
    )
    problem = await failure(swapped, grader)
    assert "pass_to_pass tests don't pass on the base" in problem and problem.endswith(f": {task.fail_to_pass[0]}")


async def test_an_expected_test_that_is_never_run_is_a_problem(grader: Grader, task: TaskSpec) -> None:
    missing = tuple(f"tests/x.py::y{number}" for number in range(5))
    problem = await failure(replace(task, fail_to_pass=(*task.fail_to_pass, *missing)), grader)
    assert "1/6" in problem
    assert problem.endswith(f": {', '.join(missing[:3])} and 2 more")


async def test_a_base_without_an_end_is_a_problem(grader: Grader, task: TaskSpec, agent: Agent) -> None:
    (task.root / "environment/src/clamp.py").write_text("while True:\n    pass\n")
    (task.root / SOLUTION).write_text(
        agent({"src/clamp.py": "def clamp(x, low, high):\n    return min(max(x, low), high)\n"})
    )
    assert "time limit" in await failure(replace(read_task(task.root), timeout_s=1.0), grader)


# Each passes about every other time, for another reason; a fresh sandbox takes away what the last one leaves behind.
FLAKY = {
    "random": "import random\n\n\ndef test_upper():\n    assert random.random() < 0.5\n",
    "time": "import time\n\n\ndef test_upper():\n    assert time.time_ns() // 1000 % 2\n",
    "order": "def test_upper():\n    assert next(iter({'a', 'b'})) == 'a'\n",
    "number of tests": (
        "import random\nfrom clamp import clamp\n\n\ndef test_upper():\n    assert clamp(5, 1, 3) == 3\n\n\n"
        "if random.random() < 0.5:\n\n    def test_more():\n        pass\n"
    ),
}
LEFT_FILE = (
    "import os\nfrom clamp import clamp\n\n\ndef test_upper():\n    assert not os.path.exists('/tmp/left')\n"
    "    open('/tmp/left', 'w').close()\n    assert clamp(5, 1, 3) == 3\n"
)
LOWER = "\n\ndef test_lower():\n    pass\n"


@pytest.mark.parametrize("kind", FLAKY)
async def test_a_task_whose_runs_differ_is_flaky(grader: Grader, task: TaskSpec, kind: str) -> None:
    (task.root / HIDDEN).write_text(FLAKY[kind] + LOWER)
    status, problem = await check_task(read_task(task.root), grader, num_runs=40)
    assert status is CheckStatus.FLAKY and "differs from the first" in problem


async def test_a_file_that_a_test_leaves_behind_makes_no_task_flaky(grader: Grader, task: TaskSpec) -> None:
    (task.root / HIDDEN).write_text(LEFT_FILE + LOWER)
    assert await check_task(read_task(task.root), grader, num_runs=3) == (CheckStatus.OK, "")


async def test_a_task_that_fails_in_the_same_way_each_time_is_not_flaky(grader: Grader, task: TaskSpec) -> None:
    (task.root / HIDDEN).write_text("def test_upper():\n    assert False\n" + LOWER)
    status, _ = await check_task(read_task(task.root), grader, num_runs=3)
    assert status is CheckStatus.FAILED


async def test_a_task_that_decays_between_runs_is_flaky(grader: Grader, task: TaskSpec) -> None:
    class Decaying(Grader):
        async def run_once(self, task: TaskSpec, patch: str = "") -> Judgement:
            judgement = await super().run_once(task, patch)
            (task.root / HIDDEN).write_text("def test_upper():\n    assert False\n" + LOWER)
            return judgement

    grader.__class__ = Decaying
    status, problem = await check_task(task, grader)
    assert status is CheckStatus.FLAKY and "run 2 of the solution" in problem


async def test_results_come_in_order_and_a_missing_toolchain_is_a_skip(
    grader: Grader, task: TaskSpec, python: LanguageSpec
) -> None:
    languages = {"python": python, "lisp": replace(python, language="lisp", requires=("no-such-lisp",))}
    tasks = [task, replace(task, task_id="in-lisp", language="lisp"), replace(task, task_id="x", language="cobol")]
    results = [result async for result in check_tasks(tasks, grader, languages, needs_host_tools=True)]
    assert [(result.task_id, result.status) for result in results] == [
        ("clamp", CheckStatus.OK),
        ("in-lisp", CheckStatus.SKIPPED),
        ("x", CheckStatus.FAILED),
    ]
    assert "no-such-lisp" in results[1].problem and "cobol" in results[2].problem


async def test_a_folder_with_a_repository_inside_is_a_problem(
    grader: Grader, task: TaskSpec, python: LanguageSpec
) -> None:
    (task.environment_dir / ".git").mkdir()
    results = [r async for r in check_tasks([task], grader, {"python": python}, needs_host_tools=True)]
    assert results[0].status is CheckStatus.FAILED and ".git" in results[0].problem


async def test_the_base_is_run_even_though_an_empty_patch_is_not(grader: Grader, task: TaskSpec) -> None:
    judgement = await grader.run_once(task)
    assert (judgement.fail_to_pass.passed, judgement.pass_to_pass.passed) == (0, 2)
