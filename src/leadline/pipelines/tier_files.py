"""Files of runs at tiers behind SSH: what a run needs is copied there before it starts, and what it wrote is fetched.

A tier has a folder on its system. In it, ``home`` is a copy of the pipeline file's folder, and ``data`` mirrors the
pipeline's folder as far as its runs need it. A copy that is repeated moves only differences, so a kill at any moment
costs no more than a second copy.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from threading import Lock

from leadline.core.errors import LeadlineError
from leadline.core.frozen import Frozen
from leadline.core.pipelines import Pipeline
from leadline.core.plane import EventKind
from leadline.core.units import format_duration
from leadline.execution.plane.journal import NewEvent, PlaneJournal
from leadline.execution.plane.rounds import in_thread
from leadline.execution.plane.stager import ASK_S, COPY_S
from leadline.execution.transport.port import COPY_AGAIN, CopyReport, Transport
from leadline.pipelines.journal import Batch, PipelineJournal
from leadline.pipelines.placement import PlacedTier

RUNS_FOLDER, STAGING = "runs", ".copies"
HOME, DATA = "home", "data"
HERE_SYSTEM = "local"  # this machine in the plane's journal
RETRY_PAUSES_S = (5.0, 600.0)
"""Pause after a failed copy: at first, and at most. It doubles each time."""
FULL = ("No space left on device", "Disk quota exceeded")
MAKE = 'cd && mkdir -p -- "$@" && cd -- "$1" && pwd'
"""Creates folders, relative to the user's home folder, and prints the absolute path of the first one."""

Copy = Callable[[Transport], tuple[PurePosixPath, list[CopyReport]]]
"""Copies the files of a run, and returns the tier's folder and what was moved."""


class FinishedCopy(Frozen):
    """A finished copy of a run's files; ``folder`` is the tier's, absolute."""

    folder: PurePosixPath
    moved_bytes: int
    elapsed_s: float
    competing: int  # other copies to that system as it started


@dataclass(kw_only=True)
class TierFiles:
    """Copies the files of runs, each in a thread, and one at a time for each folder of a system.

    A copy that fails is made again after a pause; the first failure at a tier is reported.
    """

    pipeline: Pipeline
    journal: PipelineJournal
    plane: PlaneJournal
    report: Callable[[str], None] = lambda _: None
    _copies: dict[str, tuple[str, Future[FinishedCopy]]] = field(default_factory=dict, init=False)  # job → system, copy
    _pauses: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)  # job → end, length
    _failing: set[str] = field(default_factory=set, init=False)  # tiers
    _turns: dict[tuple[str, str], Lock] = field(default_factory=dict, init=False)
    _moving: list[str] = field(default_factory=list, init=False)  # system of each copy whose turn it is

    def send(self, key: str, batch: Batch, placed: PlacedTier) -> PurePosixPath | None:
        """Return the tier's folder once it has the files of a run; None while they are copied there."""
        copied = self._poll(key, batch, placed, self._sender, HERE_SYSTEM, placed.place.system)
        return copied.folder if copied else None

    def fetch(self, key: str, batch: Batch, placed: PlacedTier, data: str) -> bool:
        """Return True once the files that a run wrote below ``data`` are here; False while they are copied."""
        fetcher = partial(self._fetcher, data=PurePosixPath(data))
        return self._poll(key, batch, placed, fetcher, placed.place.system, HERE_SYSTEM) is not None

    def is_pausing(self, key: str) -> bool:
        """Return whether the last copy for a job failed and the next one has not begun."""
        return key in self._pauses and key not in self._copies

    def count(self, system: str) -> int:
        """Return the number of copies to and from a system that have begun or wait for their turn."""
        return sum(end == system for end, _ in self._copies.values())

    def _poll(
        self, key: str, batch: Batch, placed: PlacedTier, prepare: Callable[[Batch, PlacedTier], Copy],
        source: str, target: str,
    ) -> FinishedCopy | None:  # fmt: skip
        """Return the finished copy for a job; begin it unless it is under way or pauses."""
        if key not in self._copies:
            if time.monotonic() >= self._pauses.get(key, (0.0, 0.0))[0]:
                copy, system = partial(self._in_turn, placed, prepare(batch, placed)), placed.place.system
                self._copies[key] = system, in_thread(copy, name=f"copy {batch.label}")
            return None
        future = self._copies[key][1]
        if not future.done():
            return None
        del self._copies[key]
        error = future.exception()
        if isinstance(error, LeadlineError | OSError):
            self._pause(key, batch, error)
            return None
        copied = future.result()
        self._pauses.pop(key, None)
        self._failing.discard(batch.tier)
        self.plane.write(events=[NewEvent(EventKind.STAGED, key, "", {
            "noun": "files of the run", "from": source, "to": target, "moved_bytes": copied.moved_bytes,
            "elapsed_s": round(copied.elapsed_s, 6), "competing": copied.competing,
        })])  # fmt: skip
        return copied

    def _pause(self, key: str, batch: Batch, error: BaseException) -> None:
        first_s, longest_s = RETRY_PAUSES_S
        pause_s = min(max(2 * self._pauses.get(key, (0.0, 0.0))[1], first_s), longest_s)
        self._pauses[key] = time.monotonic() + pause_s, pause_s
        if batch.tier in self._failing:
            return
        self._failing.add(batch.tier)
        why = str(error).removesuffix(COPY_AGAIN)
        full = "; make room there, or give the tier another folder" if any(text in why for text in FULL) else ""
        self.report(
            f"run {batch.label} waits for its files at tier {batch.tier}: {why}{full}; the next try is in "
            f"{format_duration(pause_s)}, and later ones less often"
        )

    def _in_turn(self, placed: PlacedTier, copy: Copy) -> FinishedCopy:
        """Make a copy once no other one to or from the same folder is under way, and measure it."""
        system, transport = placed.place.system, placed.transport
        assert transport is not None  # noqa: S101 - only such tiers have copies
        with self._turns.setdefault((system, placed.tier.folder or ""), Lock()):
            began_s, competing = time.monotonic(), self._moving.count(system)
            self._moving.append(system)
            try:
                folder, reports = copy(transport)
            finally:
                self._moving.remove(system)
        moved_bytes = sum(report.moved_bytes for report in reports)
        return FinishedCopy(folder, moved_bytes, time.monotonic() - began_s, competing)

    def _sender(self, batch: Batch, placed: PlacedTier) -> Copy:
        """Return the copy to a tier: programs, folders that the stage reads, and the files of the run's events."""
        stage, data = self.pipeline.stages[batch.stage], Path(self.pipeline.folder)
        base = placed.tier.folder or f"leadline/{self.pipeline.name}-{self.journal.origin()[0][:12]}"
        folders = [name for name in stage.reads if (data / name).is_dir()]
        events = [event.file for event in self.journal.events_of(batch) if event.file]
        files = [f"{RUNS_FOLDER}/{batch.label}/events.jsonl", *stage.reads, *events]
        files = [name for name in files if not any(PurePath(name).is_relative_to(folder) for folder in folders)]

        def send(transport: Transport) -> tuple[PurePosixPath, list[CopyReport]]:
            remote = _make_folders(transport, PurePosixPath(base), [HOME, *(f"{DATA}/{name}" for name in stage.writes)])
            with self._staged(batch.label, files) as staged:
                pairs = [(staged / name, remote / name) for name in (HOME, DATA)]
                pairs += [(data / name, remote / DATA / name) for name in folders]
                return remote, [transport.send(*pair, timeout_s=COPY_S) for pair in pairs]

        return send

    def _fetcher(self, batch: Batch, _: PlacedTier, *, data: PurePosixPath) -> Copy:
        """Return the copy from a tier: the run's folder with its result, and the folders that the stage writes."""
        names = [f"{RUNS_FOLDER}/{batch.label}", *self.pipeline.stages[batch.stage].writes]

        def fetch(transport: Transport) -> tuple[PurePosixPath, list[CopyReport]]:
            _make_folders(transport, data, names)  # a run may have removed one
            pairs = [(data / name, Path(self.pipeline.folder, name)) for name in names]
            return data.parent, [transport.fetch(*pair, timeout_s=COPY_S) for pair in pairs]

        return fetch

    @contextmanager
    def _staged(self, label: str, files: Iterable[str]) -> Iterator[Path]:
        """Yield a folder of links: in ``home`` to the pipeline's programs, and in ``data`` to these files."""
        home, data = Path(self.pipeline.home), Path(self.pipeline.folder)
        staged = data / STAGING / label
        shutil.rmtree(staged, ignore_errors=True)  # of a killed process
        try:
            for name in (HOME, DATA):
                (staged / name).mkdir(parents=True)
            for path in _program_files(home, data):
                _link(path, staged / HOME / path.relative_to(home))
            for name in dict.fromkeys(files):
                if (data / name).is_file():
                    _link(data / name, staged / DATA / name)
            yield staged
        finally:
            shutil.rmtree(staged, ignore_errors=True)


def _make_folders(transport: Transport, folder: PurePosixPath, names: Iterable[str]) -> PurePosixPath:
    """Create a folder with others below it, and return its absolute path."""
    words = [str(folder), *(str(folder / name) for name in names)]
    answer = transport.run(["sh", "-c", MAKE, "sh", *words], timeout_s=ASK_S)
    if answer.returncode or answer.timed_out:
        why = answer.stderr.strip().splitlines() or ["no answer in time"]
        raise LeadlineError(f"{folder} cannot be created at {transport.where} ({why[-1]})")
    return PurePosixPath(answer.stdout.rstrip("\n").rpartition("\n")[2])


def _program_files(home: Path, data: Path) -> Iterator[Path]:
    """Yield the files of a folder without the pipeline's data, hidden ones, and compiled Python."""
    for place, folders, files in os.walk(home):
        folders[:] = [
            name for name in folders if name[0] != "." and name != "__pycache__" and Path(place, name).resolve() != data
        ]
        yield from (path for name in files if name[0] != "." and (path := Path(place, name)).is_file())


def _link(source: Path, target: Path) -> None:
    """Link a file, or copy it where the file system has no links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copy2(source, target)
