"""Can a session see its task's solution? Looks from inside for the solution's lines and for git's object stores.

The lines are those that the gold patch adds, that are long and particular enough to mean something, and that the base
lacks. A file system is read by the sandbox's own grep and find, with the rights that an agent would have.
"""

import re
from collections.abc import Sequence

from swe_rl.errors import SandboxError
from swe_rl.sandbox.base import Command, Limits, Sandbox
from swe_rl.sandbox.tree import read_tree
from swe_rl.task.spec import TaskSpec

SESSION_PLACES = ("/workspace", "/tmp", "/var/tmp", "/home", "/root", "/run", "/runner", "/report", "/mnt", "/srv")
EVERYWHERE = ("/",)
SCAN_LIMITS = Limits(timeout_s=1800.0, memory_mb=2048)
MIN_LENGTH = 30
MIN_WORDS = 6
_OUTPUT_BYTES = 1024 * 1024
_END = "end of the scan"
# The first argument onward: places. Of "/", what isn't the kernel's; links are those of /usr.
_PLACES = """
list() {
  for place; do
    if [ "$place" = / ]; then
      for top in /* /.[!.]*; do
        case "$top" in /proc|/sys|/dev) ;; *) [ -e "$top" ] && [ ! -L "$top" ] && printf '%s\\0' "$top" ;; esac
      done
    elif [ -e "$place" ]; then printf '%s\\0' "$place"; fi
  done
}
"""
_FIND_LINES = f"""{_PLACES}
cat > /tmp/.scan || exit 3
list "$@" | LC_ALL=C xargs -0 -r grep -raoHF -D skip --exclude=.scan -f /tmp/.scan -- 2>/dev/null
LC_ALL=C grep -aoHF -f /tmp/.scan /proc/self/environ
rm -f /tmp/.scan; echo '{_END}'
"""
_FIND_STORES = f"""{_PLACES}
list "$@" | xargs -0 -r -I% find % \\( -name .git -o -name '*.pack' -o -name '*.bundle' -o -type d -name objects \\) \
  -print0 2>/dev/null | while IFS= read -r -d '' path; do
  case "$path" in
    /workspace/.git|/workspace/.git/*) continue ;;
    */.git) echo "$path" ;;
    */objects) for part in "$path"/pack "$path"/[0-9a-f][0-9a-f]; do [ -d "$part" ] && echo "$path" && break; done ;;
    *) head -c 16 "$path" 2>/dev/null | grep -qaE '^(PACK|# v[23] git bundle)' && echo "$path" ;;
  esac
done
echo '{_END}'
"""


def telling_lines(task: TaskSpec) -> tuple[str, ...]:
    """The solution's added lines that would give it away. Raises TaskError for a solution that can't be read."""
    base = "\n".join(
        " ".join(line.split())
        for entry in read_tree(task.environment_dir).values()
        for line in entry.data.decode("utf-8", "replace").splitlines()
    )
    added = [line[1:].strip() for line in task.solution_patch.splitlines() if re.match(r"\+(?!\+\+ )", line)]
    return tuple(dict.fromkeys(line for line in added if _is_telling(line) and " ".join(line.split()) not in base))


def _is_telling(line: str) -> bool:
    return len(line) >= MIN_LENGTH and len(set(re.findall(r"\w+", line))) >= MIN_WORDS


async def find_lines(sandbox: Sandbox, lines: Sequence[str], places: Sequence[str]) -> dict[str, str]:
    """Line -> a file that holds it, of those found; the environment's variables are looked at, too.

    Raises SandboxError where the sandbox can't tell.
    """
    if not lines:
        return {}
    found: dict[str, str] = {}
    for seen in await _scan(sandbox, _FIND_LINES, places, "\n".join(lines) + "\n"):
        path, _, line = seen.partition(":")
        found.setdefault(line, path)
    return found


async def find_stores(sandbox: Sandbox, places: Sequence[str]) -> list[str]:
    """Paths of repositories, object stores, packs and bundles, but for the workspace's own .git."""
    return await _scan(sandbox, _FIND_STORES, places, "")


async def _scan(sandbox: Sandbox, script: str, places: Sequence[str], stdin: str) -> list[str]:
    command = Command(
        ("bash", "-c", script, "scan", *places),
        stdin=stdin.encode("utf-8", "surrogateescape"),
        timeout_s=SCAN_LIMITS.timeout_s,
        output_limit_bytes=_OUTPUT_BYTES,
    )
    result = await sandbox.run(command)
    lines = result.stdout.decode("utf-8", "replace").splitlines()
    if result.timed_out or not lines or lines[-1] != _END:
        said = result.stderr.decode("utf-8", "replace").strip()[:300]
        how = f"after {SCAN_LIMITS.timeout_s:g} s" if result.timed_out else f"exit code {result.exit_code}: {said}"
        raise SandboxError(f"scan of {', '.join(places)}: didn't come to its end ({how})")
    return lines[:-1]
