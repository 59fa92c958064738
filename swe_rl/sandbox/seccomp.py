"""A filter of system calls that no build or test needs and that reach deep into the kernel, for bwrap's --seccomp.

User namespaces, other processes' namespaces, kernel keyrings, BPF, performance events, fault handlers, the kernel's log
and files by handle are refused. Of socket families there are those that a network namespace holds back: AF_VSOCK, for
one, would reach the machine on which a virtual one runs.
The program is classic BPF (linux/filter.h), assembled here because it is short and differs by machine in numbers only.
"""

import errno
import platform
import socket
import struct

CLONE_NEWUSER = 0x1000_0000
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000
_LOAD, _JUMP_EQUAL, _JUMP_SET, _JUMP_NOT_BELOW, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_OFFSET_NUMBER, _OFFSET_MACHINE, _OFFSET_FIRST_ARGUMENT = 0, 4, 16
_X32_BIT = 0x4000_0000

# AUDIT_ARCH_*, clone, unshare, clone3, (socket, socketpair), and the refused: setns, add_key, request_key, keyctl, bpf,
# perf_event_open, userfaultfd, io_uring_setup, syslog, open_by_handle_at.
_MACHINES = {
    "x86_64": (0xC000_003E, 56, 272, 435, (41, 53), (308, 248, 249, 250, 321, 298, 323, 425, 103, 304)),
    "aarch64": (0xC000_00B7, 220, 97, 435, (198, 199), (268, 217, 218, 219, 280, 241, 282, 425, 116, 265)),
}
SOCKET_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)


def build_filter(machine: str = "") -> bytes | None:
    """The program's bytes; None for a machine whose numbers aren't known here."""
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    architecture, clone, unshare, clone3, sockets, refused = known
    unknown, forbidden = _ERRNO | errno.ENOSYS, _ERRNO | errno.EPERM
    program = [
        _instruction(_LOAD, 0, 0, _OFFSET_MACHINE),
        _instruction(_JUMP_EQUAL, 1, 0, architecture),
        _instruction(_RETURN, 0, 0, unknown),
        _instruction(_LOAD, 0, 0, _OFFSET_NUMBER),
        _instruction(_JUMP_NOT_BELOW, 0, 1, _X32_BIT),
        _instruction(_RETURN, 0, 0, unknown),
    ]
    # clone3 hides its flags behind a pointer; the C library falls back on clone where the kernel doesn't have it.
    for number, answer in ((clone3, unknown), *((number, forbidden) for number in refused)):
        program += [_instruction(_JUMP_EQUAL, 0, 1, number), _instruction(_RETURN, 0, 0, answer)]
    families = [
        _instruction(_LOAD, 0, 0, _OFFSET_FIRST_ARGUMENT),
        *(_instruction(_JUMP_EQUAL, len(SOCKET_FAMILIES) - at, 0, f) for at, f in enumerate(SOCKET_FAMILIES)),
        _instruction(_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT),
        _instruction(_RETURN, 0, 0, _ALLOW),
    ]
    program += [
        _instruction(_JUMP_EQUAL, 1, 0, sockets[0]),
        _instruction(_JUMP_EQUAL, 0, len(families), sockets[1]),
        *families,
        _instruction(_JUMP_EQUAL, 1, 0, clone),
        _instruction(_JUMP_EQUAL, 0, 3, unshare),
        _instruction(_LOAD, 0, 0, _OFFSET_FIRST_ARGUMENT),
        _instruction(_JUMP_SET, 0, 1, CLONE_NEWUSER),
        _instruction(_RETURN, 0, 0, forbidden),
        _instruction(_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(program)


def _instruction(code: int, if_true: int, if_false: int, operand: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)
