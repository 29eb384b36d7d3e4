"""Confine a worker that runs a user's code, by what the kernel offers to an ordinary user.

The worker runs in the user's environment, so this module needs only the standard library. It uses three features of
Linux as far as the kernel has them. None needs root, and a failed attempt leaves the calling process as it was:

- Namespaces: files are read-only, and changes of the folders where scripts write vanish in overlays. There is no
  network, and no process outside can be reached.
- Landlock: writes outside the trace's folder are refused, and so are signals and abstract sockets.
- A seccomp filter: system calls that change the machine or other processes are refused.
"""

import ctypes
import errno
import fcntl
import os
import re
import signal
import socket
import stat
import struct
from contextlib import suppress
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from leadline.graphs.torch.worker import call_filter

CHANGES = "changes of files by child processes and compiled libraries"
TRUNCATION = "truncation of files by them"
ATTRIBUTES = "changes of file modes, owners and times by them"
CACHES = "caches below the home folder"
SHARED_MEMORY = "shared memory (/dev/shm and System V)"
NETWORK = "the network"
SOCKETS = "Unix sockets of other programs"
SIGNALS = "signals to other processes"
SETTINGS = "priorities and limits of other processes"
LASTING = "child processes that outlive the trace"
HARMS = (CHANGES, TRUNCATION, ATTRIBUTES, CACHES, SHARED_MEMORY, NETWORK, SOCKETS, SIGNALS, SETTINGS, LASTING)

NEW_MOUNTS, NEW_HOSTNAME, NEW_IPC = 1 << 17, 1 << 26, 1 << 27
NEW_USER, NEW_PIDS, NEW_NETWORK = 1 << 28, 1 << 29, 1 << 30
READ_ONLY, NO_SUID, NO_DEVICES, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 1 << 5, 1 << 12, 1 << 14, 1 << 18
MOUNT_OPTIONS = {
    "nosuid": NO_SUID, "nodev": NO_DEVICES, "noexec": 8, "nosymfollow": 1 << 8, "noatime": 1 << 10,
    "nodiratime": 1 << 11, "relatime": 1 << 21,
}  # fmt: skip
SET_DEATH_SIGNAL, DROP_BOUND, SET_SUBREAPER, NO_NEW_PRIVILEGES = 1, 24, 36, 38
FILE_CAPABILITIES = 0xFF
"""Root keeps the capabilities about files and users: CAP_CHOWN to CAP_SETUID."""
WRITABLE = ("~", ".", "/tmp", "/var/tmp", "/dev/shm", "$TMPDIR", "$XDG_CACHE_HOME", "$HF_HOME", "$TORCH_HOME")  # noqa: S108
NAME_SERVICES = ("/nscd/", "/sss/pipes/nss")
"""Sockets that stay: they only look up names, and on some sites no user has a name without them."""

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
FILE_WRITES = 1 << 1 | sum(1 << bit for bit in range(4, 13))
RENAMES, TRUNCATES = 1 << 13, 1 << 14

_libc = ctypes.CDLL(None, use_errno=True)


class Confinement(NamedTuple):
    """How a worker is confined: the features of the kernel in use, and the harms that are prevented."""

    features: Tuple[str, ...]
    prevented: Tuple[str, ...]

    @property
    def possible(self) -> Tuple[str, ...]:
        """The harms that nothing prevents on this machine."""
        return tuple(harm for harm in HARMS if harm not in self.prevented)

    @property
    def refuses_writes(self) -> bool:
        """Whether writes fail, for lack of overlays where they would vanish."""
        return CHANGES in self.prevented and "namespaces" not in self.features

    def sentence(self) -> str:
        """Return what was held back on this machine, and what was not."""
        if not self.possible:
            return "the traced code could not change files, use the network or affect other processes"
        offer = " and ".join(self.features) or "no confinement"
        prevented, possible = ", ".join(self.prevented) or "nothing", ", ".join(self.possible)
        return f"this machine offers {offer}: the trace did not hold back {possible}; it held back {prevented}"


def confine(folder: str, paths: Iterable[str], without: Iterable[str] = ()) -> Confinement:
    """Continue in a confined child process, and return there. The caller, which has one thread, ends as the child does.

    ``folder`` stays writable. Changes near ``paths`` and in the usual folders look successful and vanish where the
    kernel has overlays. ``without`` names features to leave unused: namespaces, landlock, seccomp.
    """
    end_with_parent()  # it ends with Leadline, however that ends
    folder = os.path.realpath(folder)
    everything = NEW_USER | NEW_MOUNTS | NEW_HOSTNAME | NEW_IPC | NEW_NETWORK | NEW_PIDS
    for flags in (everything, everything & ~NEW_PIDS):
        if "namespaces" not in without and _enter_namespaces(flags, folder, (*WRITABLE, *paths)):
            reachable = {SIGNALS, SETTINGS} if not flags & NEW_PIDS else set()
            return _restrict(folder, without, ["namespaces"], set(HARMS) - reachable)
    prevented = {LASTING} if _libc.prctl(SET_SUBREAPER, 1, 0, 0, 0) == 0 else set()
    child = os.fork()
    if child:
        _end_with(child)
    return _restrict(folder, without, [], prevented)


def _restrict(folder: str, without: Iterable[str], features: List[str], prevented: Set[str]) -> Confinement:
    """Give up what the process needs no more, for itself and its children."""
    isolated = bool(features)
    end_with_parent()
    _drop_capabilities()
    if _libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0:
        version = 0 if "landlock" in without else _landlock(folder, files=not isolated)
        for minimum, harms in ((1, {CHANGES, CACHES}), (3, {TRUNCATION}), (6, {SIGNALS})):
            prevented |= harms if version >= minimum else set()
        features += [f"Landlock {version}"] if version else []
        if "seccomp" not in without and call_filter.filter_calls(isolated):
            features.append("seccomp")
            prevented |= {ATTRIBUTES, NETWORK}
    return Confinement(tuple(features), tuple(harm for harm in HARMS if harm in prevented))


def end_with_parent() -> None:
    """Let the kernel kill this process when the one that started it ends."""
    _libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)


def _end_with(child: int) -> None:
    """Wait for a child, kill the descendants that it left behind, and end as it did."""

    def stop(*_: object) -> None:
        _kill_descendants()
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    pid, status = os.wait()
    while pid != child:
        pid, status = os.wait()
    _kill_descendants()
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def _kill_descendants() -> None:
    """Kill all children. Their own children become this process's, and are killed next."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] or sum(map(_kill, _children())):
            pass


def _kill(child: int) -> int:
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[0]


def _children() -> Iterator[int]:
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            # The name of the program is in parentheses and may contain any character.
            if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                yield int(name)


def _enter_namespaces(flags: int, folder: str, writable: Iterable[str]) -> bool:
    """Return True in a new process inside new namespaces, or False in this one if the kernel refuses any."""
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    outside = os.fork()
    if not outside:
        end_with_parent()
        try:
            sockets = _socket_paths()
            _call("unshare", flags)
            os.write(to_parent, b"u")
            os.close(to_child)
            if not os.read(from_parent, 1):
                os._exit(1)
            os.close(from_parent)
            inside = os.fork()  # the first process of the new process namespace
            if inside:
                os.close(to_parent)
                _end_with(inside)
            end_with_parent()
            _libc.prctl(SET_SUBREAPER, 1, 0, 0, 0)
            _isolate_files(folder, writable, sockets, own_processes=bool(flags & NEW_PIDS))
            _start_loopback()
            os.write(to_parent, b"r")
            os.close(to_parent)
        except OSError:
            os._exit(1)
        worker = os.fork()
        if worker:
            _end_with(worker)
        return True
    os.close(to_parent)
    with suppress(OSError):
        if os.read(from_child, 1):
            _map_users(outside)
            os.write(to_child, b"m")
    os.close(to_child)
    if os.read(from_child, 1):
        _end_with(outside)
    os.waitpid(outside, 0)
    os.close(from_child)
    os.close(from_parent)
    return False


def _map_users(pid: int) -> None:
    """Keep every user inside the namespaces who has a meaning here: of a user, only the own one may be mapped."""
    try:
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/self/{name}", encoding="ascii") as file:
                ranges = [line.split() for line in file]
            _write(f"/proc/{pid}/{name}", "".join(f"{inside} {inside} {count}\n" for inside, _, count in ranges))
    except OSError:
        _write(f"/proc/{pid}/uid_map", f"{os.geteuid()} {os.geteuid()} 1")
        _write(f"/proc/{pid}/setgroups", "deny")
        _write(f"/proc/{pid}/gid_map", f"{os.getegid()} {os.getegid()} 1")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _socket_paths() -> List[str]:
    """Return the Unix sockets that programs of this machine listen on."""
    with suppress(OSError), open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        paths = {line.split(None, 7)[7].rstrip("\n") for line in file if " /" in line}
        return [path for path in paths if not any(service in path for service in NAME_SERVICES)]
    return []


def _mount(source: Optional[str], target: str, kind: Optional[str], flags: int = 0, options: str = "") -> None:
    names = [None if name is None else os.fsencode(name) for name in (source, target, kind)]
    _call("mount", *names, ctypes.c_ulong(flags), options.encode())


def _isolate_files(folder: str, writable: Iterable[str], sockets: Iterable[str], *, own_processes: bool) -> None:
    """Make every mount read-only, with overlays over the folders that scripts write to."""
    cwd = os.getcwd()
    folder_fd = os.open(folder, os.O_RDONLY)
    mounts = _mounts()
    _mount(None, "/", None, RECURSIVE | PRIVATE)
    layers = os.path.join(folder, "layers")
    os.makedirs(layers, exist_ok=True)
    _mount("tmpfs", layers, "tmpfs", NO_SUID | NO_DEVICES, "mode=700")
    layers_fd = os.open(layers, os.O_RDONLY)
    overlaid = _mount_overlays(writable, mounts, layers_fd)
    # A parent folder may have an overlay by now, which hides the real folder.
    _mount(f"/proc/self/fd/{folder_fd}", folder, None, BIND)
    for path, flags in mounts.items():
        if path not in overlaid:
            _mount_read_only(path, flags)
    devices = [entry.path for entry in os.scandir("/dev") if stat.S_ISBLK(entry.stat(follow_symlinks=False).st_mode)]
    for path in (*sockets, *devices, "/dev/mem", "/dev/kmsg"):
        with suppress(OSError):  # it is gone, or hidden by an overlay
            _mount("/dev/null", path, None, BIND)
    with suppress(OSError):  # terminals of the user's other sessions
        _mount("devpts", "/dev/pts", "devpts", NO_SUID | MOUNT_OPTIONS["noexec"], "newinstance,ptmxmode=0666,mode=620")
    if own_processes:
        _mount("proc", "/proc", "proc", NO_SUID | NO_DEVICES | MOUNT_OPTIONS["noexec"])
    for path in ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"):
        if own_processes and os.path.exists(path):
            _mount(path, path, None, BIND)
            _mount_read_only(path, NO_SUID | NO_DEVICES | MOUNT_OPTIONS["noexec"])
    os.close(folder_fd)
    os.close(layers_fd)
    os.chdir(cwd)  # by its path, which may lead to an overlay now


def _mounts() -> Dict[str, int]:
    """Return the mount points and the flags of their mounts."""
    mounts = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            path, options = line.split(" ")[4:6]
            if " - autofs " in line:  # a visit would mount what it stands for
                continue
            path = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), path)
            mounts[path] = sum(MOUNT_OPTIONS.get(option, 0) for option in options.split(","))
    return mounts


def _mount_read_only(path: str, flags: int) -> None:
    try:
        _mount(None, path, None, REMOUNT | BIND | READ_ONLY | flags)
    except OSError as error:
        # Another mount hides it, or its folder is closed to this user: no path leads there.
        if error.errno not in (errno.ENOENT, errno.EACCES, errno.EINVAL) or os.access(path, os.W_OK):
            raise


def _mount_overlays(writable: Iterable[str], mounts: Iterable[str], layers: int) -> Set[str]:
    """Mount an overlay over each folder that this user may write to, and return those folders."""
    system = ("/proc/", "/sys/", "/dev/", "/run/")
    usual = [os.path.realpath(os.path.expandvars(os.path.expanduser(path))) for path in writable]
    usual = [path if os.path.isdir(path) else os.path.dirname(path) for path in usual]
    mounted = [path for path in mounts if not f"{path}/".startswith(system)]
    overlaid: Set[str] = set()
    for path in sorted({*usual, *mounted} - {"/"}, key=lambda path: (path.count("/"), path)):
        inside = any(path.startswith(folder + "/") for folder in overlaid)
        if inside or not os.path.isdir(path) or not os.access(path, os.W_OK):
            continue
        upper, work = f"upper{len(overlaid)}", f"work{len(overlaid)}"
        status, lower = os.stat(path), os.open(path, os.O_PATH)
        for name in (upper, work):
            os.makedirs(f"/proc/self/fd/{layers}/{name}", exist_ok=True)
        top = f"/proc/self/fd/{layers}"
        os.chmod(f"{top}/{upper}", stat.S_IMODE(status.st_mode))
        with suppress(OSError):  # its owner has no meaning inside
            os.chown(f"{top}/{upper}", status.st_uid, status.st_gid)
        options = f"lowerdir=/proc/self/fd/{lower},upperdir={top}/{upper},workdir={top}/{work},userxattr"
        with suppress(OSError):  # this file system allows no overlay, so the folder becomes read-only
            _mount("overlay", path, "overlay", NO_SUID | NO_DEVICES, options)
            overlaid.add(path)
        os.close(lower)
    return overlaid


def _start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        fcntl.ioctl(link, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


def _drop_capabilities() -> None:
    capabilities = FILE_CAPABILITIES if os.geteuid() == 0 else 0
    for number in range(64):
        if not capabilities >> number & 1:
            _libc.prctl(DROP_BOUND, number, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _libc.capset(header, (ctypes.c_uint32 * 6)(capabilities, capabilities, 0, 0, 0, 0))


def _landlock(folder: str, *, files: bool) -> int:
    """Restrict this process, and its files too if ``files``. Return the version of Landlock, or 0 without it."""
    version = _libc.syscall(CREATE_RULESET, None, 0, 1)
    if version < 1 or (not files and version < 6):
        return 0
    writes = FILE_WRITES | (RENAMES if version >= 2 else 0) | (TRUNCATES if version >= 3 else 0)
    ports, scopes = 3, 3  # bind and connect, abstract sockets and signals
    attributes = (writes if files else 0, ports if files and version >= 4 else 0, scopes if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _libc.syscall(CREATE_RULESET, struct.pack("QQQ", *attributes), ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return 0
    nodes = ("null", "zero", "full", "tty", "ptmx", "pts", "shm")
    for path in (folder, *(f"/dev/{name}" for name in nodes)) if files else ():
        if os.path.exists(path):
            allowed = writes if os.path.isdir(path) else writes & (1 << 1 | TRUNCATES)
            descriptor = os.open(path, os.O_PATH)
            _libc.syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, descriptor), 0)
            os.close(descriptor)
    refused = _libc.syscall(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return 0 if refused else int(version)
