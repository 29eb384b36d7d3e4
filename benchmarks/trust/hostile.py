"""Harms of traced scripts: each hostile script runs through the real trace, and its canary is inspected afterwards."""

import ctypes
import json
import os
import resource
import shlex
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.results import BenchmarkRow, at_most
from benchmarks.trust.harms import HARMS, JAX_STEP, MODEL, TRAINING, script
from leadline.core.errors import Untraceable
from leadline.core.graph import TracedJob
from leadline.core.processes import CompletedProcess, ProcessRunner
from leadline.core.workload import InputShape, ModelKind, ModelSource, Phase, Workload
from leadline.execution.processes import run_process, start_process
from leadline.graphs.hlo.jax_function import lower_function
from leadline.graphs.torch.trace import trace_command, trace_function

LEVELS: dict[str, tuple[str, ...]] = {
    "everything that the kernel offers": (),
    "Landlock and seccomp": ("namespaces",),
    "no help of the kernel": ("namespaces", "landlock", "seccomp"),
}
BUFFER = b"unharmed"
PROCESS = f"""
import ctypes, time
buffer = ctypes.create_string_buffer({BUFFER!r}, 64)
print(ctypes.addressof(buffer), flush=True)
time.sleep(600)
"""
TIMEOUT_S = 60.0
_libc = ctypes.CDLL(None, use_errno=True)


class Canary:
    """Files, sockets and a process that a hostile script may harm."""

    def __init__(self, folder: Path) -> None:
        self.mark = f"leadline-canary-{os.getpid()}-{folder.name}"
        self.home, self.shm = folder / "home", Path("/dev/shm", self.mark)  # noqa: S108 - shared memory is what may be harmed
        for path in (".cache", "folder", "empty"):
            (self.home / path).mkdir(parents=True)
        for path in ("file.txt", ".cache/file.txt", "folder/file.txt", ".bashrc"):
            (self.home / path).write_text("safe")
        self.shm.write_text("safe")
        readable, writable = os.pipe()
        self.process = start_process([sys.executable, "-c", PROCESS], stdout=writable)
        os.close(writable)
        with os.fdopen(readable) as output:
            self.address = int(output.readline())
        self.segment = _libc.shmget(0, 4096, 0o1600)
        self.listeners = [socket.socket(), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
        addresses: tuple[Any, ...] = (("127.0.0.1", 0), str(self.home / "socket"), f"\0{self.mark}")
        for listener, address in zip(self.listeners, addresses, strict=True):
            listener.bind(address)
            listener.listen()
            listener.settimeout(0)
        self.port = self.listeners[0].getsockname()[1]
        self.messages = socket.socket(type=socket.SOCK_DGRAM)
        self.messages.bind(("127.0.0.1", self.port))
        self.messages.settimeout(0)
        with socket.socket() as free:
            free.bind(("", 0))
            self.free_port = free.getsockname()[1]
        self.opened = False

    def description(self) -> str:
        """Return what a script needs to know to do harm, as JSON."""
        names = ("mark", "address", "segment", "port", "free_port")
        values = {name: getattr(self, name) for name in names}
        return json.dumps({**values, "home": str(self.home), "shm": str(self.shm), "pid": self.process.pid})

    def state(self) -> dict[str, Any]:
        """Return everything that a harm would change."""
        pid = self.process.pid
        state: dict[str, Any] = {"process": self.process.poll(), "port": self.opened}
        for path in (self.shm, *sorted(self.home.rglob("*"))):
            state[str(path)] = _file_state(path)
        if state["process"] is None:
            with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
                memory.seek(self.address)
                state["memory"] = memory.read(len(BUFFER))
            # the state of a process follows its name, which is in parentheses
            stopped = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0] in "Tt"
            state["settings"] = (stopped, os.getpriority(os.PRIO_PROCESS, pid), sorted(os.sched_getaffinity(pid)))
            state["limits"] = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        state["segment"] = _libc.shmctl(self.segment, 2, ctypes.create_string_buffer(512))
        for place, listener in enumerate(self.listeners):
            with suppress(BlockingIOError):
                listener.accept()[0].close()
                state[f"connection {place}"] = True
        with suppress(BlockingIOError):
            state["message"] = self.messages.recv(9)
        state["daemons"] = [pid for pid, words in _processes() if self.mark in words]
        return state

    def watch_port(self, ended: threading.Event) -> None:
        """Record whether the free port is opened before ``ended`` is set."""
        entry = f":{self.free_port:04X} "
        while not ended.wait(0.02):
            for name in ("tcp", "tcp6"):
                lines = Path("/proc/net", name).read_text(encoding="ascii").splitlines()
                # 0A: it listens
                self.opened |= any(entry in line and line.split()[3] == "0A" for line in lines)

    def remove(self) -> None:
        """End the process and remove all outside the folder."""
        for pid, words in _processes():
            if self.mark in words:
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.shm.unlink(missing_ok=True)
        _libc.shmctl(self.segment, 0, None)
        for listener in (*self.listeners, self.messages):
            listener.close()


def _file_state(path: Path) -> object:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    changed = status.st_mtime_ns if path.is_file() else 0
    return content, status.st_mode, status.st_uid, changed, os.listxattr(path, follow_symlinks=False)


def _processes() -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield int(folder.name), (folder / "cmdline").read_bytes().decode(errors="replace")


@contextmanager
def _canary() -> Iterator[tuple[Canary, Path]]:
    with tempfile.TemporaryDirectory(prefix="leadline-hostile-") as folder:
        canary = Canary(Path(folder))
        try:
            yield canary, Path(folder)
        finally:
            canary.remove()


def run_without(
    features: Sequence[str],
    runner: ProcessRunner,
    variables: Mapping[str, str],
    folder: Path,
    argv: Sequence[str],
    *,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout_s: float | None = None,
) -> CompletedProcess:
    """Run a worker as ``runner`` does, in a folder, with more variables, and without some features of the kernel."""
    request = Path(argv[-1])
    request.write_text(json.dumps({**json.loads(request.read_text()), "without": [*features]}))
    return runner(argv, env={**(env or {}), **variables}, cwd=cwd or folder, stdin=stdin, timeout_s=timeout_s)


def _trace(path: Path, kind: ModelKind, runner: ProcessRunner) -> TracedJob:
    """Trace a file in one of the ways in which Leadline runs the user's code."""
    if kind is ModelKind.COMMAND:
        words = (sys.executable, str(path))
        workload = Workload(ModelSource(kind, shlex.join(words), words), trace_limit_s=TIMEOUT_S)
        return trace_command(workload, runner=runner)
    if kind is ModelKind.FUNCTION:
        workload = Workload(ModelSource(kind, f"{path}:build"), inputs=(InputShape((4, 2)),))
        return trace_function(workload, runner=runner)
    return lower_function(Workload(ModelSource(kind, f"{path}:build"), phase=Phase.INFERENCE), runner=runner)


def attempt(
    *codes: str,
    without: Sequence[str] = (),
    runner: ProcessRunner = run_process,
    kind: ModelKind = ModelKind.COMMAND,
) -> tuple[list[str], tuple[str, ...]]:
    """Trace one file that tries these harms. Return what it changed of its canary, and the notes of the trace."""
    ending = {ModelKind.FUNCTION: MODEL, ModelKind.JAX_FUNCTION: JAX_STEP}.get(kind, TRAINING)
    with _canary() as (canary, folder):
        path = canary.home / "train.py"
        path.write_text(script(*codes, ending=ending))
        before, ended = canary.state(), threading.Event()
        watcher = threading.Thread(target=canary.watch_port, args=(ended,))
        watcher.start()
        extra = {"HOME": str(canary.home), "LEADLINE_CANARY": canary.description(), "XDG_CACHE_HOME": ""}

        try:
            notes = _trace(path, kind, partial(run_without, without, runner, extra, folder)).notes
        except Untraceable as error:
            notes = (str(error),)
        finally:
            ended.set()
            watcher.join()
        after = canary.state()
        return sorted(name for name in {*before, *after} if before.get(name) != after.get(name)), notes


def named_harms(notes: Sequence[str]) -> set[str]:
    """Return the harms that the output of one trace names as not held back."""
    possible = " ".join(notes).partition("did not hold back ")[2].partition("; it held back ")[0]
    return {harm for harm in HARMS if harm in possible}


def rows(*, quick: bool = False) -> list[BenchmarkRow]:
    """Run every hostile script with all means of the kernel, and without some of them; ``quick`` skips the latter."""
    result = []
    for level, without in list(LEVELS.items())[: 1 if quick else None]:
        tries = [(harm, name, code) for harm, scripts in HARMS.items() for name, code in scripts.items()]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            outcomes = list(pool.map(partial(attempt, without=without), (code for _, _, code in tries)))
        through, unnamed = [], []
        for (harm, name, _), (changes, notes) in zip(tries, outcomes, strict=True):
            through += [name] if changes else []
            unnamed += [name] if changes and harm not in named_harms(notes) else []
        count = len(tries)
        how = f"{count} hostile scripts, {level}" + (f"; through: {', '.join(through)}" if through else "")
        if not without:
            result.append(at_most(f"harms that got through, {level}", float(len(through)), 0.0, "", n=count, how=how))
        else:
            result.append(BenchmarkRow(f"harms that got through, {level}", float(len(through)), "", n=count, how=how))
        label = f"harms of a kind that the output does not name, {level}"
        result.append(at_most(label, float(len(unnamed)), 0.0, "", n=count, how=", ".join(unnamed)))
    return result
