"""The kernel's control groups: hold a command to its memory, and read what the kernel saw of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

VERSION_1 = Path("/sys/fs/cgroup/memory")
VERSION_2 = Path("/sys/fs/cgroup")
_PROCESSES = "cgroup.procs"


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The memory files of a control group, where they can be read; ``made`` is its folder if it is the job's own.

    ``home`` is the group that this process itself belongs to.
    """

    peak: Path | None = None
    events: Path | None = None
    home: Path | None = None
    made: Path | None = None

    @classmethod
    def of_this_process(cls) -> "Cgroup":
        """Find the group's folder under version 2, then 1."""
        return next((one for one, _ in _homes() if one.peak or one.events), cls())

    def peak_bytes(self) -> int | None:
        """Return the group's peak, page cache and everything else in the group included."""
        return int(self.peak.read_text(encoding="ascii")) if self.peak else None

    def oom_kills(self) -> int:
        """Return how many processes of the group the kernel has killed for memory."""
        if self.events is None:
            return 0
        fields = dict(line.split() for line in self.events.read_text(encoding="ascii").splitlines())
        return int(fields.get("oom_kill", 0))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Stay in the job's own group for a while; what this process starts meanwhile stays there."""
        if self.made is None or self.home is None:
            yield
            return
        _move(self.made)
        try:
            yield
        finally:
            _move(self.home)


@contextmanager
def memory_cgroup(memory_bytes: int | None) -> Iterator[Cgroup]:
    """Yield a group of the job's own that the kernel holds to ``memory_bytes``; gone afterwards.

    Where none was asked for, or none can be made (an ordinary user may not without delegation), it is the group that
    this process belongs to.
    """
    own = None if memory_bytes is None else _made(memory_bytes)
    try:
        yield own or Cgroup.of_this_process()
    finally:
        if own is not None and own.made is not None:
            with suppress(OSError):  # a process that the job left behind keeps it
                own.made.rmdir()


def _homes() -> Iterator[tuple[Cgroup, bool]]:
    """Yield this process's groups that may count memory, and whether they are version 2."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield _files(VERSION_2 / path.lstrip("/"), newer=True), True
        elif "memory" in controllers.split(","):
            yield _files(VERSION_1 / path.lstrip("/"), newer=False), False


def _files(folder: Path, *, newer: bool) -> Cgroup:
    names = ("memory.peak", "memory.events") if newer else ("memory.max_usage_in_bytes", "memory.oom_control")
    peak, events = (folder / name if os.access(folder / name, os.R_OK) else None for name in names)
    return Cgroup(peak, events, folder)


def _made(memory_bytes: int) -> Cgroup | None:
    """Make a group below this process's own; in version 2 beside it, as one with processes may have none below."""
    for group, newer in _homes():
        home = group.home
        if home is None:
            continue
        for parent in (home, home.parent) if newer else (home,):
            folder = parent / f"leadline-{os.getpid()}"
            if _prepared(folder, home, memory_bytes, newer=newer):
                made = _files(folder, newer=newer)
                return Cgroup(made.peak, made.events, home, folder)
    return None


def _prepared(folder: Path, home: Path, memory_bytes: int, *, newer: bool) -> bool:
    """Whether a group was made, limited, entered and left again; else nothing remains of it."""
    try:
        folder.mkdir()
    except OSError:
        return False
    try:
        _write(folder / ("memory.max" if newer else "memory.limit_in_bytes"), memory_bytes)
        # Without swap, and killed as a whole, where this kernel can do so.
        for name, value in _BESIDE[newer]:
            with suppress(OSError):
                _write(folder / name, memory_bytes if value is None else value)
        _move(folder)
        _move(home)
    except OSError:
        with suppress(OSError):
            folder.rmdir()
        return False
    return True


_BESIDE: dict[bool, tuple[tuple[str, int | None], ...]] = {
    False: (("memory.memsw.limit_in_bytes", None),),
    True: (("memory.swap.max", 0), ("memory.oom.group", 1)),
}


def _move(folder: Path) -> None:
    _write(folder / _PROCESSES, os.getpid())


def _write(path: Path, value: int) -> None:
    """Write to a file that is there; a missing one is the sign of a missing controller, never made."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)
