"""What both backends agree on: the variables a command starts with, and how a shell's status is read."""

import signal
from collections.abc import Sequence

USER_ID = 10_001
SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
_SIGNALS = frozenset(int(number) for number in signal.valid_signals())


def default_environment(path: Sequence[str] = ()) -> dict[str, str]:
    """What every command sees; a language's and a command's own variables come on top."""
    return {
        "PATH": ":".join([*path, *SYSTEM_PATH]),
        "HOME": "/tmp/home",
        "USER": "agent",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": "agent",
        "GIT_AUTHOR_EMAIL": "agent@localhost",
        "GIT_COMMITTER_NAME": "agent",
        "GIT_COMMITTER_EMAIL": "agent@localhost",
    }


def exit_and_signal(status: int) -> tuple[int | None, int | None]:
    """A status of 128 + n stands for signal n, as every shell reports it; exactly one of both is None."""
    number = status - 128
    return (None, number) if number in _SIGNALS else (status, None)
