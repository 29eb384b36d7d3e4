"""White-box figures of commands: what their op graphs say before they run, as features of runs and of questions."""

import hashlib
import os
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from leadline import __version__
from leadline.app import settings
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.graph import TracedJob
from leadline.core.ports import GraphSource
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.estimators.memory.device import peak_memory

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class TraceableCommand:
    """A command as it would run: its words, the folder it is run in, and whether it has a GPU."""

    words: tuple[str, ...]
    workdir: str
    gpu: bool = False


def graph_features(job: TracedJob) -> dict[str, float]:
    """Return the figures of one optimizer step, and how many the loop around it makes where it says so.

    ``graph_flops``, ``graph_bytes`` to and from memory if nothing is cached, ``graph_kernels`` launched,
    ``graph_parameters``, and ``graph_peak_bytes`` that tensors hold at once; those above zero.
    """
    step, loop = job.step, job.loop
    found = {
        "graph_flops": step.flops,
        "graph_bytes": step.bytes_moved,
        "graph_kernels": sum(op.kernels * op.count for op in step.ops),
        "graph_parameters": step.parameters,
        "graph_peak_bytes": peak_memory(step).allocated_bytes,
        "graph_steps": (loop.steps_per_epoch or 0) * (loop.epochs or 0),
    }
    return {name: float(value) for name, value in found.items() if value > 0}


def trace_features(
    commands: Sequence[TraceableCommand], source: GraphSource, *, jobs: int, progress: Progress = lambda *_: None
) -> list[Mapping[str, float]]:
    """Return the figures of each command; every one is traced once, several at a time.

    What was found is kept in the user's data folder, and found again by the command and by the names, sizes and times
    of the Python files beside its script.

    Raises:
        InvalidInput: one cannot be traced; which, and why.
    """
    each = list(dict.fromkeys(commands))
    found = {}
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        try:
            for command, figures in zip(each, pool.map(lambda one: _kept(one, source), each), strict=True):
                found[command] = figures
                progress("tracing commands", len(found), len(each))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [found[one] for one in commands]


def _kept(command: TraceableCommand, source: GraphSource) -> Mapping[str, float]:
    path = settings.data_dir() / "traces" / f"{_key(command)}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, float])
    except (OSError, msgspec.DecodeError):  # not traced yet, or the file was cut short: it is made again
        found = _trace(command, source)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.part")
    part.write_bytes(msgspec.json.encode(found))
    part.replace(path)
    return found


def _trace(command: TraceableCommand, source: GraphSource) -> dict[str, float]:
    said = shlex.join(command.words)
    workload = Workload(ModelSource(ModelKind.COMMAND, said, _absolute(command), command.workdir), name=said)
    try:
        return graph_features(source(workload, device_type="cuda" if command.gpu else "cpu"))
    except LeadlineError as error:
        raise InvalidInput(f"no white-box figures of {said}: {error}") from error


def _absolute(command: TraceableCommand) -> tuple[str, ...]:
    """Return the words with the script's path counted from the folder in which the command is run."""
    folder = Path(command.workdir)
    return tuple(
        str(folder / word) if word.endswith(".py") and (folder / word).is_file() else word for word in command.words
    )


def _key(command: TraceableCommand) -> str:
    scripts = [Path(word) for word in _absolute(command) if word.endswith(".py")]
    beside = sorted({each for one in scripts if one.is_file() for each in one.parent.glob("*.py")})
    stats = [(str(each), each.stat().st_size, each.stat().st_mtime_ns) for each in beside]
    told = msgspec.json.encode([__version__, command.words, command.workdir, command.gpu, stats])
    return hashlib.sha256(told).hexdigest()[:32]
