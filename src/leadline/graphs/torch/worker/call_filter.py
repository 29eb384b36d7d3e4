"""A seccomp filter: system calls that change the machine or other processes are refused, in children too."""

import ctypes
import errno
import platform
import socket
import struct
from typing import List, Tuple

SET_SECCOMP, FILTER_MODE, NETLINK = 22, 2, 16
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine → column of the numbers below, and its audit architecture."""
REFUSED = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "setns": (308, 268), "unshare": (272, 97),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsmount": (432, 432),
    "mount_setattr": (442, 442), "ptrace": (101, 117), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "sethostname": (170, 161), "setdomainname": (171, 162),
    "acct": (163, 89), "quotactl": (179, 60), "bpf": (321, 280), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "open_by_handle_at": (304, 265), "io_uring_setup": (425, 425),
}  # fmt: skip
"""System calls and their numbers on x86_64 and aarch64, from the headers of Linux. -1: it has none."""
IGNORED = {
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, -1),
    "fchown": (93, 55), "lchown": (94, -1), "fchownat": (260, 54), "utime": (132, -1), "utimes": (235, -1),
    "futimesat": (261, -1), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469),
}  # fmt: skip
"""Changes of attributes, which Landlock lacks: they do nothing and report success, as a script expects."""
NODES = {"mknod": (133, -1), "mknodat": (259, 33)}
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
    groups = [(REFUSED, errno.EPERM)]
    if not isolated:
        groups += [(IGNORED, 0), (NODES, errno.EPERM)]
        program += _check_argument(KILL[column], 0, (0xFFFFFFFF,), ALLOW, FAIL | errno.EPERM)
        program += _check_argument(LIMITS[column], 0, (0,), FAIL | errno.EPERM, ALLOW)
        program += _check_argument(PRIORITY[column], 1, (0,), FAIL | errno.EPERM, ALLOW)
    for calls, error in groups:
        for numbers in calls.values():
            if numbers[column] >= 0:
                program += [(EQUAL, 0, 1, numbers[column]), (RETURN, 0, 0, FAIL | error)]
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
