"""How the plane's jobs stand: where, since when, how far, when they are expected to end, and what they cost."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from leadline.app.composition import toolbox
from leadline.app.jobs.journal import find_jobs, open_journal, plane_dir
from leadline.catalog.billing import compute_charge
from leadline.core.errors import LeadlineError
from leadline.core.estimate import Interval
from leadline.core.jobs import JobState, ResourceSpec
from leadline.core.plane import Attempt, EventKind, Job, JournalEvent, Place
from leadline.core.ports import Catalog
from leadline.core.systems import Partition
from leadline.core.units import HOUR_S
from leadline.execution.clock import SystemClock, epoch_s, iso_utc
from leadline.execution.plane.actor import attempt_elapsed_s, attempt_node_s

YEAR_3000_S = 32_503_680_000.0
"""An upper end may be beyond all calendars; one that is beyond this is not known."""
NAMED = 3
"""So many of the jobs that one waits for are named."""


@dataclass(frozen=True, slots=True)
class ReportedProgress:
    """How far a job is by its own account: ``done`` of ``total`` units (``steps`` or ``epochs``), at ``at``."""

    unit: str
    done: int
    total: int | None
    at: str

    @property
    def share(self) -> float | None:
        """Return the share that is done, 0 to 1; ``None`` where the total is not known."""
        return min(self.done / self.total, 1.0) if self.total else None


@dataclass(frozen=True, slots=True)
class ExpectedEnd:
    """When a job is expected to end: moments in ISO 8601, and the probability that it ends between the outer two."""

    at: str
    earliest: str
    latest: str
    level: float


@dataclass(frozen=True, slots=True)
class JobUsage:
    """What all attempts of a job took: node-seconds, and money or units of an allocation where the price is known."""

    node_s: float = 0.0
    cost: float | None = None
    currency: str | None = None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job as it stands.

    ``why`` is why it waits, in its scheduler's own words, or how it ended. ``attempt_elapsed_s`` and ``walltime_s`` (the limit)
    are of the attempt that counts: the one at work, else the last. ``closed`` says that nothing more will be done.
    """

    key: str
    name: str
    place: str
    state: JobState
    why: str
    created_at: str
    closed: bool
    attempts: int
    attempts_most: int
    elapsed_s: float | None = None
    walltime_s: float | None = None
    shown: ReportedProgress | None = None
    expected_end: ExpectedEnd | None = None
    spent: JobUsage = field(default_factory=JobUsage)
    scheduler_id: str | None = None
    node: str | None = None
    group: str | None = None
    index: int | None = None


@dataclass(frozen=True, slots=True)
class ArrayStatus:
    """An array in one row: its elements counted by state."""

    group: str
    elements: tuple[JobStatus, ...]

    @property
    def counts(self) -> dict[JobState, int]:
        """Return how many elements are in each state, in the order of the states."""
        counted = Counter(one.state for one in self.elements)
        return {state: counted[state] for state in JobState if counted[state]}

    @property
    def spent(self) -> JobUsage:
        """Return what all elements took; no cost where that of one is not known or they have several units."""
        took = [one.spent for one in self.elements if one.spent.node_s]
        units = {one.currency for one in took}
        known = [one.cost for one in took if one.cost is not None]
        cost = sum(known) if len(known) == len(took) and len(units) == 1 else None
        return JobUsage(sum(one.node_s for one in took), cost, units.pop() if cost is not None else None)


def job_statuses(
    names: Sequence[str] = (), *, all_jobs: bool = False, limit: int | None = None, now_s: float | None = None
) -> tuple[JobStatus, ...]:
    """Return how jobs stand: those that are named, else those at work, or the last ``limit``; the newest first.

    Raises:
        UnknownName: there is no such job.
    """
    jobs = find_jobs(names, all_jobs=all_jobs, limit=limit)
    return statuses_of(jobs, SystemClock().now_s() if now_s is None else now_s)


def statuses_of(jobs: Sequence[Job], now_s: float) -> tuple[JobStatus, ...]:
    """Return how these jobs stand, by the journal's newest words on each."""
    if not jobs or not (plane_dir() / "journal.sqlite").exists():
        return ()
    keys = [job.key for job in jobs]
    with open_journal() as journal:
        progress, decisions = (
            journal.latest_events(EventKind.PROGRESS, keys),
            journal.latest_events(EventKind.DECISION, keys),
        )
    prices = AttemptPrices(toolbox().catalog)
    return tuple(_standing(job, progress.get(job.key), decisions.get(job.key), prices, now_s) for job in jobs)


def silent_systems(found: Iterable[JobStatus]) -> dict[str, tuple[str, str]]:
    """Return system → since when it does not answer and why, of those at which these jobs are not yet ended."""
    at_work = {one.place.partition(":")[0] for one in found if not one.closed}
    if not at_work:
        return {}
    said: dict[str, tuple[str, str]] = {}
    with open_journal() as journal:
        for event in journal.outage_events():
            system = str(event.details.get("system"))
            if event.kind is EventKind.POLL:
                said.pop(system, None)
            elif system in at_work:
                said[system] = (said.get(system, (event.at, ""))[0], str(event.details.get("why") or ""))
    return said


def newest_event_number() -> int:
    """Return the number of the journal's newest event, which tells cheaply whether anything happened; 0 without one."""
    if not (plane_dir() / "journal.sqlite").exists():
        return 0
    with open_journal() as journal:
        return journal.last_event()


def fold_arrays(found: Iterable[JobStatus]) -> tuple[JobStatus | ArrayStatus, ...]:
    """Put the elements of each array into one row, at the place of the first of them; one element stays itself."""
    groups: dict[str, list[JobStatus]] = {}
    for one in found:
        groups.setdefault(one.group or one.key, []).append(one)
    return tuple(
        ArrayStatus(group, tuple(sorted(ones, key=lambda one: one.index or 0))) if len(ones) > 1 else ones[0]
        for group, ones in groups.items()
    )


def current_attempt(job: Job) -> Attempt | None:
    """Return the attempt that tells how a job stands: one that runs, else one that waits, else the last."""
    running = [one for one in job.live_attempts if one.state is JobState.RUNNING]
    done = [one for one in job.attempts if job.closed and one.state is job.state]
    return next(iter(running or job.live_attempts or reversed(done)), job.attempts[-1] if job.attempts else None)


@dataclass(slots=True)
class AttemptPrices:
    """What an attempt costs, by the price of its place in the catalog; each place is looked up once."""

    catalog: Catalog
    _partitions: dict[Place, Partition | None] = field(default_factory=dict)

    def spent(self, job: Job, now_s: float) -> JobUsage:
        """Return what the attempts of a job took up to now."""
        ran = [(one, attempt_elapsed_s(one, now_s)) for one in job.attempts if one.started_at is not None]
        node_seconds = sum(attempt_node_s(one, now_s) for one, _ in ran)
        costs = [self._cost(one.place, one.resources, duration_s) for one, duration_s in ran]
        known = [one for one in costs if one is not None]
        if not ran or len(known) < len(ran) or len({currency for _, currency in known}) > 1:
            return JobUsage(node_seconds)
        return JobUsage(node_seconds, sum(cost for cost, _ in known), known[0][1])

    def _cost(self, place: Place, asked: ResourceSpec, duration_s: float) -> tuple[float, str] | None:
        partition = self._partition(place)
        if partition is None or partition.billing is None:
            return None
        cost = compute_charge(partition.billing, asked, duration_s / HOUR_S, partition.node)
        return None if cost is None else (cost, partition.billing.currency)

    def _partition(self, place: Place) -> Partition | None:
        """Return the partition of a place; ``None`` for one that the catalog does not know."""
        if place not in self._partitions:
            try:
                system = self.catalog.system(place.system)
                self._partitions[place] = system.partition(place.partition) if place.partition else None
            except LeadlineError:
                self._partitions[place] = None
        return self._partitions[place]


def _standing(
    job: Job, progress: JournalEvent | None, decision: JournalEvent | None, prices: AttemptPrices, now_s: float
) -> JobStatus:
    attempt = current_attempt(job)
    place = attempt.place if attempt else job.plan.place if job.plan else next(iter(job.policy.places), None)
    began = attempt is not None and attempt.started_at is not None
    return JobStatus(
        job.key,
        job.spec.name,
        str(place or ""),
        job.current_state,
        _why(job, attempt),
        job.created_at,
        job.closed,
        len(job.attempts),
        job.policy.attempts,
        attempt_elapsed_s(attempt, now_s) if attempt and began else None,
        (attempt.walltime_s or attempt.resources.walltime_s) if attempt else job.spec.resources.walltime_s,
        _shown(progress, attempt),
        _expected(job, attempt, decision) if attempt and began and not job.closed else None,
        prices.spent(job, now_s),
        attempt.scheduler_id if attempt else None,
        attempt.node if attempt else None,
        job.group,
        job.index,
    )


def _why(job: Job, attempt: Attempt | None) -> str:
    """Return why a job waits, in its scheduler's own words where it waits there, or how it ended."""
    if job.closed:
        return "" if job.state is JobState.COMPLETED else job.reason or (attempt.reason if attempt else "")
    if job.cancelled:
        return "being cancelled"
    if attempt is None or not attempt.live:
        if job.plan is not None:
            return f"attempt {len(job.attempts) + 1} is due: {job.plan.reason}" if job.plan.reason else "to be repeated"
        more = f" and {len(job.after) - NAMED} more" if len(job.after) > NAMED else ""
        return f"after {', '.join(job.after[:NAMED])}{more}" if job.after else "not submitted yet"
    if attempt.scheduler_id is None:
        return "being submitted"
    return attempt.reason if attempt.state is not JobState.RUNNING else ""


def _shown(event: JournalEvent | None, attempt: Attempt | None) -> ReportedProgress | None:
    """Return how far the attempt is; what an earlier one had shown does not count."""
    if event is None or attempt is None or event.attempt != attempt.key:
        return None
    said: Mapping[str, object] = event.details
    for unit in ("steps", "epochs"):
        if isinstance(done := said.get(unit), int):
            total = said.get("total")
            return ReportedProgress(unit, done, total if isinstance(total, int) else None, event.at)
    return None


def _expected(job: Job, attempt: Attempt, decision: JournalEvent | None) -> ExpectedEnd | None:
    """Return when the attempt is expected to end: by the last decision on it, else by what was predicted."""
    total, began_s = None, epoch_s(attempt.started_at or "")
    if decision is not None and decision.attempt == attempt.key:
        figures = [decision.details.get(name) for name in ("total_s", "total_low_s", "total_high_s")]
        known = [float(one) for one in figures if isinstance(one, int | float)]
        total = Interval(*known) if len(known) == 3 else None
    if total is None and job.predicted is not None:
        total = job.predicted.elapsed_s
    if total is None or began_s + total.high > YEAR_3000_S:
        return None
    return ExpectedEnd(
        iso_utc(began_s + total.point), iso_utc(began_s + total.low), iso_utc(began_s + total.high), total.level
    )
