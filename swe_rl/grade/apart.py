"""Reads what a policy wrote in processes apart: a reader that hangs, crashes or swells there ends alone.

Grammars and regular expressions run here on text that was made to win, and hold Python's lock while they do. A call has
CPU_LIMIT_S of processor time, so the machine's load decides nothing, and MEMORY_LIMIT_BYTES of memory.
"""

import asyncio
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from functools import cache
from typing import ParamSpec, TypeVar

from pebble import ProcessExpired, ProcessPool

from swe_rl.errors import SandboxError, SweRlError

CPU_LIMIT_S = 10.0
# So little that the kernel never has to choose whom to kill: that would be a fault of the machine.
MEMORY_LIMIT_BYTES = min(4 * 1024**3, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 6)
_WALL_LIMIT_S = 300.0
_OTHERS_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

P = ParamSpec("P")
T = TypeVar("T")


class UnreadableError(SweRlError):
    """What was to be read ended its reader."""


async def run_apart(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """`function(*args, **kwargs)`, all of it picklable; what it raises is raised here.

    Raises UnreadableError if the call met one of its own limits or crashed, and SandboxError if somebody else ended its
    process, or the machine was too busy to run it or couldn't start one.
    """
    future = _readers().schedule(_limited, args=(CPU_LIMIT_S, function, args, kwargs), timeout=_WALL_LIMIT_S)
    try:
        result: T = await asyncio.wrap_future(future)
    except ProcessExpired as error:
        if -error.exitcode in _OTHERS_SIGNALS:
            raise SandboxError(
                f"a process that reads what a policy wrote was killed: exit code {error.exitcode}"
            ) from error
        raise UnreadableError(f"the reader of it {_describe(error.exitcode)}") from error
    except BrokenExecutor as error:
        _readers.cache_clear()  # the next call starts others
        raise SandboxError(f"the processes that read what a policy wrote can't be started: {error}") from error
    except MemoryError as error:
        raise UnreadableError(f"reading it takes over {MEMORY_LIMIT_BYTES >> 20} MB of memory") from error
    except TimeoutError as error:
        raise SandboxError(
            f"reading what a run left took over {_WALL_LIMIT_S:g} s; is the machine overloaded?"
        ) from error
    return result


def _limited(cpu_limit_s: float, function: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object]) -> T:
    signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)  # its signal, unhandled, ends the process
    try:
        return function(*args, **kwargs)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _describe(exit_code: int) -> str:
    if exit_code == -signal.SIGPROF:
        return f"took over {CPU_LIMIT_S:g} s of processor time"
    return f"died of {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"


@cache
def _readers() -> ProcessPool:
    """Started at the first call, and shared by all graders of this process."""
    # A fork of a process with threads may be born with a lock that nobody holds any more.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["swe_rl.grade.rules", "swe_rl.grade.parsers"])
    return ProcessPool(max_workers=max(2, min(4, os.cpu_count() or 2)), initializer=_prepare, context=context)


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; who started this one ends it
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
