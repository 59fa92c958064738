"""Which layer of the grading refused a patch its reward: for tables of attacks, and for a person who looks into one."""

from swe_rl.verdict import Outcome, Verdict

LAYERS = {
    "capture": "nothing of it is in the patch",
    "patch": "the patch is refused or doesn't apply",
    "rule": "an integrity rule names it (rule:<name>)",
    "limits": "the run met its time limit",
    "report": "there is no whole, authentic report",
    "agreement": "the exit code and the report disagree",
    "restore": "protected files were put back, and the tests fail",
    "tests": "the hidden tests fail",
}


def layer_of(verdict: Verdict) -> str:
    """One of LAYERS, a rule with its name; '' for a verdict with a reward, or one that the environment failed."""
    if verdict.reward is None or verdict.is_resolved:
        return ""
    by_outcome = {Outcome.EMPTY_PATCH: "capture", Outcome.PATCH_FAILED: "patch", Outcome.TIMEOUT: "limits"}
    if verdict.outcome in by_outcome:
        return by_outcome[verdict.outcome]
    if verdict.violations:
        return f"rule:{verdict.violations[0].rule}"
    if not verdict.signals.get("is_parsed"):
        return "report"
    if not verdict.signals.get("is_agreed"):
        return "agreement"
    return "restore" if verdict.signals.get("restored") else "tests"
