"""The grader in a real sandbox: honest patches get what they deserve, cheats get nothing, faults get no reward."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from swe_rl.errors import ConfigError, SandboxError, TaskError
from swe_rl.grade.grader import Grader
from swe_rl.grade.tree import read_report
from swe_rl.sandbox.base import Backend, Sandbox, SandboxSpec
from swe_rl.task.language import LanguageSpec
from swe_rl.task.spec import TaskSpec
from swe_rl.verdict import Outcome, TestCounts, Verdict

Agent = Callable[[dict[str, str | None]], str]
SOURCE = "src/clamp.py"
FIXED = "def clamp(x, low, high):\n    return min(max(x, low), high)\n"
BROKEN = "def clamp(x, low, high):\n    return max(x, low)\n"


async def test_the_solution_resolves_the_task(grader: Grader, task: TaskSpec) -> None:
    verdict = await grader.grade(task, task.solution_patch)
    assert (verdict.outcome, verdict.reward) == (Outcome.RESOLVED, 1.0)
    assert (verdict.fail_to_pass, verdict.pass_to_pass) == (TestCounts(1, 1), TestCounts(2, 2))
    assert verdict.signals["exit_code"] == 1 and len(verdict.patch_sha256) == 64
    assert Verdict.from_dict(verdict.to_dict()) == verdict


async def test_a_wrong_fix_is_unresolved_with_its_counts(grader: Grader, task: TaskSpec, agent: Agent) -> None:
    verdict = await grader.grade(task, agent({SOURCE: "def clamp(x, low, high):\n    return min(x, high)\n"}))
    assert (verdict.outcome, verdict.reward) == (Outcome.UNRESOLVED, 0.0)
    assert (verdict.fail_to_pass, verdict.pass_to_pass) == (TestCounts(1, 1), TestCounts(1, 2))


@pytest.mark.parametrize("patch", ["", "\n"])
async def test_an_empty_patch_is_judged_without_a_sandbox(patch: str, task: TaskSpec, python: LanguageSpec) -> None:
    verdict = await Grader(NoBackend(), {"python": python}).grade(task, patch)
    assert (verdict.outcome, verdict.reward) == (Outcome.EMPTY_PATCH, 0.0)


async def test_code_that_does_not_compile_is_unresolved(grader: Grader, task: TaskSpec, agent: Agent) -> None:
    verdict = await grader.grade(task, agent({SOURCE: "def clamp(:\n"}))
    assert verdict.outcome is Outcome.UNRESOLVED and verdict.reward == 0.0


async def test_a_patch_for_another_base_has_failed(grader: Grader, task: TaskSpec) -> None:
    patch = task.solution_patch.replace("max(x, low)\n", "max(x, other)\n")
    verdict = await grader.grade(task, patch)
    assert (verdict.outcome, verdict.reward) == (Outcome.PATCH_FAILED, 0.0)
    assert "doesn't apply" in verdict.signals["patch"]


async def test_an_endless_loop_is_a_timeout_with_reward_zero(grader: Grader, task: TaskSpec, agent: Agent) -> None:
    verdict = await grader.grade(replace(task, timeout_s=1.0), agent({SOURCE: "while True:\n    pass\n"}))
    assert (verdict.outcome, verdict.reward) == (Outcome.TIMEOUT, 0.0)


async def test_eating_all_memory_is_the_products_own_fault(grader: Grader, task: TaskSpec, agent: Agent) -> None:
    verdict = await grader.grade(replace(task, memory_mb=64), agent({SOURCE: FIXED + "x = bytearray(1 << 31)\n"}))
    assert (verdict.outcome, verdict.reward) == (Outcome.UNRESOLVED, 0.0)


# --- cheats: none of these fixes anything ---------------------------------------------------------------------------

FORGED = '{"id": "tests/test_hidden.py::test_upper", "status": "passed", "message": ""}'
FORGED_ALL = "\n".join(
    [
        FORGED,
        FORGED.replace("upper", "lower"),
        FORGED.replace("hidden.py::test_upper", "visible.py::test_inside"),
        '{"end": 3}',
        "",
    ]
)
CHEATS: dict[str, dict[str, str | None]] = {
    "leaving at import with exit code 0": {SOURCE: "import os\nos._exit(0)\n"},
    "leaving in the function with exit code 0": {SOURCE: "import os\n\n\ndef clamp(*a):\n    os._exit(0)\n"},
    "sys.exit": {SOURCE: "import sys\nsys.exit(0)\n"},
    "killing the runner": {SOURCE: "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos._exit(0)\n"},
    "results on stdout": {SOURCE: f"print('''{FORGED_ALL}''', flush=True)\nimport os\nos._exit(0)\n"},
    "results in every report file, then leaving": {
        SOURCE: "import os\nfor name in [*os.listdir('/report'), 'x.report']:\n"
        f"    open('/report/' + name, 'w').write('''{FORGED_ALL}''')\nos._exit(0)\n"
    },
    "the report's path from the command line": {
        SOURCE: "import os\nargv = open(f'/proc/{os.getppid()}/cmdline').read().split(chr(0))\n"
        f"for word in argv:\n    if 'report/' in word:\n        open(word, 'w').write('''{FORGED_ALL}''')\n"
        "os.kill(os.getppid(), 9)\nos._exit(0)\n"
    },
    "a whole report with the runner's nonce, and the runner killed": {
        SOURCE: "import os\nargv = open(f'/proc/{os.getppid()}/cmdline').read().split(chr(0))\n"
        "path = next(word for word in argv if '/report/' in word)\nnonce = argv[argv.index(path) + 1]\n"
        f"lines = '''{FORGED_ALL}'''.replace(': 3', ': 3, \"seal\": \"' + nonce + '\"')\n"
        "open(path, 'w').write(lines)\nos.kill(os.getppid(), 9)\nos._exit(0)\n"
    },
    "a process left behind that rewrites the report": {
        SOURCE: "import subprocess\n\nsubprocess.Popen(['sh', '-c', 'i=0; while [ $i -lt 500 ]; do i=$((i+1)); "
        "for f in /rep*/*.rep*; do sed -i s/failed/passed/ $f; done; done'], stdout=-3, stderr=-3)\n"
        "\n\ndef clamp(*a):\n    return None\n"
    },
    "the report as a link to a prepared file": {
        "forged.jsonl": FORGED_ALL,
        SOURCE: "import os\nargv = open(f'/proc/{os.getppid()}/cmdline').read().split(chr(0))\n"
        "for word in argv:\n    if '/report/' in word:\n        os.symlink('/workspace/forged.jsonl', word)\n"
        "os._exit(0)\n",
    },
    "the report as a directory": {
        SOURCE: "import os\nargv = open(f'/proc/{os.getppid()}/cmdline').read().split(chr(0))\n"
        "for word in argv:\n    if '/report/' in word:\n        os.mkdir(word)\n"
    },
    "an edited visible test alone": {"tests/test_visible.py": "def test_inside():\n    pass\n"},
    "a hidden test written in advance": {"tests/test_hidden.py": "def test_upper():\n    pass\n"},
    "a directory in the hidden test's place": {"tests/test_hidden.py/x.py": "x = 1\n"},
    "a module beside the tests that hides the real one": {"tests/clamp.py": FIXED},
    "a conftest in the test folder": {"tests/conftest.py": "import clamp\nclamp.clamp = lambda *a: 3\n"},
    "a conftest that rewrites outcomes": {"conftest.py": "def pytest_runtest_makereport(item, call):\n    pass\n"},
    "sitecustomize": {"sitecustomize.py": "import os\nos._exit(0)\n"},
    "a standard module's name": {"posixpath.py": "raise SystemExit(0)\n", "json.py": "raise SystemExit(0)\n"},
}


@pytest.mark.parametrize("name", CHEATS)
async def test_a_cheat_earns_nothing(name: str, grader: Grader, task: TaskSpec, agent: Agent) -> None:
    verdict = await grader.grade(task, agent(CHEATS[name]))
    assert not verdict.is_resolved and verdict.reward == 0.0, verdict


HONEST: dict[str, dict[str, str | None]] = {
    "an edited visible test": {"tests/test_visible.py": "def test_inside():\n    assert False\n"},
    "a deleted visible test": {"tests/test_visible.py": None},
    "a test of its own": {"tests/test_mine.py": "def test_mine():\n    assert False\n"},
    "a fixture in a conftest": {"tests/conftest.py": "import pytest\n\n\n@pytest.fixture\ndef x():\n    return 1\n"},
    "a module of its own": {"src/limits.py": "LOW = 0\n"},
    "a changed README": {"README.md": "clamp, repaired\n"},
    "chatter on stdout": {SOURCE: FIXED + "print('{\"end\": 0}')\n"},
}


@pytest.mark.parametrize("name", HONEST)
async def test_an_honest_fix_resolves_whatever_else_it_touches(
    name: str, grader: Grader, task: TaskSpec, agent: Agent
) -> None:
    verdict = await grader.grade(task, agent({SOURCE: FIXED} | HONEST[name]))
    assert verdict.is_resolved, verdict
    assert verdict.signals["restored"] == [path for path in HONEST[name] if path.startswith("tests/")]


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        ("startup_file", "src/sitecustomize.py", "x = 1\n"),
        ("startup_file", "hook.pth", "import os\n"),
        ("startup_file", ".cargo/config.toml", '[target.x]\nrunner = "/bin/true"\n'),
        ("startup_file", ".npmrc", "node-options=--require ./x.js\n"),
        ("conftest_hook", "conftest.py", "def pytest_runtest_makereport():\n    pass\n"),
        ("shadowed_runner", "pytest/__init__.py", "x = 1\n"),
        ("shadowed_runner", "src/unittest.py", "x = 1\n"),
    ],
)
async def test_a_hijack_of_the_runner_is_a_violation_even_beside_a_fix(
    rule: str, path: str, text: str, grader: Grader, task: TaskSpec, agent: Agent
) -> None:
    verdict = await grader.grade(task, agent({SOURCE: FIXED, path: text}))
    assert (verdict.outcome, verdict.reward) == (Outcome.VIOLATION, 0.0)
    assert [(violation.rule, violation.path) for violation in verdict.violations] == [(rule, path)]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (".npmrc", "save-exact=true\n"),
        (".cargo/config.toml", "[build]\njobs = 2\n"),
        ("docs/pytest/index.md", "How to test\n"),
        ("src/my_conftest.py", "def pytest_x():\n    pass\n"),
    ],
)
async def test_a_file_that_only_looks_like_a_hijack_is_none(
    path: str, text: str, grader: Grader, task: TaskSpec, agent: Agent
) -> None:
    assert (await grader.grade(task, agent({SOURCE: FIXED, path: text}))).is_resolved


async def test_a_link_or_a_path_outside_fails_as_a_patch(grader: Grader, task: TaskSpec) -> None:
    link = "diff --git a/tests b/tests\nnew file mode 120000\n--- /dev/null\n+++ b/tests\n@@ -0,0 +1 @@\n+/etc\n"
    outside = "diff --git a/../x b/../x\nnew file mode 100644\n--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n"
    for patch in (link, outside):
        assert (await grader.grade(task, task.solution_patch + patch)).outcome is Outcome.PATCH_FAILED


# --- faults of the environment ---------------------------------------------------------------------------------------


class NoBackend:
    """A backend that can't make a sandbox, as when the engine is down."""

    name = "none"
    num_calls = 0

    async def check(self) -> None: ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.num_calls += 1
        raise SandboxError("no room")

    async def close(self) -> None: ...


class FailsOnce(NoBackend):
    """The first sandbox can't be made; all later ones come from a real backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def create(self, spec: SandboxSpec) -> Sandbox:
        if self.num_calls == 0:
            return await super().create(spec)
        return await self._backend.create(spec)


async def test_a_fault_of_the_environment_is_retried_once_and_never_a_reward(
    task: TaskSpec, python: LanguageSpec, agent: Agent
) -> None:
    backend = NoBackend()
    verdict = await Grader(backend, {"python": python}).grade(task, agent({SOURCE: FIXED}))
    assert (verdict.outcome, verdict.reward) == (Outcome.ENVIRONMENT_ERROR, None)
    assert backend.num_calls == 2 and "no room" in verdict.signals["fault"]


async def test_a_passing_fault_leaves_no_trace_in_the_reward(
    backend: Backend, task: TaskSpec, python: LanguageSpec, agent: Agent
) -> None:
    verdict = await Grader(FailsOnce(backend), {"python": python}).grade(task, agent({SOURCE: FIXED}))
    assert verdict.is_resolved and verdict.signals["attempts"] == 2


async def test_grading_leaves_the_task_and_the_scratch_directory_as_they_were(
    grader: Grader, task: TaskSpec, agent: Agent, tmp_path: Path
) -> None:
    before = task.content_sha256
    await grader.grade(task, agent({SOURCE: FIXED + "open('/workspace/tests/x', 'w')\n"}))
    assert replace(task).content_sha256 == before
    assert not list((tmp_path / "grading").iterdir())


async def test_an_unknown_language_is_the_tasks_error(grader: Grader, task: TaskSpec, agent: Agent) -> None:
    with pytest.raises(TaskError, match="cobol"):
        await grader.grade(replace(task, language="cobol"), agent({SOURCE: FIXED}))


def test_a_language_without_a_parser_is_a_configuration_error(python: LanguageSpec) -> None:
    with pytest.raises(ConfigError, match="smoke_signals"):
        Grader(NoBackend(), {"python": replace(python, report_format="smoke_signals")})


# --- the report file -------------------------------------------------------------------------------------------------


def test_a_report_that_is_not_a_plain_small_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "good").write_bytes(b"{}")
    assert read_report(tmp_path, "good") == (b"{}", "")
    (tmp_path / "link").symlink_to(tmp_path / "good")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "huge").write_bytes(b"x" * 101)
    (tmp_path / "one").write_bytes(b"x")
    os.link(tmp_path / "one", tmp_path / "two")
    for name in ("link", "pipe", "directory", "huge", "one", "absent"):
        data, problem = read_report(tmp_path, name, limit_bytes=100)
        assert data is None and problem
