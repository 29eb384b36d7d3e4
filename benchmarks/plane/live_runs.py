"""Whole runs of real training scripts with their polls: recorded, packed and read."""

import lzma
import os
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.probe import HERE, ProbeJob
from leadline.core.documents import from_json, to_json
from leadline.core.errors import LeadlineError
from leadline.core.progress import LoopProgress, Progress
from leadline.execution.processes import run_process, start_process
from leadline.execution.wrapper.instruments import Instruments
from leadline.execution.wrapper.sampling import TreeSampler

SCHEMA = "leadline.live-runs/1"
PACKED = HERE / "plane" / "live_runs.json.xz"
POLL_S = 0.25
KEPT = (0.02, 0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.65, 0.75, 0.85, 0.9, 0.95)
"""Shares of a run's time at which the last poll is kept."""
DURATIONS = 100
"""Sampled durations kept for each level and poll, evenly spread."""
MEMORY_POINTS = 60


@dataclass(frozen=True, slots=True)
class Poll:
    """The progress of a job ``at_s`` seconds after its start; None before its first step."""

    at_s: float
    progress: Progress | None


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One run with its polls.

    Attributes:
        family: The script; its runs are left out together.
        words: The command after the interpreter.
        memory: (seconds since the start, units of work done, bytes of the process tree).
        peak_memory_bytes: The highest of all memory samples.
    """

    family: str
    words: tuple[str, ...]
    elapsed_s: float
    peak_memory_bytes: int
    polls: tuple[Poll, ...]
    memory: tuple[tuple[float, int, int], ...]
    machine: str = ""


@dataclass(frozen=True, slots=True)
class LiveRuns:
    """All runs, and how they were measured."""

    runs: tuple[LiveRun, ...]
    how: str = ""
    schema: str = field(default=SCHEMA)


def record(family: str, job: ProbeJob, *, machine: str = "") -> LiveRun:
    """Run a job to its end under the hook; return its polls.

    Raises:
        LeadlineError: The job failed.
    """
    with tempfile.TemporaryDirectory(prefix="leadline-live-") as name:
        folder = Path(name)
        (folder / "seen").mkdir()
        instruments = Instruments(folder / "seen", hook=True)
        sampler = TreeSampler(run_process)
        polls: list[Poll] = []
        memory: list[tuple[float, int, int]] = []
        with (folder / "log").open("wb") as log:
            start_s = time.monotonic()
            child = start_process(
                job.command(), env={**os.environ, **instruments.environment()}, cwd=folder, stdout=log.fileno(),
                stderr=log.fileno(), own_group=True,
            )  # fmt: skip
            while child.poll() is None:
                _look(instruments, sampler, start_s, polls, memory)
                time.sleep(POLL_S)
            elapsed_s = time.monotonic() - start_s
        if child.returncode:
            lines = (folder / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise LeadlineError(f"{job.words[0]} ended with {child.returncode}: {(lines or ['no message'])[-1]}")
    return LiveRun(
        family, job.words, elapsed_s, sampler.peak_memory_bytes, _kept(polls, elapsed_s), _thinned(memory), machine
    )


def _look(
    instruments: Instruments, sampler: TreeSampler, start_s: float, polls: list[Poll],
    memory: list[tuple[float, int, int]],
) -> None:  # fmt: skip
    instruments.poll()
    progress = instruments.progress()
    at_s = time.monotonic() - start_s
    polls.append(Poll(at_s, _lighter(progress) if progress else None))
    sampler.sample()
    unit = progress.unit if progress else None
    memory.append((at_s, unit.count if unit else 0, sampler.memory_bytes))


def _kept(polls: list[Poll], elapsed_s: float) -> tuple[Poll, ...]:
    """Return the newest poll at each share of the run, each once."""
    kept: dict[float, Poll] = {}
    for share in KEPT:
        before = [poll for poll in polls if poll.at_s <= share * elapsed_s]
        if before:
            kept[before[-1].at_s] = before[-1]
    return tuple(kept.values())


def _thinned(memory: list[tuple[float, int, int]]) -> tuple[tuple[float, int, int], ...]:
    stride = max(1, -(-len(memory) // MEMORY_POINTS))
    return tuple((round(at_s, 3), units, size) for at_s, units, size in memory[::stride])


def _lighter(progress: Progress) -> Progress:
    return replace(progress, levels=tuple(_light(level) for level in progress.levels))


def _light(level: LoopProgress) -> LoopProgress:
    """Return a level with fewer durations, each to the microsecond."""
    stride = max(1, -(-len(level.sampled_s) // DURATIONS))
    return replace(
        level,
        first_s=tuple(round(seconds, 6) for seconds in level.first_s),
        sampled_s=tuple(round(seconds, 6) for seconds in level.sampled_s[::stride]),
    )


def pack(runs: LiveRuns, path: Path = PACKED) -> None:
    """Write the runs as compressed JSON."""
    path.write_bytes(lzma.compress(to_json(runs, indent=0).encode(), preset=9))


def unpack(path: Path = PACKED) -> LiveRuns:
    """Read packed runs.

    Raises:
        InvalidInput: The file is no such document.
    """
    return from_json(lzma.decompress(path.read_bytes()), LiveRuns, label=str(path))
