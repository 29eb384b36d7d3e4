"""Bring the checkpoint of a job to the system where it goes on, before it is submitted there."""

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from leadline.core.errors import InvalidInput, LeadlineError, SchedulerUnreachable
from leadline.core.jobs import JobSpec
from leadline.core.plane import Attempt, EventKind, Job
from leadline.core.units import KIB
from leadline.execution.clock import Clock
from leadline.execution.plane.job_cache import JobCache
from leadline.execution.plane.journal import EventDetails, NewEvent
from leadline.execution.schedulers.port import Scheduler
from leadline.execution.transport.port import CopyReport, LocalTransport, Transport

OWN = uuid.uuid4().hex[:8]
"""This process, in the names of its copies."""
COPY_S = 12 * 3600.0
"""How long a copy may take."""
ASK_S = 120.0
AGAIN_S = (60.0, 1800.0)
"""How long nothing is tried after a copy that failed: the first time, and at most; it doubles."""
SWAP = """\
set -e
if [ -e "$2" ] || [ -L "$2" ]; then rm -rf -- "$2.before"; mv -- "$2" "$2.before"; fi
mv -- "$1" "$2"
rm -rf -- "$2.before" "$3".*.arriving
"""
"""Puts the whole copy ``$1`` in the place of ``$2``, and removes what others left under ``$3``."""


@dataclass(frozen=True, slots=True)
class CheckpointRoute:
    """From where to where a checkpoint goes: how either side is reached, and the folders."""

    source: Transport
    folder: PurePosixPath
    target: Transport
    there: PurePosixPath

    @property
    def stays(self) -> bool:
        """Whether both are one and the same folder."""
        return self.source.where == self.target.where and self.folder == self.there


@dataclass(slots=True)
class _Copying:
    """A copy that is being made by a thread; ``copied`` is there once it is whole, ``failure`` if it is not."""

    source: Attempt
    system: str
    copied: CopyReport | None = None
    failure: str = ""
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class Stager:
    """Copies checkpoints, each in a thread of its own, and writes down what was brought where.

    A kill leaves at most a part of a copy under a name that nobody uses; the next process makes its own. A job is not
    submitted before the journal says that its checkpoint is there. ``folder`` holds what is on its way between two
    other machines.
    """

    book: JobCache
    schedulers: Mapping[str, Scheduler]
    admit: Callable[[str], object]
    clock: Clock
    folder: Path
    copying: dict[str, _Copying] = field(default_factory=dict)
    waits: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Job → when a failed copy is tried again (monotonic), and after which pause."""
    sizes: dict[str, float | None] = field(default_factory=dict)
    """Attempt → how large its checkpoint is, in bytes; ``None`` as long as that is being asked."""

    def size_bytes(self, job: Job, source: Attempt) -> float | None:
        """Return how large the checkpoint of an attempt that ended is, once it is known: it is asked beside the plane.

        ``None`` is not known, or that there is none.
        """
        if source.live or source.place.system not in self.schedulers:
            return None
        if source.key not in self.sizes:
            self.sizes[source.key] = None
            arguments = (job, source, self.schedulers[source.place.system])
            threading.Thread(target=self._ask_size, args=arguments, daemon=True, name=f"size {job.key}").start()
        return self.sizes[source.key]

    def _ask_size(self, job: Job, source: Attempt, scheduler: Scheduler) -> None:
        try:
            home = scheduler.home(_at(job, source.place.system))
            if home is None:
                return
            folder = home[1] / (job.policy.checkpoint_folder or "")
            answer = home[0].run(["du", "-sk", "--", str(folder)], timeout_s=ASK_S)
        except LeadlineError:
            self.sizes.pop(source.key, None)  # asked again the next time
            return
        size, _, _ = answer.stdout.partition("\t")
        if answer.returncode == 0 and size.isdigit():
            self.sizes[source.key] = float(KIB * int(size))

    def ready(self, job: Job) -> bool:
        """Whether a job that is about to be submitted has its checkpoint there; else it is being brought."""
        system = job.plan.place.system if job.plan else None
        source = None if system is None else job.checkpoint_source(system)
        if source is None or system is None or self._is_there(job, source, system):
            return True
        one = self.copying.get(job.key)
        if one is not None and one.done.is_set():
            del self.copying[job.key]
            return self._taken(job, one)
        again_s, _ = self.waits.get(job.key, (0.0, 0.0))
        if one is None and self.clock.monotonic_s() >= again_s:
            return self._begin(job, source, system)
        return False

    def _is_there(self, job: Job, source: Attempt, system: str) -> bool:
        events = self.book.journal.events(job=job.key, kinds=[EventKind.STAGED])
        return any((one.attempt, one.details.get("to")) == (source.key, system) for one in events)

    def _begin(self, job: Job, source: Attempt, system: str) -> bool:
        """Start a copy; ``True`` if there is none to make."""
        try:
            self.admit(source.place.system)
            self.admit(system)
            way = self._way(job, source, system)
        except LeadlineError as error:
            self._failed(job, source, system, str(error))
            return False
        if way is None or way.stays:
            self._note(job, source, system, CopyReport(0, 0.0))
            return True
        one = self.copying[job.key] = _Copying(source, system)
        arguments = (one, way, self.folder / f"{job.key}-{source.key}-{OWN}")
        threading.Thread(target=_copy, args=arguments, daemon=True, name=f"staging {job.key}").start()
        return False

    def _way(self, job: Job, source: Attempt, system: str) -> CheckpointRoute | None:
        """Return the way of a job's checkpoint; ``None`` if one of the systems has no files."""
        homes = [self.schedulers[one].home(_at(job, one)) for one in (source.place.system, system)]
        known = [one for one in homes if one is not None]
        if len(known) < 2:
            return None
        (left, old), (to, new) = known
        folder = job.policy.checkpoint_folder or ""
        return CheckpointRoute(left, old / folder, to, new / folder)

    def _taken(self, job: Job, one: _Copying) -> bool:
        if one.copied is None:
            self._failed(job, one.source, one.system, one.failure)
            return False
        self._note(job, one.source, one.system, one.copied)
        return True

    def _note(self, job: Job, source: Attempt, system: str, copied: CopyReport) -> None:
        self.waits.pop(job.key, None)
        said: EventDetails = {"from": source.place.system, "to": system, "moved_bytes": copied.moved_bytes,
                "elapsed_s": round(copied.elapsed_s, 6)}  # fmt: skip
        self.book.write(notes=[NewEvent(EventKind.STAGED, job.key, source.key, said)])

    def _failed(self, job: Job, source: Attempt, system: str, why: str) -> None:
        _, before_s = self.waits.get(job.key, (0.0, 0.0))
        first, most = AGAIN_S
        pause_s = min(max(2 * before_s, first), most)
        self.waits[job.key] = self.clock.monotonic_s() + pause_s, pause_s
        said = {"place": system, "why": f"its checkpoint could not be brought there: {why}"}
        self.book.write(notes=[NewEvent(EventKind.FAULT, job.key, source.key, said)])


def copy_checkpoint(way: CheckpointRoute, mark: str, between: Path) -> CopyReport:
    """Copy a folder whole or not at all in place of another; nothing is moved where there is none.

    ``mark`` names the copy on its way, which this process takes up again after a failure; another takes a name of its
    own, as what a killed one had started may still be writing. ``between`` holds it here where neither side is this
    machine. The seconds are those of the whole copy, and the bytes those that were moved.

    Raises:
        LeadlineError: it was not copied whole; do it again.
    """
    began_s = time.monotonic()
    if not _exists(way.source, way.folder):
        return CopyReport(0, time.monotonic() - began_s)
    stem = way.there.with_name(f".{way.there.name}.{mark}")
    arriving = stem.with_name(f"{stem.name}.{OWN}.arriving")
    if isinstance(way.source, LocalTransport):
        moved = [way.target.send(Path(way.folder), arriving, timeout_s=COPY_S)]
    elif isinstance(way.target, LocalTransport):
        moved = [way.source.fetch(way.folder, Path(arriving), timeout_s=COPY_S)]
    else:
        moved = [way.source.fetch(way.folder, between, timeout_s=COPY_S)]
        moved.append(way.target.send(between, arriving, timeout_s=COPY_S))
    swapped = way.target.run(["sh", "-c", SWAP, "sh", str(arriving), str(way.there), str(stem)], timeout_s=ASK_S)
    if swapped.returncode or swapped.timed_out:
        raise LeadlineError(f"{way.there} cannot be put in place at {way.target.where} ({swapped.stderr.strip()})")
    shutil.rmtree(between, ignore_errors=True)
    return CopyReport(max(one.moved_bytes for one in moved), time.monotonic() - began_s)


def _copy(one: _Copying, way: CheckpointRoute, between: Path) -> None:
    try:
        one.copied = copy_checkpoint(way, one.source.key, between)
    except (LeadlineError, OSError) as error:
        one.failure = str(error)
    finally:
        one.failure = one.failure or ("" if one.copied else "the copy broke off")
        one.done.set()


def _exists(transport: Transport, folder: PurePosixPath) -> bool:
    """Whether there is a folder of that name.

    Raises:
        SchedulerUnreachable: nothing told.
    """
    answer = transport.run(["test", "-d", str(folder)], timeout_s=ASK_S)
    if answer.timed_out or answer.returncode not in (0, 1):
        raise SchedulerUnreachable(f"{folder} cannot be looked at on {transport.where} ({answer.stderr.strip()})")
    return answer.returncode == 0


def _at(job: Job, system: str) -> JobSpec:
    return replace(job.spec, system=system)


def check_folder_name(name: str) -> str:
    """Return the name of a folder within that of a job.

    Raises:
        InvalidInput: it is not one, or it is that folder itself, or may be outside of it.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise InvalidInput(f"{name!r} is no folder within the job's own: name one such as checkpoints")
    return str(path)
