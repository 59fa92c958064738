"""What the shell inside of a container is told: one command between two marks, and how a command's tree is found.

The shell reads its own script from the exec's standard input; each command is one compound line. Behind it, on both
output streams, comes a trailer: a random word, the exit status, the counts of OOM kills and refused forks, and how many
processes there were before and after. A command may forge its own trailer, which harms nobody else.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MARK = "SWE_RL_COMMAND"
MAX_ARGUMENT_BYTES = 128 * 1024 - 1
MAX_ARGUMENTS_BYTES = 1024 * 1024
_MAX_TRAILER_BYTES = 128
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

# Only what the shell has built in: a process costs ten milliseconds and more under gVisor. The shell's own words on how
# a command died aren't the command's error stream, which the shell keeps as 3.
PRELUDE = """exec 3>&2 2>/dev/null
count() {
    oom=0; forks=0
    for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
        [ -r "$file" ] && while read -r name value; do [ "$name" = oom_kill ] && oom=$value; done <"$file"
    done
    for file in /sys/fs/cgroup/pids.events /sys/fs/cgroup/pids/pids.events; do
        [ -r "$file" ] && while read -r name value; do [ "$name" = max ] && forks=$value; done <"$file"
    done
}
processes() { set -- /proc/[0-9]*; number=$#; }
trail() {
    status=$2; count; processes
    echo "$1 $status $oom $forks $before $number"
    echo "$1 $status $oom $forks $before $number" >&3
}
"""

# As root with all capabilities, by the engine: nobody inside can hinder it. A process is the command's if its line of
# parents leads to the command's shell, or to an orphan that carries the command's mark in its environment, or to one
# without any mark that is younger than the command.
KILL_SCRIPT = f"""mark={MARK}=$1; shell=$2; since=$3
for pass in 1 2 3 4 5 6 7 8; do
    found=
    for path in /proc/[0-9]*; do
        pid=${{path#/proc/}}; at=$pid
        [ "$pid" = "$$" ] && continue
        while :; do
            line=; read -r line <"/proc/$at/stat" 2>/dev/null
            [ -n "$line" ] || {{ at=gone; break; }}
            set -- ${{line##*) }}
            [ "$1" = Z ] && [ "$at" = "$pid" ] && {{ at=gone; break; }}
            [ "$2" -gt 1 ] && [ "$2" != "$shell" ] && {{ at=$2; continue; }}
            break
        done
        [ "$at" = gone ] && continue
        if [ "$2" = "$shell" ]; then found="$found $pid"; continue; fi
        [ "$2" = 1 ] || continue
        other=$(tr '\\0' '\\n' <"/proc/$at/environ" 2>/dev/null | grep -a '^{MARK}=')
        if [ "$other" = "$mark" ] || {{ [ -z "$other" ] && [ "${{20}}" -gt "$since" ]; }}; then found="$found $pid"; fi
    done
    [ -n "$found" ] || exit 0
    kill -9 $found 2>/dev/null
done
exit 1"""


@dataclass(frozen=True, slots=True)
class Trailer:
    """What the shell said behind a command."""

    status: int
    oom_kills: int
    refused_forks: int
    num_before: int
    num_after: int


class TrailedStream:
    """Parts one output stream from the trailer behind it."""

    def __init__(self, word: str) -> None:
        self._word = word.encode()
        self._pattern = re.compile(re.escape(self._word) + rb"((?: \d{1,12}){5})\n")
        self._held = b""
        self.trailer: Trailer | None = None

    def feed(self, chunk: bytes) -> bytes:
        """What of the output is certain by now."""
        data = self._held + chunk
        found = self._pattern.search(data)
        if found is not None:
            self.trailer = Trailer(*(int(number) for number in found[1].split()))
            self._held = b""
            return data[: found.start()]
        at = data.rfind(self._word)
        if at < 0 or b"\n" in data[at:] or len(data) - at > _MAX_TRAILER_BYTES:
            at = next(
                n for n in range(max(0, len(data) - len(self._word) + 1), len(data) + 1) if self._may_begin(data[n:])
            )
        self._held = data[at:]
        return data[:at]

    def rest(self) -> bytes:
        """What was held back, where no trailer will come."""
        rest, self._held = self._held, b""
        return rest

    def _may_begin(self, tail: bytes) -> bool:
        return self._word.startswith(tail)


def opening(max_processes: int | None) -> str:
    """What a new shell reads first. It answers with its process id and the uptime, on one line."""
    limit = ""
    if max_processes is not None:  # dash's letter, then bash's
        limit = f"ulimit -p {max_processes} 2>/dev/null || ulimit -u {max_processes}\n"
    return PRELUDE + limit + 'read -r up rest </proc/uptime; echo "$$ $up"\n'


def command_line(
    argv: Sequence[str], cwd: str, env: Mapping[str, str], word: str, has_stdin: bool, mark: str = ""
) -> str:
    """Raises ValueError for what can't be a command line. `word`: the trailer's. `mark`: in the environment."""
    if not argv or any("\0" in text for text in (*argv, *env.keys(), *env.values())):
        raise ValueError("no words, or embedded null byte")
    unusual = [name for name in env if not _VARIABLE.match(name)]
    if unusual:
        raise ValueError(f"variable {unusual[0]!r} isn't a name")
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in (dict(env) | {MARK: mark}).items())
    complaint = shlex.quote(f"sandbox: no such directory: {cwd}")
    source = "" if has_stdin else "</dev/null "
    return (
        f"processes; before=$number\n"
        f"(cd {shlex.quote(cwd)} 2>/dev/null || {{ echo {complaint} >&2; exit 126; }}; export {exports}; "
        f"exec {shlex.join(argv)}) {source}2>&3 3>&-; trail {word} $?\n"
    )


def is_too_long(argv: Sequence[str]) -> bool:
    """Whether the kernel would refuse to start it."""
    sizes = [len(argument.encode(errors="surrogateescape")) for argument in argv]
    return max(sizes, default=0) > MAX_ARGUMENT_BYTES or sum(sizes) > MAX_ARGUMENTS_BYTES
