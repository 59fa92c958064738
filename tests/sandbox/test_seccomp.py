"""The filter of system calls, interpreted as the kernel would and tried on this kernel."""

import errno
import socket
import struct

import pytest

from swe_rl.sandbox.seccomp import CLONE_NEWUSER, build_filter

X86_64, AARCH64, I386 = 0xC000_003E, 0xC000_00B7, 0x4000_0003
ALLOWED, REFUSED, UNKNOWN = 0x7FFF_0000, 0x0005_0000 | errno.EPERM, 0x0005_0000 | errno.ENOSYS
UNKNOWN_FAMILY = 0x0005_0000 | errno.EAFNOSUPPORT


def answer(program: bytes, machine: int, number: int, first_argument: int = 0) -> int:
    """Runs classic BPF over one seccomp_data."""
    data = struct.pack("=IIQ6Q", number, machine, 0, first_argument, 0, 0, 0, 0, 0)
    instructions = list(struct.iter_unpack("=HBBI", program))
    position = accumulator = 0
    while True:
        code, if_true, if_false, operand = instructions[position]
        position += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif code == 0x06:
            return operand
        else:
            holds = {
                0x15: accumulator == operand,
                0x45: bool(accumulator & operand),
                0x35: accumulator >= operand,
            }[code]
            position += if_true if holds else if_false


@pytest.mark.parametrize(
    ("name", "machine", "clone", "unshare", "clone3", "keyctl", "bpf", "sockets"),
    [
        ("x86_64", X86_64, 56, 272, 435, 250, 321, (41, 53)),
        ("aarch64", AARCH64, 220, 97, 435, 219, 280, (198, 199)),
    ],
)
def test_only_what_reaches_deep_into_the_kernel_is_refused(
    name: str, machine: int, clone: int, unshare: int, clone3: int, keyctl: int, bpf: int, sockets: tuple[int, int]
) -> None:
    program = build_filter(name)
    assert program is not None
    assert answer(program, machine, clone, 0x11) == ALLOWED
    assert answer(program, machine, clone, CLONE_NEWUSER | 0x11) == REFUSED
    assert answer(program, machine, unshare, 0x200) == ALLOWED
    assert answer(program, machine, unshare, CLONE_NEWUSER) == REFUSED
    assert answer(program, machine, clone3) == UNKNOWN
    assert {answer(program, machine, number) for number in (keyctl, bpf)} == {REFUSED}
    for number in sockets:
        families = [family for family in range(64) if answer(program, machine, number, family) == ALLOWED]
        assert families == [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK]
        assert answer(program, machine, number, socket.AF_VSOCK) == UNKNOWN_FAMILY
    special = {clone3, keyctl, bpf, *sockets}
    refused = [number for number in range(600) if answer(program, machine, number) != ALLOWED]
    assert special < set(refused)
    assert len(refused) == 13  # two of them by their argument, which is 0 here


def test_other_machines_calls_are_unknown() -> None:
    program = build_filter("x86_64")
    assert program is not None
    assert answer(program, I386, 1) == UNKNOWN
    assert answer(program, X86_64, 0x4000_0000 | 1) == UNKNOWN
    assert build_filter("riscv128") is None
