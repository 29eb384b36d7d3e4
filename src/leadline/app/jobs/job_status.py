"""Job status: where each job is, its progress, its expected end, and its cost."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from msgspec import field

from leadline.app.composition import user_catalog
from leadline.app.jobs.journal import find_jobs, keep_journal_open, open_journal
from leadline.app.jobs.logs import OutputPaths, current_attempt
from leadline.app.machines.targets import lookup_partition
from leadline.catalog.billing import compute_charge
from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, EventKind, Job, JournalEvent
from leadline.core.units import HOUR_S, format_duration
from leadline.execution.clock import Clock, epoch_s, iso_utc
from leadline.execution.plane.actor import attempt_elapsed_s, attempt_node_s
from leadline.execution.plane.recovery import FOUND_AGAIN

if TYPE_CHECKING:
    from leadline.core.systems import Partition

YEAR_3000_S = 32_503_680_000.0
"""A later expected end is reported as unknown: a calendar cannot show it."""
NAMED = 3
"""Number of dependencies that are named."""


class ReportedProgress(Frozen):
    """Progress that a job reported: ``done`` of ``total`` units (``steps`` or ``epochs``), at time ``at``."""

    unit: str
    done: int
    total: int | None
    at: str

    @property
    def share(self) -> float | None:
        """Return the completed share, 0 to 1; ``None`` if the total is unknown."""
        return min(self.done / self.total, 1.0) if self.total else None


class ExpectedEnd(Frozen):
    """Expected end of a job: times in ISO 8601, and the probability ``level`` of the interval."""

    at: str
    earliest: str
    latest: str
    level: float


class SystemOutage(Frozen):
    """An unreachable system: its first and last missing answer, the reason, and the next try if one is planned."""

    system: str
    since: str
    last_at: str
    why: str
    next_at: str | None = None


class JobUsage(Frozen):
    """Use of all attempts of a job: node-seconds, and cost where the price is known."""

    node_s: float = 0.0
    cost: float | None = None
    currency: str | None = None


def total_usage(usages: Sequence[JobUsage]) -> JobUsage:
    """Return the use together; no cost if that of one is unknown or the units differ."""
    currencies = {usage.currency for usage in usages}
    costs = [usage.cost for usage in usages if usage.cost is not None]
    cost = sum(costs) if len(costs) == len(usages) and len(currencies) == 1 else None
    return JobUsage(sum(usage.node_s for usage in usages), cost, currencies.pop() if cost is not None else None)


class JobStatus(Frozen):
    """The status of one job.

    Attributes:
        why: why it waits, in its scheduler's words, how it ended, or a warning about its limit.
        elapsed_s: elapsed time of the current attempt.
        walltime_s: limit of the current attempt.
        closed: the plane is done with the job.
        output: file with the output of the current attempt, on its system; None if its folder is unknown.
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
    output: str | None = None


class ArrayStatus(Frozen):
    """The status of an array in one row."""

    group: str
    elements: tuple[JobStatus, ...]

    @property
    def counts(self) -> dict[JobState, int]:
        """Return the number of elements in each state."""
        counted = Counter(element.state for element in self.elements)
        return {state: counted[state] for state in JobState if counted[state]}

    @property
    def spent(self) -> JobUsage:
        """Return the use of all elements."""
        return total_usage([element.spent for element in self.elements if element.spent.node_s])


@keep_journal_open()
def job_statuses(
    names: Sequence[str] = (), *, all_jobs: bool = False, limit: int | None = None
) -> tuple[JobStatus, ...]:
    """Return the status of the named jobs, else of the active or all jobs, newest first, at most ``limit``.

    Raises:
        UnknownName: there is no such job.
    """
    return statuses_of(find_jobs(names, all_jobs=all_jobs, limit=limit), Clock().now_s())


def statuses_of(jobs: Sequence[Job], now_s: float) -> tuple[JobStatus, ...]:
    """Return the status of these jobs, from the newest events in the journal."""
    if not jobs:
        return ()
    keys = [job.key for job in jobs]
    with open_journal() as journal:
        progress = journal.latest_events(EventKind.PROGRESS, keys)
        decisions = journal.latest_events(EventKind.DECISION, keys)
    # One instance for all jobs: the elements of an array share their partitions.
    catalog, paths = user_catalog(), OutputPaths()
    partition_of = cache(lambda place: lookup_partition(place.system, place.partition, catalog))
    statuses = []
    for job in jobs:
        began = [attempt for attempt in job.attempts if attempt.started_at is not None]
        spent = total_usage([_usage_of(attempt, partition_of(attempt.place), now_s) for attempt in began])
        statuses.append(_status_of(job, progress.get(job.key), decisions.get(job.key), spent, paths, now_s))
    return tuple(statuses)


def system_outages(statuses: Iterable[JobStatus]) -> tuple[SystemOutage, ...]:
    """Return the outages of systems with active jobs."""
    return _open_outages({status.place.partition(":")[0] for status in statuses if not status.closed})


def is_unreachable(job: Job) -> bool:
    """Return whether a job waits for a system that did not answer since the job was submitted."""
    outages = _open_outages({attempt.place.system for attempt in job.live_attempts if attempt.scheduler_id is None})
    return any(epoch_s(outage.last_at) >= epoch_s(job.created_at) for outage in outages)


def _open_outages(systems: Collection[str]) -> tuple[SystemOutage, ...]:
    """Return the outages of these systems; without systems, the journal is not opened."""
    if not systems:
        return ()
    with open_journal() as journal:
        return tuple(_outage(system, event) for system, event in journal.open_outages().items() if system in systems)


def _outage(system: str, event: JournalEvent) -> SystemOutage:
    last_at, why, next_at = (event.details.get(name) for name in ("last_at", "why", "next_at"))
    planned_at = None if next_at is None else str(next_at)
    return SystemOutage(system, event.at, str(last_at or event.at), str(why or ""), planned_at)


def newest_event_number() -> int:
    """Return the number of the newest event, a cheap check for changes."""
    with open_journal() as journal:
        return journal.last_event()


def fold_arrays(statuses: Iterable[JobStatus]) -> tuple[JobStatus | ArrayStatus, ...]:
    """Put the elements of each array into one row, at the position of the first; a single element stays a job."""
    groups: dict[str, list[JobStatus]] = {}
    for status in statuses:
        groups.setdefault(status.group or status.key, []).append(status)
    for members in groups.values():
        members.sort(key=lambda status: status.index or 0)
    arrays = {group: ArrayStatus(group, tuple(members)) for group, members in groups.items() if len(members) > 1}
    return tuple(arrays.get(group, members[0]) for group, members in groups.items())


def _usage_of(attempt: Attempt, partition: "Partition | None", now_s: float) -> JobUsage:
    """Return the use of an attempt so far."""
    node_s = attempt_node_s(attempt, now_s)
    if partition is None or partition.billing is None:
        return JobUsage(node_s)
    hours = attempt_elapsed_s(attempt, now_s) / HOUR_S
    cost = compute_charge(partition.billing, attempt.resources, hours, partition.node)
    return JobUsage(node_s, cost, partition.billing.currency)


def _status_of(
    job: Job, progress: JournalEvent | None, decision: JournalEvent | None, spent: JobUsage, paths: OutputPaths,
    now_s: float,
) -> JobStatus:  # fmt: skip
    attempt = current_attempt(job)
    place = attempt.place if attempt else job.plan.place if job.plan else next(iter(job.policy.places), None)
    began = attempt is not None and attempt.started_at is not None
    found_again = "" if job.closed else job.tags.get(FOUND_AGAIN, "")
    return JobStatus(
        job.key,
        job.spec.name,
        str(place or ""),
        job.current_state,
        _why(job, attempt) or _limit_warning(job, attempt, decision) or found_again,
        job.created_at,
        job.closed,
        len(job.attempts),
        job.policy.attempts,
        attempt_elapsed_s(attempt, now_s) if attempt and began else None,
        (attempt.walltime_s or attempt.resources.walltime_s) if attempt else job.spec.resources.walltime_s,
        _reported_progress(progress, attempt),
        _expected_end(job, attempt, decision) if attempt and began and not job.closed else None,
        spent,
        attempt.scheduler_id if attempt else None,
        attempt.node if attempt else None,
        job.group,
        job.index,
        paths.of(attempt) if attempt else None,
    )


def _why(job: Job, attempt: Attempt | None) -> str:
    """Return why a job waits, in its scheduler's words if possible, or how it ended."""
    if job.closed:
        return "" if job.state is JobState.COMPLETED else job.reason or (attempt.reason if attempt else "")
    if job.cancelled:
        return "being cancelled"
    if attempt is None or not attempt.live:
        if job.plan is not None:
            due = f"attempt {len(job.attempts) + 1} is due: {job.plan.reason}"
            return due if job.plan.reason else "to be resubmitted"
        more = f" and {len(job.after) - NAMED} more" if len(job.after) > NAMED else ""
        return f"after {', '.join(job.after[:NAMED])}{more}" if job.after else "not submitted yet"
    if attempt.scheduler_id is None:
        return "being submitted"
    return attempt.reason if attempt.state is not JobState.RUNNING else ""


def _limit_warning(job: Job, attempt: Attempt | None, decision: JournalEvent | None) -> str:
    """Return a warning if the plane's last decision expects a running attempt to outlast its limit."""
    if job.closed or attempt is None or decision is None or decision.attempt != attempt.key:
        return ""
    late, limit_s = decision.details.get("late"), attempt.walltime_s or attempt.resources.walltime_s
    is_late = attempt.state is JobState.RUNNING and isinstance(late, int | float) and late > job.policy.risk
    return f"likely to exceed its limit of {format_duration(limit_s)}" if is_late and limit_s else ""


def _reported_progress(event: JournalEvent | None, attempt: Attempt | None) -> ReportedProgress | None:
    """Return the progress of the attempt; progress of earlier attempts does not count."""
    if event is None or attempt is None or event.attempt != attempt.key:
        return None
    total = event.details.get("total")
    for unit in ("steps", "epochs"):
        if isinstance(done := event.details.get(unit), int):
            return ReportedProgress(unit, done, total if isinstance(total, int) else None, event.at)
    return None


def _expected_end(job: Job, attempt: Attempt, decision: JournalEvent | None) -> ExpectedEnd | None:
    """Return the expected end of the attempt: by the plane's last decision, else by the prediction."""
    total, began_s = None, epoch_s(attempt.started_at or "")
    if decision is not None and decision.attempt == attempt.key:
        figures = [decision.details.get(name) for name in ("total_s", "total_low_s", "total_high_s")]
        bounds = [float(figure) for figure in figures if isinstance(figure, int | float)]
        total = Interval(*bounds) if len(bounds) == 3 else None
    if total is None and job.predicted is not None:
        total = job.predicted.elapsed_s
    if total is None or began_s + total.high > YEAR_3000_S:
        return None
    at, earliest, latest = (iso_utc(began_s + run_s) for run_s in (total.point, total.low, total.high))
    return ExpectedEnd(at, earliest, latest, total.level)
