"""What each level asks of a patch before it counts as a solution.

    standard   one run with canaries
    strict     two runs with the test files in random order (where the runner takes an order): one with canaries, which
               has to end with the exit code of failures, and one without, whose exit code can say that all is well;
               for a task that has variants of its tests, one over those, too

Each run has a fresh sandbox with its own home and temporary directory, so that nothing recorded in one is there in the
next. All of them have to resolve the task.
"""

from swe_rl.grade.run import RunPlan
from swe_rl.task.spec import TaskSpec
from swe_rl.verdict import Level


def run_plans(level: Level, task: TaskSpec) -> tuple[RunPlan, ...]:
    """In the order in which they are run."""
    if level == "standard":
        return (RunPlan(),)
    plans = (RunPlan(is_shuffled=True), RunPlan(has_canaries=False, is_shuffled=True))
    return (*plans, RunPlan(is_shuffled=True, has_variants=True)) if task.has_variants else plans
