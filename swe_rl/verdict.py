"""What the grader says of one patch: an outcome, a reward, counts. No hidden test's name is in it."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal

from swe_rl.errors import TrajectoryError

GRADER_VERSION = "2"
Level = Literal["standard", "strict"]  # how much is run before a patch counts as a solution


class Outcome(StrEnum):
    """How grading ended; only ENVIRONMENT_ERROR carries no reward."""

    RESOLVED = "resolved"
    UNRESOLVED = "unresolved"
    EMPTY_PATCH = "empty_patch"
    PATCH_FAILED = "patch_failed"
    VIOLATION = "violation"
    TIMEOUT = "timeout"
    ENVIRONMENT_ERROR = "environment_error"


@dataclass(frozen=True, slots=True)
class TestCounts:
    """How many of the expected hidden tests passed explicitly."""

    __test__ = False  # not a test class, whatever its name begins with

    passed: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Violation:
    """One integrity rule that the patch or the run broke: the rule's name, where, and what was seen."""

    rule: str
    path: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The grader's judgement. `reward` is None exactly if the environment failed: a fault is never a reward."""

    outcome: Outcome
    reward: float | None
    fail_to_pass: TestCounts = TestCounts()
    pass_to_pass: TestCounts = TestCounts()
    violations: tuple[Violation, ...] = ()
    signals: dict[str, Any] = field(default_factory=dict)
    patch_sha256: str = ""
    duration_s: float = 0.0
    grader_version: str = GRADER_VERSION

    def __post_init__(self) -> None:
        if (self.reward is None) != (self.outcome is Outcome.ENVIRONMENT_ERROR):
            raise TrajectoryError(
                f"verdict: reward {self.reward!r} with outcome {self.outcome.value!r}; "
                "the reward is None exactly for environment_error"
            )

    @property
    def is_resolved(self) -> bool:
        return self.outcome is Outcome.RESOLVED

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, the inverse of `from_dict`."""
        return asdict(self) | {"outcome": self.outcome.value}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Verdict":
        """Raises TrajectoryError on an unknown outcome or a missing key."""
        try:
            return cls(
                **{
                    **data,
                    "outcome": Outcome(data["outcome"]),
                    "fail_to_pass": TestCounts(**data["fail_to_pass"]),
                    "pass_to_pass": TestCounts(**data["pass_to_pass"]),
                    "violations": tuple(Violation(**v) for v in data["violations"]),
                }
            )
        except (KeyError, ValueError, TypeError) as error:
            raise TrajectoryError(f"verdict: can't be read: {error!r}") from error
