"""One file per report format; a format is known to the grader exactly if it has its line in PARSERS."""

from swe_rl.grade.parsers import lines
from swe_rl.grade.parsers.report import Parse

PARSERS: dict[str, Parse] = {
    "lines": lines.parse,
}
