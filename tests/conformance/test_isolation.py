"""Nothing of the host, of other sessions or of the service can be seen or reached from inside."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from swe_rl.errors import SandboxError
from swe_rl.sandbox.base import Backend, Command, CommandResult, Sandbox

Run = Callable[..., Awaitable[CommandResult]]
Make = Callable[..., Awaitable[Sandbox]]
SECRET = "a-secret-of-the-service-7f1d"

CONNECT = """import socket, sys
for family, address in ((socket.AF_INET, "10.0.0.1"), (socket.AF_INET, "1.1.1.1"), (socket.AF_INET6, "2606:4700::1")):
    try:
        with socket.socket(family) as s:
            s.settimeout(3)
            s.connect((address, 53))
        print("reached", address)
    except OSError:
        pass
print("tried")"""
READ_PROC = """import glob
for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/cwd"):
    try:
        print(open(path, "rb").read())
    except OSError:
        pass"""
LINKS = """import glob, os
for path in glob.glob("/proc/[0-9]*/[erc][xow]*") + glob.glob("/proc/[0-9]*/fd/*"):
    try:
        if path.split("/")[2] not in (str(os.getpid()), "self"): print(path, os.readlink(path))
    except OSError:
        pass"""


async def test_no_address_is_reached(run: Run) -> None:
    result = await run(f"python3 -c '{CONNECT}'")
    assert result.stdout == b"tried\n"


async def test_there_is_no_interface_but_the_loopback(run: Run) -> None:
    script = "import socket; print(sorted(name for _, name in socket.if_nameindex()))"
    assert (await run(f'python3 -c "{script}"')).stdout == b"['lo']\n"


async def test_no_hypervisor_is_reached(run: Run, backend: Backend) -> None:
    if backend.name == "docker":
        pytest.skip("the engine's own profile decides: engines before version 23 leave this family open")
    connect = "import socket; s = socket.socket(socket.AF_VSOCK); s.settimeout(3); print(s.connect_ex((2, 1)))"
    assert (await run(f'python3 -c "{connect}"')).exit_code == 1  # there is no such socket: not even a refusal comes


async def test_shared_memory_works_and_is_the_sessions_own(make: Make) -> None:
    first, second = await make(), await make()
    lock = "import multiprocessing as m; m.Lock(); open('/dev/shm/own', 'w').write('first'); print('made')"
    assert (await first.run(Command(("python3", "-c", lock)))).stdout == b"made\n"
    assert (await second.run(Command(("cat", "/dev/shm/own")))).exit_code == 1


async def test_no_name_is_resolved(run: Run) -> None:
    script = "python3 -c 'import socket; socket.getaddrinfo(\"example.com\", 80)'"
    assert (await run(script)).exit_code == 1


async def test_the_hosts_files_are_not_there(run: Run, tmp_path: Path) -> None:
    (tmp_path / "marker").write_text("host\n")
    checked = [str(tmp_path / "marker"), str(Path(__file__)), "/etc/shadow", "/root/.bashrc", "/var/run/docker.sock"]
    result = await run('for path in "$@"; do cat "$path"; done'.replace('"$@"', " ".join(checked)))
    assert result.stdout == b""
    assert (await run("find / -xdev -name '*.sock' 2>/dev/null; cat /proc/1/root/etc/shadow")).stdout == b""


async def test_the_hosts_processes_are_not_there(run: Run) -> None:
    result = await run(f"kill -0 {os.getpid()} 2>/dev/null; python3 -c 'import os; print(len(os.listdir(\"/proc\")))'")
    script = "import os; print(max(int(n) for n in os.listdir('/proc') if n.isdigit()))"
    seen = int((await run(f'python3 -c "{script}"')).stdout)
    assert seen < 2000
    assert result.exit_code == 0


async def test_the_services_secrets_are_nowhere(run: Run) -> None:
    result = await run(f"env; python3 -c '{READ_PROC}'", output_limit_bytes=1 << 20)
    assert SECRET.encode() not in result.stdout
    assert b"SWE_RL_SANDBOX" not in result.stdout


async def test_no_command_line_names_a_directory_of_the_host(run: Run) -> None:
    result = await run(f"python3 -c '{READ_PROC}'", output_limit_bytes=1 << 20)
    for name in (str(Path(__file__).parents[2]), "/dev/shm/", "joiner.py", "/sessions/"):
        assert name.encode() not in result.stdout


async def test_no_process_holds_a_door_to_the_host(sandbox: Sandbox) -> None:
    result = await sandbox.run(Command(("python3", "-c", LINKS)))
    for line in result.stdout.decode().splitlines():
        path, target = line.split(" ", 1)
        assert path.rpartition("/")[2] not in ("cwd", "root") or target in ("/", "/workspace"), line


async def test_sessions_see_nothing_of_each_other(make: Make) -> None:
    first, second = await make(), await make()
    await first.write_file("own", b"first")
    await first.run(Command(("bash", "-c", "echo first >/tmp/own; echo first >/dev/shm/own; sleep 777777 &")))
    script = "cat own /tmp/own /dev/shm/own; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 777[7]77"
    assert (await second.run(Command(("bash", "-c", script)))).stdout == b"0\n"


async def test_the_loopback_is_the_sessions_own(make: Make) -> None:
    first, second = await make(), await make()
    serve = "python3 -m http.server --bind 127.0.0.1 8090 >/dev/null 2>&1 & sleep 1"
    await first.run(Command(("bash", "-c", serve)))
    ask = "import socket; s = socket.socket(); s.settimeout(3); print(s.connect_ex(('127.0.0.1', 8090)) == 0)"
    assert (await second.run(Command(("python3", "-c", ask)))).stdout == b"False\n"


async def test_the_system_cannot_be_written(run: Run) -> None:
    script = (
        "for d in / /usr /usr/bin /etc /bin /sys /proc/sys/kernel; do touch $d/x 2>/dev/null && echo $d; done; true"
    )
    assert (await run(script)).stdout == b""


async def test_no_right_is_gained(run: Run, backend: Backend) -> None:
    script = """mount -t tmpfs none /tmp 2>/dev/null && echo mounted
unshare -U true 2>/dev/null && echo user namespace
python3 -c 'import os; os.setuid(0)' 2>/dev/null && echo root
chroot / true 2>/dev/null && echo chroot
[ -e /dev/sda ] || [ -e /dev/vda ] || [ -e /dev/mem ] || [ -e /dev/kmsg ] && echo device
mknod /tmp/node b 254 0 2>/dev/null && echo node
cp /bin/sh /tmp/sh && chmod 6755 /tmp/sh && /tmp/sh -c 'id -u'"""
    gained = (await run(script)).stdout.decode().splitlines()
    if backend.name == "docker-runsc":  # a user namespace is one of the kernel inside, and gives nothing outside of it
        gained = [line for line in gained if line != "user namespace"]
    assert gained == ["10001"]


async def test_killing_everything_harms_nobody_else(run: Run, sandbox: Sandbox) -> None:
    result = await run("kill -9 -1; echo survived")
    assert result.signal == 9 or result.stdout == b"survived\n"
    assert (await run("cat README.md")).stdout == b"hello\n"
    result = await run("kill -9 1; kill -STOP 1; sleep 0.2; echo on")
    assert result.stdout == b"on\n"
    assert (await run("cat README.md")).stdout == b"hello\n"


async def test_a_closed_sandbox_takes_no_command(sandbox: Sandbox) -> None:
    await sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.run(Command(("true",)))
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.read_file("README.md")


async def test_a_second_instance_leaves_the_living_alone(backend: Backend, run: Run) -> None:
    await backend.reconcile()
    assert (await run("cat README.md")).stdout == b"hello\n"
