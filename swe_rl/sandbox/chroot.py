"""A call for which another directory is the root: no link in there, whoever swaps it in, leads out of it.

One thread gives up the file-system view that a process's threads share (unshare(2), CLONE_FS), and ends with the call.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TypeVar

CLONE_FS = 0x0000_0200
T = TypeVar("T")
_libc = ctypes.CDLL(None, use_errno=True)


def call_in_root(root_fd: int, function: Callable[[], T]) -> T:
    """Blocking; the function must not import. Raises what it raises, and OSError without the right to chroot."""
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            if _libc.unshare(CLONE_FS) != 0:
                raise OSError(ctypes.get_errno(), "unshare")
            os.fchdir(root_fd)
            os.chroot(".")
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
