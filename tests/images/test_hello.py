"""The hello-repositories through a real service over bubblewrap: each language whose toolchain this machine has."""

from pathlib import Path

import pytest

from swe_rl.errors import SandboxUnavailableError
from swe_rl.images.check import Proof, hello_service, prove
from swe_rl.sandbox.backend import BackendKind, open_backend
from swe_rl.task.language import LanguageSpec, read_languages

LANGUAGES = read_languages(Path(__file__).resolve().parents[2] / "sandboxes")
# Debian's packages that a test needs beside an executable; elsewhere these languages are proved by their images.
LIBRARIES = {
    "common-lisp": "cl-fiveam",
    "haskell": "libghc-hspec-dev",
    "ocaml": "libounit-ocaml-dev",
    "r": "r-cran-testthat",
}


async def _prove(language: LanguageSpec, folder: Path) -> Proof:
    if language.missing_tools:
        pytest.skip(f"this machine lacks {', '.join(language.missing_tools)}")
    package = LIBRARIES.get(language.language)
    if package and not list(Path("/var/lib/dpkg/info").glob(f"{package}*.list")):
        pytest.skip(f"this machine lacks Debian's {package}")
    return await _prove_on("bubblewrap", language, folder)


async def _prove_on(kind: BackendKind, language: LanguageSpec, folder: Path) -> Proof:
    languages = {language.language: language}
    try:
        backend = await open_backend(kind, languages, folder / "backend")
    except SandboxUnavailableError as error:
        pytest.skip(f"no {kind} sandbox here: {error}")
    async with hello_service(backend, languages, folder) as client:
        return await prove(language, client)


@pytest.mark.parametrize("name", sorted(LANGUAGES))
async def test_a_language_tells_its_failing_repository_from_its_passing_one(name: str, tmp_path: Path) -> None:
    proof = await _prove(LANGUAGES[name], tmp_path)
    assert (proof.passes, proof.fails, proof.problem) == (True, True, "")


@pytest.mark.docker
@pytest.mark.parametrize("name", ["python", "javascript"])
async def test_a_language_is_proved_in_its_image(name: str, tmp_path: Path) -> None:
    proof = await _prove_on("docker", LANGUAGES[name], tmp_path)
    if "build it with" in proof.problem:
        pytest.skip(proof.problem)
    assert (proof.passes, proof.fails, proof.problem) == (True, True, "")


# A language whose test is a shell script that prints TAP, and how its folder can be wrong.
TOML = """language = "toy"
requires = ["sh"]
runner_folder = "../tap"
runner = ["run_tests.sh"]
protected_globs = ["tests/**"]
[test]
command = ["sh", "{runner}/run_tests.sh", "tests", "one", 'sh "$SWE_RL_TEST" >&3', "{report}", "{nonce}"]
visible_command = ["sh", "{runner}/run_tests.sh", "tests", "one", 'sh "$SWE_RL_TEST" >&3']
report_format = "tap"
[hello]
path = "add.sh"
old = "$1 - $2"
new = "$1 + $2"
leave = "0)); exit 0; echo $((0"
fixed = "tests/one::adds"
kept = "tests/one::adds nothing"
"""
TEST = """. ./add.sh
[ "$(add 2 3)" = 5 ] && echo "ok 1 - adds" || echo "not ok 1 - adds"
[ "$(add 2 0)" = 2 ] && echo "ok 2 - adds nothing" || echo "not ok 2 - adds nothing"
echo 1..2
"""


@pytest.mark.parametrize(
    ("path", "old", "new", "problem"),
    [
        ("sandbox.toml", "nothing", "nothing", ""),
        ("sandbox.toml", 'new = "$1 + $2"', 'new = "$1 * $2"', "mended repository's visible tests ended with 1"),
        ("sandbox.toml", "one::adds nothing", "one::absent", "failing repository: unresolved"),
        ("sandbox.toml", 'leave = "0)); exit 0; echo $((0"', 'leave = "$1 + 0 + $2"', "left early: resolved"),
        ("hello/tests/one", "not ok", "ok", "visible tests ended with 0, expected 1"),
        ("hello/tests/one", "1..2", "1..3", "failing repository: unresolved (fail_to_pass, pass_to_pass: 0/1, 0/1)"),
    ],
)
async def test_what_is_wrong_with_a_language_is_said(
    path: str, old: str, new: str, problem: str, tmp_path: Path
) -> None:
    root = tmp_path / "sandboxes"
    for name, text in {
        "toy/sandbox.toml": TOML,
        "toy/hello/add.sh": "add() {\n  echo $(($1 - $2))\n}\n",
        "toy/hello/tests/one": TEST,
        "tap/run_tests.sh": (LANGUAGES["tcl"].runner_dir / "run_tests.sh").read_text(),
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    broken = root / "toy" / path
    assert old in broken.read_text()
    broken.write_text(broken.read_text().replace(old, new))
    proof = await _prove(read_languages(root)["toy"], tmp_path)
    assert problem in proof.problem and bool(problem) != proof.is_whole


def test_a_runner_s_file_that_two_folders_have_is_the_same_in_both() -> None:
    """A sandbox sees one folder of runners alone, so what two languages need may stand twice."""
    copies = [path.read_bytes() for path in LANGUAGES["c"].root.parent.glob("*/without_tests.sh")]
    assert len(copies) > 1 and len(set(copies)) == 1
