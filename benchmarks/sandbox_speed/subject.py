"""The seam of the comparison: a subject offers some operations, each of which times itself.

Operations, all in seconds:
  start_cold   from nothing until `true` has answered in a new sandbox; start_warm: the same with a warm pool
  exec         round trip of `true` in a sandbox that lives; exec_alone: where a peer also has a call without its shell
  exec_backend the same without the service, in the process of the caller
  file_up, file_down   1 MB of text into a sandbox, and out of it
  concurrent   N sandboxes at once: each starts, answers `true` and ends
  fork         G copies of a sandbox with files in it, until each has answered `true`
What comes before and after an operation (removing things, refilling the pool) isn't timed.
"""

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

OPERATIONS = ("start_cold", "start_warm", "exec", "file_up", "file_down", "fork", "concurrent")
MEGABYTE = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz \n", k=1 << 20)).encode()
NUM_FILES, FILE_BYTES = 200, 5000
PREPARE_SCRIPT = (
    f"mkdir -p built && for i in $(seq {NUM_FILES}); do head -c {FILE_BYTES} /dev/zero > built/$i.o; done && echo ready"
)
Samples = dict[str, list[float]]
Operation = Callable[[], Awaitable[Samples]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much an operation does in one round."""

    num_execs: int = 20
    num_files: int = 3
    num_concurrent: int = 64
    num_forks: int = 8


class Subject(Protocol):
    """`open` raises LeftOutError with the reason where it isn't there; `close` may follow a failed `open`."""

    name: str

    @property
    def operations(self) -> Mapping[str, Operation]: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class LeftOutError(Exception):
    """The subject can't be measured on this machine."""
