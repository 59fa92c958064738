"""Format `pytest_junit`: pytest's JUnit XML (`--junitxml=F -o junit_family=xunit1`), with pytest's own node ids.

    <testcase classname="tests.test_ring.TestRing" name="test_push[1-2]" file="tests/test_ring.py" line="4"/>
    -> tests/test_ring.py::TestRing::test_push[1-2]

Statuses as in `junit`. The xunit2 family has no file attribute: there, the capitalised tail of the class name is taken
for test classes and the rest for the module's path.
"""

from xml.etree import ElementTree

from swe_rl.grade.parsers.junit import parse_cases
from swe_rl.grade.parsers.report import ParsedReport


def parse(report: bytes | None, stdout: bytes, stderr: bytes) -> ParsedReport:
    """`stdout` and `stderr` aren't read."""
    return parse_cases(report, _node_id)


def _node_id(case: ElementTree.Element) -> str:
    name, owner, file = case.get("name", ""), case.get("classname", ""), case.get("file", "")
    if not owner:
        # A module that couldn't be imported: its dotted path is the name.
        return file or (name.replace(".", "/") + ".py" if name else "")
    if file:
        module = file.removesuffix(".py").replace("/", ".")
        # classname leaves out a leading part of the path if pytest's rootdir lies deeper.
        classes = owner.removeprefix(module).lstrip(".") if owner.startswith(module) else _split(owner)[1]
    else:
        module, classes = _split(owner)
        file = module.replace(".", "/") + ".py"
    return "::".join([file, *(part for part in classes.split(".") if part), name])


def _split(owner: str) -> tuple[str, str]:
    parts = owner.split(".")
    count = 0
    while count < len(parts) - 1 and parts[-1 - count][:1].isupper():
        count += 1
    cut = len(parts) - count
    return ".".join(parts[:cut]), ".".join(parts[cut:])
