"""A seccomp filter: system calls that change the machine or other processes are refused, in children too."""

import ctypes
import errno
import json
import platform
import socket
import struct
from pathlib import Path
from typing import Dict, List, Optional, Tuple

SET_SECCOMP, FILTER_MODE, NETLINK = 22, 2, 16
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine → column of the numbers below, and its audit architecture."""
CALLS: Dict[str, Dict[str, List[Optional[int]]]] = json.loads(
    Path(__file__).with_name("system_calls.json").read_text(encoding="utf-8")
)
"""System calls and their numbers on x86_64 and aarch64, from the headers of Linux. None: it has none.

The ignored ones change attributes, which Landlock lacks: they do nothing and report success, as a script expects.
"""
SOCKET, KILL, LIMITS, PRIORITY = (41, 198), (62, 129), (302, 261), (141, 140)
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000
NUMBER_OFFSET, MACHINE_OFFSET, ARGUMENTS_OFFSET, SECOND_TABLE = 0, 4, 16, 0x40000000
"""Places in the description of a call, and where numbers of the second table of x86_64 begin."""

Instruction = Tuple[int, int, int, int]


def filter_calls(isolated: bool) -> bool:
    """Filter the system calls of this process, and return whether the kernel does. More do harm unless ``isolated``."""
    if platform.machine() not in MACHINES:
        return False
    column, machine = MACHINES[platform.machine()]
    program: List[Instruction] = [
        (LOAD, 0, 0, MACHINE_OFFSET), (EQUAL, 1, 0, machine), (RETURN, 0, 0, FAIL | errno.EPERM),
        (LOAD, 0, 0, NUMBER_OFFSET), (AT_LEAST, 0, 1, SECOND_TABLE), (RETURN, 0, 0, FAIL | errno.EPERM),
    ]  # fmt: skip
    families = (socket.AF_UNIX, NETLINK, *((socket.AF_INET, socket.AF_INET6) if isolated else ()))
    program += _check_argument(SOCKET[column], 0, families, FAIL | errno.ENETUNREACH, ALLOW)
    groups = [("refused", errno.EPERM)]
    if not isolated:
        groups += [("ignored", 0), ("nodes", errno.EPERM)]
        program += _check_argument(KILL[column], 0, (0xFFFFFFFF,), ALLOW, FAIL | errno.EPERM)
        program += _check_argument(LIMITS[column], 0, (0,), FAIL | errno.EPERM, ALLOW)
        program += _check_argument(PRIORITY[column], 1, (0,), FAIL | errno.EPERM, ALLOW)
    for group, error in groups:
        for numbers in CALLS[group].values():
            if (number := numbers[column]) is not None:
                program += [(EQUAL, 0, 1, number), (RETURN, 0, 0, FAIL | error)]
    program.append((RETURN, 0, 0, ALLOW))
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HP", len(program), ctypes.addressof(buffer))
    return bool(ctypes.CDLL(None).prctl(SET_SECCOMP, FILTER_MODE, header, 0, 0) == 0)


def _check_argument(number: int, index: int, values: Tuple[int, ...], other: int, equal: int) -> List[Instruction]:
    """Return instructions that answer one system call by one argument: ``equal`` if it is one of the values."""
    count = len(values)
    tests = [(EQUAL, count - place, 0, value) for place, value in enumerate(values)]
    load = (LOAD, 0, 0, ARGUMENTS_OFFSET + 8 * index)
    return [(EQUAL, 0, count + 3, number), load, *tests, (RETURN, 0, 0, other), (RETURN, 0, 0, equal)]
