"""Rules against cheating, one function a rule; each names the cheat it stops. They judge a patch, and run nothing.

Ordinary edits to protected files are no crime: they are put back and the rest of the patch is graded. What a rule of
RULES reports is fatal: nobody who fixes a bug needs it. What a rule of FLAGS reports is kept in the verdict's signals
for a person to look at, and costs nothing. To add a rule, write a function `(Evidence) -> Iterator[Violation]` and add
it to one of the two.
"""

from swe_rl.grade.rules import code, comparisons, files, names
from swe_rl.grade.rules.evidence import Evidence, Rule
from swe_rl.verdict import Violation

RULES: tuple[Rule, ...] = (
    files.startup_file,
    files.conftest_hook,
    files.shadowed_runner,
    files.unread_code,
    files.build_steering,
    comparisons.always_equal,
    names.shadowed_name,
    code.inspects_runner,
    code.test_mode,
    code.patched_runtime,
    code.leaves_process,
    code.reads_tests,
    code.hidden_word,
)
FLAGS: tuple[Rule, ...] = (code.exits, code.swallows_errors, code.dynamic_code)


def check(evidence: Evidence) -> tuple[tuple[Violation, ...], tuple[Violation, ...]]:
    """What every rule of RULES reports, and every one of FLAGS, in their order."""
    return _reports(RULES, evidence), _reports(FLAGS, evidence)


def _reports(rules: tuple[Rule, ...], evidence: Evidence) -> tuple[Violation, ...]:
    return tuple(violation for rule in rules for violation in rule(evidence))
