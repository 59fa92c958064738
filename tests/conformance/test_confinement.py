"""As whom a command runs, read from inside: the same for every way in, and the same as an exec by the engine."""

import re
from collections.abc import Awaitable, Callable

import pytest

from swe_rl.sandbox.base import Backend, Command, CommandResult, Sandbox
from swe_rl.sandbox.environment import USER_ID

Run = Callable[..., Awaitable[CommandResult]]
# Everything that tells how a process is confined; of a control group's line the path counts too.
SHOW = """import os
for name in ("status", "limits", "cgroup", "oom_score_adj"):
    try:
        print(open("/proc/self/" + name).read())
    except OSError:
        print(name, "hidden")
for name in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts", "time"):
    try:
        print(name, os.readlink("/proc/self/ns/" + name))
    except OSError:
        print(name, "hidden")
print(os.path.realpath("/proc/self/root"), os.getgroups(), os.getpriority(os.PRIO_PROCESS, 0))
"""
VARYING = re.compile(
    r"^(Tgid|Pid|PPid|NStgid|NSpid|NSpgid|NSsid|Vm\w+|Rss\w+|FDSize|SigQ|\w*voluntary_ctxt_switches|Threads):.*$",
    re.MULTILINE,
)


async def status(sandbox: Sandbox) -> dict[str, str]:
    result = await sandbox.run(Command(("cat", "/proc/self/status")))
    return dict(line.split(":", 1) for line in result.stdout.decode().splitlines() if ":" in line)


async def test_there_are_no_capabilities(sandbox: Sandbox) -> None:
    seen = await status(sandbox)
    assert {int(value, 16) for name, value in seen.items() if name.startswith("Cap")} == {0}


async def test_the_user_and_group_are_the_agents_alone(sandbox: Sandbox) -> None:
    seen = await status(sandbox)
    assert seen["Uid"].split() == [str(USER_ID)] * 4
    assert seen["Gid"].split() == [str(USER_ID)] * 4
    assert set(seen["Groups"].split()) <= {str(USER_ID)}


async def test_new_rights_are_forbidden_and_system_calls_are_filtered(sandbox: Sandbox, backend: Backend) -> None:
    seen = await status(sandbox)
    if backend.name == "docker-runsc":  # its kernel has no such lines: it is the filter
        assert (await sandbox.run(Command(("cat", "/proc/version")))).stdout.startswith(b"Linux version 4.4.0")
        return
    assert seen["NoNewPrivs"].strip() == "1"
    assert seen["Seccomp"].strip() == "2"


async def test_a_command_is_confined_exactly_as_an_exec_by_the_engine(sandbox: Sandbox, backend: Backend) -> None:
    ours = (await sandbox.run(Command(("python3", "-c", SHOW)))).stdout.decode()
    if backend.name == "bubblewrap":
        again = (await sandbox.run(Command(("python3", "-c", SHOW)))).stdout.decode()
        assert VARYING.sub("", ours) == VARYING.sub("", again)
        return
    docker = pytest.importorskip("docker")
    container = docker.from_env(timeout=60).containers.get(sandbox.sandbox_id)
    code, output = container.exec_run(["python3", "-c", SHOW], user=f"{USER_ID}:{USER_ID}")
    assert code == 0
    if backend.name == "docker-runsc":  # numbers its namespaces anew at every look
        ours, output = (re.sub(r":\[\d+\]", "", text) for text in (ours, output.decode()))
        assert VARYING.sub("", ours) == VARYING.sub("", output)
        return
    assert VARYING.sub("", ours) == VARYING.sub("", output.decode())


async def test_every_command_of_a_session_is_in_the_same_namespaces(sandbox: Sandbox, backend: Backend) -> None:
    if backend.name == "docker-runsc":  # shows no namespaces; one kernel a sandbox: a server is seen by its port
        first = await sandbox.run(Command(("python3", "-c", "print(open('/proc/sys/kernel/hostname').read())")))
        assert first.stdout.strip() == b"sandbox"
        return
    show = Command(("bash", "-c", "for n in ipc mnt net pid uts user; do readlink /proc/self/ns/$n; done"))
    first, second = await sandbox.run(show), await sandbox.run(show)
    assert len(first.stdout.splitlines()) == 6
    assert first.stdout == second.stdout
