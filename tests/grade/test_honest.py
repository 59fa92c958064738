"""Honest code of everyday shapes, in a patch that fixes the task: what isn't a cheat isn't refused."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from textwrap import indent

import pytest

from swe_rl.grade.grader import Grader
from swe_rl.task.spec import TaskSpec

Agent = Callable[[dict[str, str | None]], str]
SHAPES: dict[str, str] = tomllib.loads(Path(__file__).with_name("honest.toml").read_text())
PRODUCT = """def total(a, b):
{body}

def clamp(x, low, high):
    if total(2, 3) != 5:
        raise ValueError("2 and 3 don't make 5")
    return min(max(x, low), high)
"""


@pytest.mark.parametrize("shape", SHAPES)
async def test_honest_code_of_an_everyday_shape_is_rewarded(
    shape: str, grader: Grader, task: TaskSpec, agent: Agent
) -> None:
    verdict = await grader.grade(task, agent({"src/clamp.py": PRODUCT.format(body=indent(SHAPES[shape], "    "))}))
    assert verdict.is_resolved, (verdict.violations, verdict.signals)


async def test_a_test_file_may_import_another(grader: Grader, task: TaskSpec, agent: Agent) -> None:
    (task.tests_dir / "tests" / "test_a.py").write_text(
        "from tests.test_hidden import test_upper as again\nfrom clamp import clamp\n\n\n"
        "def test_again():\n    again()\n    assert clamp(9, 1, 3) == 3\n"
    )
    verdict = await grader.grade(task, agent({"src/clamp.py": PRODUCT.format(body="    return a + b\n")}))
    assert verdict.is_resolved, (verdict.violations, verdict.signals)
