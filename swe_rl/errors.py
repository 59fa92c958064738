"""Every error that swe-rl raises on purpose; each also inherits the standard kin a caller would catch.

SweRlError
├── ConfigError            (ValueError)       a wrong key, value, flag or file in a configuration
├── TaskError              (ValueError)       a task folder or manifest that breaks the format
├── PatchError             (ValueError)       a patch that can't be parsed, is refused, or doesn't apply
├── TrajectoryError        (ValueError)       a trajectory whose arrays or tags contradict each other
├── PolicyError            (ValueError)       a policy directory that can't be loaded or published
├── MismatchError          (ArithmeticError)  engine and trainer disagree about the same weights by too much
├── SplitError             (PermissionError)  an evaluation on a split that the policy was trained on
├── StoreError             (OSError)          a store that can't be read or written
│   └── ChecksumError                         bytes on disk differ from what was recorded
├── AuthError              (PermissionError)  a missing or wrong bearer token
├── EngineError            (RuntimeError)     the inference engine failed; the policy isn't to blame
│   └── EngineUnavailableError (ConnectionError)
└── SandboxError           (RuntimeError)     the environment failed; the policy isn't to blame
    ├── SandboxUnavailableError (ConnectionError)  service, engine or kernel feature doesn't answer
    ├── SandboxTimeoutError     (TimeoutError)     an operation of the environment itself ran too long
    ├── SessionNotFoundError    (LookupError)
    ├── ResourceNotFoundError   (LookupError)      no such process, snapshot or lease
    ├── PathError               (ValueError)       a path outside the working directory, or of a wrong kind
    └── CapacityError                              no room for one more session now
        └── RateLimitError                         too many calls now; nothing was done, repeat it later
"""


class SweRlError(Exception):
    """Base of all: its message is one line that says what, where, got and expected, and what to do."""


class ConfigError(SweRlError, ValueError):
    """A wrong key, value, flag or file in a configuration."""


class TaskError(SweRlError, ValueError):
    """A task folder or manifest that breaks the format."""


class PatchError(SweRlError, ValueError):
    """A patch that can't be parsed, is refused, or doesn't apply."""


class TrajectoryError(SweRlError, ValueError):
    """A trajectory whose arrays or tags contradict each other."""


class PolicyError(SweRlError, ValueError):
    """A policy directory that can't be loaded or published."""


class MismatchError(SweRlError, ArithmeticError):
    """Engine and trainer give tokens other probabilities than rounding explains, though both hold the same weights."""


class SplitError(SweRlError, PermissionError):
    """An evaluation on a split that the policy was trained on."""


class StoreError(SweRlError, OSError):
    """A store that can't be read or written."""


class ChecksumError(StoreError):
    """Bytes on disk differ from what was recorded."""


class AuthError(SweRlError, PermissionError):
    """A missing or wrong bearer token."""


class EngineError(SweRlError, RuntimeError):
    """The inference engine failed; the policy isn't to blame."""


class EngineUnavailableError(EngineError, ConnectionError):
    """The inference engine doesn't answer."""


class SandboxError(SweRlError, RuntimeError):
    """The environment failed; the policy isn't to blame."""


class SandboxUnavailableError(SandboxError, ConnectionError):
    """The sandbox service, the container engine or a kernel feature doesn't answer."""


class SandboxTimeoutError(SandboxError, TimeoutError):
    """An operation of the environment itself ran too long."""


class SessionNotFoundError(SandboxError, LookupError):
    """No live session has this id."""


class ResourceNotFoundError(SandboxError, LookupError):
    """No process, snapshot or lease has this id."""


class PathError(SandboxError, ValueError):
    """A path outside the working directory, or of a wrong kind."""


class CapacityError(SandboxError):
    """No room for one more session now; try again after `retry_after_s` seconds."""

    retry_after_s: float = 1.0


class RateLimitError(CapacityError):
    """Too many calls now: nothing was done, so any call may be repeated later."""
