"""Runs a command in a process group of its own and ends the whole group when this process's standard input closes.

A server of several processes must not outlive the run that started it, however that run ended (SIGKILL included). The
kernel closes the pipe of a dead parent, so its end is the signal; nothing is ever written to it. Run as a script, by an
interpreter with -I: standard library only. It does not restart anything and does not read the command's output.

    python -I vllm_guard.py GRACE_S COMMAND [ARGUMENT ...]     exits with the command's code, 128 + n for signal n
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main(argv: list[str]) -> int:
    grace_s = float(argv[0])
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    child = subprocess.Popen(argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_wait_for_end_of_input, args=(stop,), daemon=True).start()
    while child.poll() is None and not stop.wait(0.2):
        pass
    _end_group(child, grace_s)
    code = child.returncode
    return code if code >= 0 else 128 - code


def _wait_for_end_of_input(stop: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    stop.set()


def _end_group(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGTERM to the leader, which ends the others in order; then SIGKILL for all that is left of the group."""
    if child.poll() is None:
        child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(grace_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
