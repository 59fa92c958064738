"""A run directory, its index in SQLite and again in PostgreSQL (a private cluster, where a server is installed)."""

import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from swe_rl.store.policies import PolicyStore
from swe_rl.store.rollouts import RolloutStore

SCRIPT = Path(__file__).with_name("store_process.py")


@dataclass(frozen=True)
class Run:
    """One run's address: what a store is opened with."""

    run_dir: Path
    url: str

    def rollouts(self) -> RolloutStore:
        return RolloutStore(self.run_dir, self.url)

    def policies(self) -> PolicyStore:
        return PolicyStore(self.run_dir, self.url)

    def start(self, verb: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(SCRIPT), verb, str(self.run_dir), self.url, *map(str, arguments)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="session")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("store_process", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], str]]:
    """Makes a fresh database and gives its URL."""
    binaries = _postgres_binaries()
    owner = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    home = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    shutil.chown(home, owner)
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}

    def call(program: str, *arguments: str) -> None:
        switch = {"user": owner, "group": pwd.getpwnam(owner).pw_gid, "extra_groups": []} if os.getuid() == 0 else {}
        command = [str(binaries / program), *arguments]
        with (home / "log").open("a") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log, cwd="/", env=environment, **switch)

    def create() -> str:
        name = f"run_{uuid.uuid4().hex}"
        call("createdb", "-h", str(home), "-U", "tester", name)
        return f"postgresql://tester@/{name}?host={home}"

    try:
        call("initdb", "-D", f"{home}/data", "-U", "tester", "-A", "trust", "-N", "-E", "UTF8")
        options = f"-k {home} -c listen_addresses='' -c fsync=off -c max_connections=50"
        call("pg_ctl", "-D", f"{home}/data", "-w", "-o", options, "-l", f"{home}/server.log", "start")
        yield create
        call("pg_ctl", "-D", f"{home}/data", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    if request.param == "sqlite":
        return Run(tmp_path / "run", "")
    pytest.importorskip("psycopg", reason="no PostgreSQL driver (the extra postgres)")
    return Run(tmp_path / "run", request.getfixturevalue("postgres")())


def _postgres_binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        pytest.skip("no PostgreSQL server binaries (initdb) on this machine")
    if os.getuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("root can't run a PostgreSQL server, and there is no user postgres")
    return found[-1].parent if found else Path(str(on_path)).parent
