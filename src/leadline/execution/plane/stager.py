"""Copy the checkpoint of a job to the system where it continues, before the job is submitted there."""

import shutil
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath

from leadline.core.errors import InvalidInput, LeadlineError, NothingFits, SchedulerUnreachable
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec, JobState
from leadline.core.plane import Action, Attempt, EventKind, Job, JournalEvent
from leadline.core.units import KIB
from leadline.estimators.file_transfer import PathProbe
from leadline.execution.clock import Clock, iso_utc
from leadline.execution.plane.advisor import Advisor
from leadline.execution.plane.job_cache import JobCache
from leadline.execution.plane.journal import EventDetails, NewEvent, failure_count
from leadline.execution.plane.rounds import in_thread
from leadline.execution.schedulers.port import Scheduler
from leadline.execution.transport.port import PROBE_BYTES, CopyReport, LocalTransport, Transport, probe_transport

PROCESS_MARK = uuid.uuid4().hex[:8]
"""Marks this process in the names of its copies."""
COPY_S = 12 * 3600.0
"""Time limit for one copy."""
ASK_S = 120.0
PROBE_AGE_S = 600.0
"""Age at which a path is probed again."""
RETRY_PAUSES_S = (60.0, 1800.0)
"""Pause after a failed copy: at first, and at most. It doubles each time."""
MAX_TRIES = 8
"""Failed copies to a system, one and a half hours in all, before the job goes to its next place."""
SWAP = """\
set -e
if [ -e "$2" ] || [ -L "$2" ]; then rm -rf -- "$2.before"; mv -- "$2" "$2.before"; fi
mv -- "$1" "$2"
rm -rf -- "$2.before" "$3".*.arriving
"""
"""Puts the complete copy ``$1`` in the place of ``$2`` and removes leftovers under ``$3``."""


class CheckpointRoute(Frozen):
    """Source and target of a checkpoint: the transports and the folders."""

    source: Transport
    folder: PurePosixPath
    target: Transport
    target_folder: PurePosixPath


class CopyRequest(Frozen):
    """A checkpoint to be copied: its size, a probe of its path, and the number of other copies on it."""

    size_bytes: float
    probe: PathProbe | None
    competing: int = 0


@dataclass(slots=True)
class Stager:
    """Copies checkpoints, each in its own thread, and stores what was copied where.

    A kill leaves at most a partial copy under an unused name; the next process starts its own. A job is submitted only
    after the journal says that its checkpoint is there. ``folder`` holds copies between two remote machines.
    """

    book: JobCache
    schedulers: Mapping[str, Scheduler]
    admit: Callable[[str], object]
    advisor: Advisor
    clock: Clock
    folder: Path
    copying: dict[str, tuple[Attempt, str, Future[CopyReport]]] = field(default_factory=dict)
    """Job -> source and target system of the copy that a thread makes, and its result."""
    waits: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Job -> time of the next try (monotonic), and the pause before it."""
    requests: dict[tuple[str, str], tuple[float, Future[CopyRequest | None]]] = field(default_factory=dict)
    """Attempt and target system -> when its checkpoint's size and its path were asked for, and the answer."""

    def request(self, job: Job, source: Attempt, system: str) -> CopyRequest | None:
        """Return the copy of an ended attempt's checkpoint to a system, or None if its size is unknown.

        The first call starts a thread that asks both systems; later calls return its answer while it is recent.
        """
        if source.live or source.place.system not in self.schedulers:
            return None
        key, now_s = (source.key, system), self.clock.monotonic_s()
        if key not in self.requests or now_s - self.requests[key][0] > PROBE_AGE_S:
            ends = self.schedulers[source.place.system], self.schedulers.get(system)
            self.requests[key] = now_s, in_thread(partial(_ask_request, job, source, *ends), name=f"size {job.key}")
        answer = self.requests[key][1]
        if not answer.done():
            return None
        if isinstance(answer.exception(), LeadlineError):
            del self.requests[key]  # asked again the next time
        request = None if answer.exception() else answer.result()
        return request and replace(request, competing=self._competing(source.place.system, system))

    def _competing(self, source: str, target: str) -> int:
        """Return the number of copies under way between two systems."""
        return sum((copied.place.system, to) == (source, target) for copied, to, _ in self.copying.values())

    def ready(self, job: Job) -> bool:
        """True if a job's checkpoint is at its next system; otherwise a copy is started or runs."""
        system = job.plan.place.system if job.plan else None
        source = None if system is None else job.checkpoint_source(system)
        if source is None or system is None or self._is_there(job, source, system):
            return True
        if job.key not in self.copying:
            again_s, _ = self.waits.get(job.key, (0.0, 0.0))
            return self.clock.monotonic_s() >= again_s and self._begin(job, source, system)
        source, system, report = self.copying[job.key]
        if not report.done():
            return False
        del self.copying[job.key]
        if (error := report.exception()) is not None:
            self._failed(job, source, system, str(error) or "the copy broke off")
            return False
        self._note(job, source, system, report.result())
        return True

    def _is_there(self, job: Job, source: Attempt, system: str) -> bool:
        events = self.book.journal.events(job=job.key, kinds=[EventKind.STAGED])
        return any((event.attempt, event.details.get("to")) == (source.key, system) for event in events)

    def _begin(self, job: Job, source: Attempt, system: str) -> bool:
        """Start a copy; True if none is needed."""
        try:
            self.admit(source.place.system)
            self.admit(system)
            route = self._route(job, source, system)
        except LeadlineError as error:
            self._failed(job, source, system, str(error))
            return False
        if route is None or (route.source.where, route.folder) == (route.target.where, route.target_folder):
            self._note(job, source, system, CopyReport(0, 0.0))
            return True
        between = self.folder / f"{job.key}-{source.key}-{PROCESS_MARK}"
        competing = self._competing(source.place.system, system)
        copied = in_thread(partial(_stage, route, source.key, between, competing), name=f"staging {job.key}")
        self.copying[job.key] = source, system, copied
        return False

    def _route(self, job: Job, source: Attempt, system: str) -> CheckpointRoute | None:
        """Return the route of a job's checkpoint; None if one of the systems has no files."""
        here, there = (self.schedulers[name].home(_at(job, name)) for name in (source.place.system, system))
        if here is None or there is None:
            return None
        folder = job.policy.checkpoint_folder or ""
        return CheckpointRoute(here[0], here[1] / folder, there[0], there[1] / folder)

    def _note(self, job: Job, source: Attempt, system: str, copied: CopyReport) -> None:
        self.waits.pop(job.key, None)
        probe = copied.probe or PathProbe(0.0, 0.0)
        details: EventDetails = {"from": source.place.system, "to": system, "moved_bytes": copied.moved_bytes,
                "elapsed_s": round(copied.elapsed_s, 6), "competing": copied.competing,
                "probe_bytes": probe.moved_bytes, "probe_s": probe.elapsed_s,
                "round_trip_s": probe.round_trip_s}  # fmt: skip
        self.book.write(events=[NewEvent(EventKind.STAGED, job.key, source.key, details)])

    def _failed(self, job: Job, source: Attempt, system: str, why: str) -> None:
        _, last_pause_s = self.waits.get(job.key, (0.0, 0.0))
        first_s, longest_s = RETRY_PAUSES_S
        pause_s = min(max(2 * last_pause_s, first_s), longest_s)
        self.waits[job.key] = self.clock.monotonic_s() + pause_s, pause_s
        failures = self._failures(job, source)
        before = failures.get(system)
        times = 1 + (failure_count(before) if before else 0)
        why = f"its checkpoint could not be copied there: {why}"
        details: EventDetails = {"place": system, "why": why, "times": times, "last_at": iso_utc(self.clock.now_s())}
        event = NewEvent(EventKind.FAULT, job.key, source.key, details)
        number = self.book.journal.put_event(before.number if before else None, event)
        if times >= MAX_TRIES:
            failures[system] = JournalEvent(number, "", EventKind.FAULT, details=dict(details))
            self._give_up(job, [name for name, failure in failures.items() if failure_count(failure) >= MAX_TRIES], why)

    def _failures(self, job: Job, source: Attempt) -> dict[str, JournalEvent]:
        """Return system -> the event about the failed copies of a checkpoint to it."""
        return {
            str(event.details.get("place")): event
            for event in self.book.journal.events(job=job.key, kinds=[EventKind.FAULT])
            if event.attempt == source.key and "times" in event.details
        }

    def _give_up(self, job: Job, systems: Collection[str], why: str) -> None:
        """Let a job continue at its first place that is at none of the systems, or close it without one."""
        self.waits.pop(job.key, None)
        places = tuple(place for place in job.policy.places if place.system not in systems)
        try:
            if not places:
                raise NothingFits(f"it has no other place, and {why}")
            elsewhere = replace(job, policy=replace(job.policy, places=places, copies=1))
            (plan,) = self.advisor.plans(elsewhere)
        except LeadlineError as error:
            self.book.close(job, JobState.FAILED, str(error))
            return
        request = job.plan.resources if job.plan else plan.resources
        plan = replace(plan, resources=request, reason=f"at another place: {why}")
        decision = {"action": Action.MOVE.value, "place": str(plan.place), "why": why}
        self.book.write(jobs=[replace(job, plan=plan)], events=[NewEvent(EventKind.DECISION, job.key, "", decision)])


def _stage(route: CheckpointRoute, mark: str, between: Path, competing: int) -> CopyReport:
    """Probe the path, then copy."""
    probe = probe_path(route.source, route.target)
    return replace(copy_checkpoint(route, mark, between), probe=probe, competing=competing)


def copy_checkpoint(route: CheckpointRoute, mark: str, between: Path) -> CopyReport:
    """Copy a checkpoint folder completely or not at all; do nothing if the source does not exist.

    Args:
        route: source and target.
        mark: names the partial copy, so that this process can continue it after a failure. Other processes use their
            own name, because a transfer of a killed process may still be writing.
        between: local folder for copies between two remote machines.

    Returns:
        the bytes moved and the seconds of the whole copy.

    Raises:
        LeadlineError: the copy is incomplete; call again.
    """
    began_s = time.monotonic()
    if not _exists(route.source, route.folder):
        return CopyReport(0, time.monotonic() - began_s)
    stem = route.target_folder.with_name(f".{route.target_folder.name}.{mark}")
    partial = stem.with_name(f"{stem.name}.{PROCESS_MARK}.arriving")
    if isinstance(route.source, LocalTransport):
        reports = [route.target.send(Path(route.folder), partial, timeout_s=COPY_S)]
    elif isinstance(route.target, LocalTransport):
        reports = [route.source.fetch(route.folder, Path(partial), timeout_s=COPY_S)]
    else:
        reports = [route.source.fetch(route.folder, between, timeout_s=COPY_S)]
        reports.append(route.target.send(between, partial, timeout_s=COPY_S))
    swap = ["sh", "-c", SWAP, "sh", str(partial), str(route.target_folder), str(stem)]
    answer = route.target.run(swap, timeout_s=ASK_S)
    if answer.returncode or answer.timed_out:
        why = answer.stderr.strip()
        raise LeadlineError(f"{route.target_folder} cannot be put in place at {route.target.where} ({why})")
    shutil.rmtree(between, ignore_errors=True)
    return CopyReport(max(report.moved_bytes for report in reports), time.monotonic() - began_s)


def _ask_request(job: Job, source: Attempt, scheduler: Scheduler, target: Scheduler | None) -> CopyRequest | None:
    """Return the size of a checkpoint and a probe of its path; None if the size is unknown or there is none."""
    home = scheduler.home(_at(job, source.place.system))
    if home is None:
        return None
    folder = home[1] / (job.policy.checkpoint_folder or "")
    answer = home[0].run(["du", "-sk", "--", str(folder)], timeout_s=ASK_S)
    size, _, _ = answer.stdout.partition("\t")
    if answer.returncode or not size.isdigit():
        return None
    target_home = target.home(job.spec) if target else None
    return CopyRequest(float(KIB * int(size)), probe_path(home[0], target_home[0]) if target_home else None)


def probe_path(source: Transport, target: Transport) -> PathProbe | None:
    """Probe the way of a copy, through this machine; None if a part does not answer, or the copy stays here."""
    ends = ((source, True), (target, False))
    probes = [probe_transport(end, fetches=fetches) for end, fetches in ends if not isinstance(end, LocalTransport)]
    measured = [probe for probe in probes if probe is not None]
    if not measured or len(measured) < len(probes):
        return None
    return PathProbe(
        PROBE_BYTES, sum(probe.elapsed_s for probe in measured), sum(probe.round_trip_s or 0 for probe in measured)
    )


def _exists(transport: Transport, folder: PurePosixPath) -> bool:
    """True if the folder exists.

    Raises:
        SchedulerUnreachable: the transport gave no clear answer.
    """
    answer = transport.run(["test", "-d", str(folder)], timeout_s=ASK_S)
    if answer.timed_out or answer.returncode not in (0, 1):
        raise SchedulerUnreachable(f"{folder} cannot be checked on {transport.where} ({answer.stderr.strip()})")
    return answer.returncode == 0


def _at(job: Job, system: str) -> JobSpec:
    return replace(job.spec, system=system)


def check_folder_name(name: str) -> str:
    """Return the name of a folder below the job's own folder.

    Raises:
        InvalidInput: the name is absolute, empty, or may lead outside.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise InvalidInput(f"{name!r} is not a folder below the job's own: use a name such as checkpoints")
    return str(path)
