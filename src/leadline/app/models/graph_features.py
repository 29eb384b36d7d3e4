"""Graph features: sizes of a command's op graph, traced before it runs, as features of a trained model."""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from leadline import __version__
from leadline.app import settings
from leadline.app.estimate.kept_probes import nearby_modules
from leadline.core.documents import from_json
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.frozen import Frozen
from leadline.core.graph import TracedJob
from leadline.core.ports import GraphSource
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.estimators.memory.device import peak_memory
from leadline.files.atomic import write_atomically
from leadline.files.read import is_file, read_input
from leadline.training.records import Progress


class TraceableCommand(Frozen):
    """A command to trace: its words, its working directory, and whether it has a GPU."""

    words: tuple[str, ...]
    workdir: str
    gpu: bool = False


def graph_features(job: TracedJob) -> dict[str, float]:
    """Return the features of one optimizer step, and the number of steps if the loop gives it; only those above zero.

    ``graph_bytes`` is memory traffic without caches, ``graph_kernels`` counts launches, and ``graph_peak_bytes`` is
    that of live tensors.
    """
    step, loop = job.step, job.loop
    features = {
        "graph_flops": step.flops,
        "graph_bytes": step.bytes_moved,
        "graph_kernels": sum(op.kernels * op.count for op in step.ops),
        "graph_parameters": step.parameters,
        "graph_peak_bytes": peak_memory(step).allocated_bytes,
        "graph_steps": (loop.steps_per_epoch or 0) * (loop.epochs or 0),
    }
    return {name: float(value) for name, value in features.items() if value > 0}


def trace_features(
    commands: Sequence[TraceableCommand], source: GraphSource, *, jobs: int, progress: Progress = lambda *_: None
) -> list[Mapping[str, float]]:
    """Return the features of each command; each distinct command is traced once, several in parallel.

    Raises:
        InvalidInput: a command cannot be traced.
    """
    each = list(dict.fromkeys(commands))
    features_by_command = {}
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        traced = pool.map(lambda command: _cached_features(command, source), each)
        try:
            for command, features in zip(each, traced, strict=True):
                features_by_command[command] = features
                progress("tracing commands", len(features_by_command), len(each))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [features_by_command[command] for command in commands]


def _cached_features(command: TraceableCommand, source: GraphSource) -> Mapping[str, float]:
    path = settings.data_dir() / "traces" / f"{_cache_key(command)}.json"
    try:
        return read_cached_features(path)
    except InvalidInput:
        # Not cached yet, or the file was cut short.
        features = _trace(command, source)
    # Several threads and processes may trace the same command at once.
    write_atomically(path, msgspec.json.encode(features))
    return features


def read_cached_features(path: Path) -> dict[str, float]:
    """Return the features in a file of the cache; ``InvalidInput`` if there are none."""
    return from_json(read_input(path), dict[str, float], label=str(path))


def _trace(command: TraceableCommand, source: GraphSource) -> dict[str, float]:
    command_line = shlex.join(command.words)
    model = ModelSource(ModelKind.COMMAND, command_line, _absolute(command), command.workdir)
    try:
        job = source(Workload(model, name=command_line), device_type="cuda" if command.gpu else "cpu")
        return graph_features(job)
    except LeadlineError as error:
        raise InvalidInput(f"cannot trace {command_line}: {error}") from error


def _absolute(command: TraceableCommand) -> tuple[str, ...]:
    """Return the words with the script's path made absolute."""
    folder = Path(command.workdir)
    return tuple(
        str(folder / word) if word.endswith(".py") and (folder / word).is_file() else word for word in command.words
    )


def _cache_key(command: TraceableCommand) -> str:
    # A script may import any Python file around it, so an edit of one of them is another key.
    folders = {Path(word).parent for word in _absolute(command) if word.endswith(".py") and is_file(word)}
    files = [module for folder in sorted(folders) for module in nearby_modules(folder)]
    stats = [(str(each), each.stat().st_size, each.stat().st_mtime_ns) for each in files]
    content = msgspec.json.encode([__version__, command.words, command.workdir, command.gpu, stats])
    return hashlib.sha256(content).hexdigest()[:32]
