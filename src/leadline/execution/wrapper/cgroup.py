"""Control groups of the kernel: limit the memory of a command, and read its use."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from leadline.core.frozen import Frozen

VERSION_1 = Path("/sys/fs/cgroup/memory")
VERSION_2 = Path("/sys/fs/cgroup")
_PROCESSES = "cgroup.procs"


class Cgroup(Frozen):
    """The readable memory files of a control group."""

    peak: Path | None = None  # file with the memory peak
    events: Path | None = None  # file with the number of out-of-memory kills
    home: Path | None = None  # group of this process
    job_folder: Path | None = None  # folder of the job's own group, if it has one

    def peak_bytes(self) -> int | None:
        """Return the group's memory peak, including page cache."""
        return int(self.peak.read_text(encoding="ascii")) if self.peak else None

    def oom_kills(self) -> int:
        """Return how many processes of the group the kernel has killed for memory."""
        if self.events is None:
            return 0
        fields = dict(line.split() for line in self.events.read_text(encoding="ascii").splitlines())
        return int(fields.get("oom_kill", 0))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Join the job's group for a while, so that new processes start in it."""
        if self.job_folder is None or self.home is None:
            yield
            return
        _move(self.job_folder)
        try:
            yield
        finally:
            _move(self.home)


@contextmanager
def memory_cgroup(memory_bytes: int | None) -> Iterator[Cgroup]:
    """Yield a group of the job's own with a memory limit, removed afterwards.

    Without a limit or permission (users need delegation), it is the group of this process.
    """
    job_group = None if memory_bytes is None else _make_group(memory_bytes)
    try:
        groups = (_files(home, newer=newer) for home, newer in _homes())
        yield job_group or next((group for group in groups if group.peak or group.events), Cgroup())
    finally:
        if job_group is not None and job_group.job_folder is not None:
            with suppress(OSError):
                # Processes that the job left behind keep the group.
                job_group.job_folder.rmdir()


def _homes() -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's groups that may count memory, and True for version 2."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # Version 2 has a single hierarchy, listed without controllers.
        if controllers == "":
            yield VERSION_2 / path.lstrip("/"), True
        elif "memory" in controllers.split(","):
            yield VERSION_1 / path.lstrip("/"), False


def _files(folder: Path, *, newer: bool) -> Cgroup:
    names = ("memory.peak", "memory.events") if newer else ("memory.max_usage_in_bytes", "memory.oom_control")
    peak, events = (folder / name if os.access(folder / name, os.R_OK) else None for name in names)
    return Cgroup(peak, events, folder)


def _make_group(memory_bytes: int) -> Cgroup | None:
    """Make a group below this process's own. Version 2 needs a sibling: groups with processes have no children."""
    for home, newer in _homes():
        for parent in (home, home.parent) if newer else (home,):
            folder = parent / f"leadline-{os.getpid()}"
            if _prepare(folder, home, memory_bytes, newer=newer):
                return replace(_files(folder, newer=newer), home=home, job_folder=folder)
    return None


def _prepare(folder: Path, home: Path, memory_bytes: int, *, newer: bool) -> bool:
    """True if the group was made, limited, entered and left; otherwise it is removed again."""
    try:
        folder.mkdir()
    except OSError:
        return False
    try:
        _write(folder / ("memory.max" if newer else "memory.limit_in_bytes"), memory_bytes)
        # Without swap, and killed as a whole, if this kernel supports both.
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
    """Write to an existing file. A missing file means a missing controller, so it is never created."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)
