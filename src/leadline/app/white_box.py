"""White-box figures of commands: what their op graphs say before they run, as features of runs and of questions."""

import hashlib
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from leadline import __version__
from leadline.app import settings
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.graph import TracedJob
from leadline.core.ports import GraphSource
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.estimators.device_memory import peak_memory

GRAPH = "graph_"
"""What the names of these features begin with."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Traceable:
    """A command as it would run: its words, the folder it is run in, and whether it has a GPU."""

    words: tuple[str, ...]
    workdir: str | None = None
    gpu: bool = False


def figures_of(job: TracedJob) -> dict[str, float]:
    """Return the figures of one optimizer step, and how many the loop around it makes where it says so.

    ``graph_flops``, ``graph_bytes`` to and from memory if nothing is cached, ``graph_kernels`` launched,
    ``graph_parameters``, and ``graph_peak_bytes`` that tensors hold at once; those above zero.
    """
    step, loop = job.step, job.loop
    found = {
        "flops": sum(op.flops * op.count for op in step.ops),
        "bytes": sum((op.bytes_read + op.bytes_written) * op.count for op in step.ops),
        "kernels": sum(op.kernels * op.count for op in step.ops),
        "parameters": step.parameters,
        "peak_bytes": peak_memory(step).allocated_bytes,
        "steps": (loop.steps_per_epoch or 0) * (loop.epochs or 0),
    }
    return {GRAPH + name: float(value) for name, value in found.items() if value > 0}


@dataclass(slots=True)
class WhiteBoxFigures:
    """Traces every command once, with ``source``; what was found is kept in the user's data folder.

    It is found again by the command and by the names, sizes and times of the Python files beside its script.
    """

    source: GraphSource
    _known: dict[Traceable, Mapping[str, float]] = field(default_factory=dict)

    def of(self, command: Traceable) -> Mapping[str, float]:
        """Return the figures of a command.

        Raises:
            InvalidInput: it cannot be traced; why.
        """
        if command not in self._known:
            self._known[command] = self._kept(command)
        return self._known[command]

    def of_all(
        self, commands: Sequence[Traceable], *, jobs: int, progress: Progress = lambda *_: None
    ) -> list[Mapping[str, float]]:
        """Return the figures of each command, several of which are traced at once.

        Raises:
            InvalidInput: one cannot be traced; which, and why.
        """
        new = [one for one in dict.fromkeys(commands) if one not in self._known]
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            try:
                for number, _ in enumerate(pool.map(self.of, new), 1):
                    progress("traced", number, len(new))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return [self._known[one] for one in commands]

    def _kept(self, command: Traceable) -> Mapping[str, float]:
        path = settings.data_dir() / "traces" / f"{_key(command)}.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, float])
        except (OSError, msgspec.DecodeError):  # not traced yet, or the file was cut short: it is made again
            found = self._trace(command)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{threading.get_ident()}.part")
        part.write_bytes(msgspec.json.encode(found))
        part.replace(path)
        return found

    def _trace(self, command: Traceable) -> dict[str, float]:
        said = shlex.join(command.words)
        workload = Workload(ModelSource(ModelKind.COMMAND, said, _absolute(command), command.workdir), name=said)
        try:
            return figures_of(self.source(workload, device_type="cuda" if command.gpu else "cpu"))
        except LeadlineError as error:
            raise InvalidInput(f"no white-box figures of {said}: {error}") from error


def _absolute(command: Traceable) -> tuple[str, ...]:
    """Return the words with the script's path counted from the folder in which the command is run."""
    if command.workdir is None:
        return command.words
    scripts = {word: Path(command.workdir) / word for word in command.words if word.endswith(".py")}
    return tuple(str(scripts[word]) if word in scripts and scripts[word].is_file() else word for word in command.words)


def _key(command: Traceable) -> str:
    scripts = [Path(word) for word in _absolute(command) if word.endswith(".py")]
    beside = sorted({each for one in scripts if one.is_file() for each in one.parent.glob("*.py")})
    stats = [(str(each), each.stat().st_size, each.stat().st_mtime_ns) for each in beside]
    told = msgspec.json.encode([__version__, command.words, command.workdir, command.gpu, stats])
    return hashlib.sha256(told).hexdigest()[:32]
