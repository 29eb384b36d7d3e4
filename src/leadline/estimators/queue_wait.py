"""Queue waits: the state of a queue when a job is submitted, as one row of metrics, and the forest over such rows.

Rows use only what was known at that moment. A pool is a set of jobs that compete for the same cores: a whole site, one
of its partitions, or one user under a personal limit. Its capacity is unknown and taken as the most it was ever seen to
hold.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf, log2
from statistics import median

import numpy as np

from leadline.core.jobs import JobState
from leadline.core.queues import IMMEDIATE_START_S, AccountedJob
from leadline.core.units import DAY_S, HOUR_S
from leadline.estimators.ports import Array, State, Stored
from leadline.estimators.tabular.trees import Trees

RECENT = 20  # starts in the median wait
MOST_PLANNED = 400  # jobs ahead that are planned one by one; the work of the others is spread over all cores
# Planned walltime of a job without a limit.
UNLIMITED_S = 7.0 * DAY_S
UNKNOWN_VALUE = -1.0

POOL_METRICS = (
    "pending_jobs", "pending_share", "backlog_s", "running_jobs", "free_cores", "planned_s", "expected_s",
    "oldest_pending_s", "last_wait_s", "since_last_start_s", "recent_wait_s",
)  # fmt: skip


@dataclass(slots=True)
class QueuePool:
    """Pending and running jobs at one moment in order of arrival, and earlier observations."""

    pending: dict[int, AccountedJob] = field(default_factory=dict)
    running: dict[int, AccountedJob] = field(default_factory=dict)
    used_cores: int = 0
    used_gpus: int = 0
    peak_cores: int = 0
    peak_gpus: int = 0
    pending_cores: int = 0
    pending_work: float = 0.0
    last_wait_s: float = UNKNOWN_VALUE
    last_start_s: float | None = None
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def enter(self, key: int, job: AccountedJob) -> None:
        """Add a pending job."""
        self.pending[key] = job
        self.pending_cores += job.cores
        self.pending_work += job.cores * walltime_limit_s(job)

    def withdraw(self, key: int) -> None:
        """Remove a pending job that started or was cancelled."""
        job = self.pending.pop(key)
        self.pending_cores -= job.cores
        # an empty queue has no work, whatever was lost to rounding
        self.pending_work = self.pending_work - job.cores * walltime_limit_s(job) if self.pending else 0.0

    def start(self, key: int, job: AccountedJob, now_s: float) -> None:
        """Start a pending job."""
        self.withdraw(key)
        self.running[key] = job
        self.used_cores += job.cores
        self.used_gpus += job.gpus
        self.peak_cores, self.peak_gpus = max(self.peak_cores, self.used_cores), max(self.peak_gpus, self.used_gpus)
        self.last_wait_s, self.last_start_s = job.wait_s or 0.0, now_s
        self.recent.append(self.last_wait_s)

    def end(self, key: int) -> None:
        """Remove a running job."""
        job = self.running.pop(key)
        self.used_cores -= job.cores
        self.used_gpus -= job.gpus

    def metrics(self, request: AccountedJob, now_s: float, share: Callable[[AccountedJob], float]) -> list[float]:
        """Return ``POOL_METRICS`` for a job that arrives now, before it has entered.

        ``share`` gives the expected share of its walltime that a job uses.
        """
        cores = max(self.peak_cores, request.cores)
        oldest = next(iter(self.pending.values()), None)
        return [
            len(self.pending),
            self.pending_cores / cores,
            self.pending_work / cores,
            len(self.running),
            cores - self.used_cores,
            self.planned_s(request, now_s, lambda _: 1.0),
            self.planned_s(request, now_s, share),
            UNKNOWN_VALUE if oldest is None else now_s - eligible_at_s(oldest),
            self.last_wait_s,
            UNKNOWN_VALUE if self.last_start_s is None else now_s - self.last_start_s,
            median(self.recent) if self.recent else UNKNOWN_VALUE,
        ]

    def planned_s(self, request: AccountedJob, now_s: float, share: Callable[[AccountedJob], float]) -> float:
        """Return the seconds until ``request`` would start if all jobs started in order."""
        # Each job holds its cores for the `share` of its walltime, a running one for that share of its remaining
        # time. A job that needs more than the pool ever held starts when the pool is empty.
        cores = max(self.peak_cores, request.cores) - self.used_cores
        gpus = max(self.peak_gpus, request.gpus) - self.used_gpus
        if not self.pending and cores >= request.cores and gpus >= request.gpus:
            return 0.0
        releases = [(share(job) * remaining_s(job, now_s), job.cores, job.gpus) for job in self.running.values()]
        heapify(releases)
        start, unplanned = 0.0, self.pending_work
        for job in (*islice(self.pending.values(), MOST_PLANNED), request):
            while (cores < job.cores or gpus < job.gpus) and releases:
                end, more_cores, more_gpus = heappop(releases)
                start, cores, gpus = max(start, end), cores + more_cores, gpus + more_gpus
            cores, gpus = cores - job.cores, gpus - job.gpus
            heappush(releases, (start + share(job) * walltime_limit_s(job), job.cores, job.gpus))
            unplanned -= job.cores * walltime_limit_s(job)
        beyond = unplanned + request.cores * walltime_limit_s(request) if len(self.pending) > MOST_PLANNED else 0.0
        return start + share(request) * beyond / max(self.peak_cores, request.cores, 1)

    def backfill_window(self, request: AccountedJob, now_s: float) -> tuple[float, float]:
        """Return how long the free cores stay free (s), and how many the first pending job leaves over."""
        # A job may be backfilled (Lifka 1995) if it ends before the first job's turn, or uses no core that it needs
        # then. Without pending jobs the window is `UNLIMITED_S` and all free cores.
        free = max(self.peak_cores, request.cores) - self.used_cores
        first = next(iter(self.pending.values()), None)
        if first is None:
            return UNLIMITED_S, float(free)
        turn = 0.0
        for end, cores in sorted((remaining_s(job, now_s), job.cores) for job in self.running.values()):
            if free >= first.cores:
                break
            turn, free = end, free + cores
        return turn, float(free - first.cores)


def walltime_limit_s(job: AccountedJob) -> float:
    """Return the walltime that a job requested."""
    return UNLIMITED_S if job.walltime_s is None else job.walltime_s


def remaining_s(job: AccountedJob, now_s: float) -> float:
    """Return how much of the walltime of a job that runs is left."""
    return max(0.0, walltime_limit_s(job) - (now_s - (job.started_s or 0.0)))


def eligible_at_s(job: AccountedJob) -> float:
    """Return the time from which a job could have started."""
    return job.submitted_s if job.eligible_s is None else max(job.eligible_s, job.submitted_s)


# Prior share of a walltime that jobs use, and its weight in ended jobs.
PRIOR_SHARE, PRIOR_ENDED = 0.5, 5.0
POOLS = ("site", "partition", "user")
QUEUE_FEATURES = (
    "walltime_s", "gpus", "share_of_site", "share_of_partition", "hour", "weekday",
    *(f"{pool}_{figure}" for pool in POOLS for figure in POOL_METRICS),
    "hole_s", "hole_to_spare_s", "spare_cores", "same_shape_wait_s", "since_same_shape_s", "forecast_s",
)  # fmt: skip
FORECAST_COLUMN = QUEUE_FEATURES.index("forecast_s")
_ENTER, _CHANGE = 0, 1


@dataclass(slots=True)
class _Used:
    """The shares of their walltimes that jobs used, summed and counted."""

    shares: float = 0.0
    ended: int = 0

    def add(self, job: AccountedJob) -> None:
        if job.walltime_s:
            self.shares, self.ended = self.shares + min(1.0, (job.elapsed_s or 0.0) / job.walltime_s), self.ended + 1

    def mean(self, prior: float) -> float:
        return (self.shares + prior * PRIOR_ENDED) / (self.ended + PRIOR_ENDED)


_NOTHING = _Used()


@dataclass(slots=True)
class _Site:
    site: QueuePool = field(default_factory=QueuePool)
    partitions: dict[str, QueuePool] = field(default_factory=dict)
    users: dict[str, QueuePool] = field(default_factory=dict)
    used: dict[str, _Used] = field(default_factory=dict)
    total: _Used = field(default_factory=_Used)
    shapes: dict[tuple[object, ...], tuple[float, float]] = field(default_factory=dict)

    def pools(self, job: AccountedJob) -> tuple[QueuePool, QueuePool, QueuePool]:
        return (self.site, self.partitions.setdefault(job.partition, QueuePool()),
                self.users.setdefault(job.user, QueuePool()))  # fmt: skip

    def apply_event(self, kind: int, key: int, job: AccountedJob, at_s: float) -> None:
        """Apply an event of a job at ``at_s``: it arrived, started, ended or was cancelled."""
        pools = self.pools(job)
        if kind == _ENTER:
            for pool in pools:
                pool.enter(key, job)
        elif key in self.site.running:
            for pool in pools:
                pool.end(key)
            self.used.setdefault(job.user, _Used()).add(job)
            self.total.add(job)
        elif job.started_s is None:
            for pool in pools:
                pool.withdraw(key)
        else:
            for pool in pools:
                pool.start(key, job, at_s)
            self.shapes[_shape(job)] = (job.wait_s or 0.0, at_s)

    def row(self, job: AccountedJob, now_s: float, forecast_s: float | None) -> list[float]:
        """Return ``QUEUE_FEATURES`` of a job that arrives now."""
        usual_share = self.total.mean(PRIOR_SHARE)

        def share(queued: AccountedJob) -> float:
            """Return the expected share of its walltime: the user's mean, drawn to the site's."""
            return self.used.get(queued.user, _NOTHING).mean(usual_share)

        site, partition, _ = pools = self.pools(job)
        hole_s, spare = site.backfill_window(job, now_s)
        wait_s, at_s = self.shapes.get(_shape(job), (UNKNOWN_VALUE, None))
        return [
            walltime_limit_s(job),
            job.gpus,
            job.cores / max(site.peak_cores, 1),
            job.cores / max(partition.peak_cores, 1),
            now_s % DAY_S // HOUR_S,
            now_s // DAY_S % 7,
            *(figure for pool in pools for figure in pool.metrics(job, now_s, share)),
            hole_s,
            hole_s - walltime_limit_s(job),
            spare - job.cores,
            wait_s,
            UNKNOWN_VALUE if at_s is None else now_s - at_s,
            UNKNOWN_VALUE if forecast_s is None else forecast_s,
        ]


def queue_rows(
    jobs: Sequence[AccountedJob], positions: Sequence[int] | None = None, forecasts: Mapping[str, float] | None = None
) -> Array:
    """Return the queue state when each job could first start, shape (n, len(QUEUE_FEATURES)).

    ``jobs`` is the accounting of a site in order of submission. ``positions`` are places in it (default: all).
    ``forecasts`` are the scheduler's own wait predictions in seconds by job id. A row uses only earlier events: an
    unfinished job shows its requested end, an unstarted one no wait, a later one nothing. Rows of jobs that could never
    start are ``UNKNOWN_VALUE``.
    """
    places = {place: number for number, place in enumerate(range(len(jobs)) if positions is None else positions)}
    rows = np.full((len(places), len(QUEUE_FEATURES)), UNKNOWN_VALUE)
    waits, site = forecasts or {}, _Site()
    for at_s, kind, place in sorted(_events(jobs)):
        if kind == _ENTER and place in places:
            job = jobs[place]
            rows[places[place]] = site.row(job, at_s, waits.get(job.id))
        site.apply_event(kind, place, jobs[place], at_s)
    return rows


def current_queue_rows(
    jobs: Sequence[AccountedJob], requests: Sequence[AccountedJob], forecasts: Mapping[str, float] | None = None
) -> Array:
    """Return the rows of jobs that would arrive after all accounted events.

    They have the form of ``queue_rows`` and ignore one another.
    """
    waits, site = forecasts or {}, _Site()
    for at_s, kind, place in sorted(_events(jobs)):
        site.apply_event(kind, place, jobs[place], at_s)
    rows = [site.row(job, eligible_at_s(job), waits.get(job.id)) for job in requests]
    return np.array(rows).reshape(len(rows), len(QUEUE_FEATURES))


def accounting_at(jobs: Sequence[AccountedJob], now_s: float) -> list[AccountedJob]:
    """Return the accounting as known just before ``now_s``, without later events."""
    return [_as_of(job, now_s) for job in jobs if job.submitted_s <= now_s]


def _as_of(job: AccountedJob, now_s: float) -> AccountedJob:
    started = job.started_s is not None and job.started_s < now_s
    ended = job.ended_s is not None and job.ended_s < now_s
    ready = job.eligible_s is None or job.eligible_s <= now_s
    return replace(
        job,
        started_s=job.started_s if started else None,
        ended_s=job.ended_s if ended else None,
        eligible_s=job.eligible_s if ready else inf,
        state=job.state if ended else (JobState.RUNNING if started else JobState.PENDING),
    )


def _events(jobs: Sequence[AccountedJob]) -> Iterator[tuple[float, int, int]]:
    """Yield (when, kind, place); only later arrivals see the changes of one moment."""
    for place, job in enumerate(jobs):
        ready = eligible_at_s(job)
        if ready == inf:
            continue
        yield ready, _ENTER, place
        if job.started_s is not None:
            yield max(ready, job.started_s), _CHANGE, place
        if job.ended_s is not None:
            yield max(ready, job.started_s or ready, job.ended_s), _CHANGE, place


def _shape(job: AccountedJob) -> tuple[object, ...]:
    """Return the key of jobs that a scheduler treats alike; sizes count by powers of two."""
    return (job.partition, round(log2(max(1, job.cores))), round(log2(job.gpus + 1)),
            round(log2(max(1.0, walltime_limit_s(job)))))  # fmt: skip


def wait_grid(longest_s: float) -> Array:
    """Return the waits (K,) of the distributions: doubling from a minute past the longest one."""
    doublings = max(1, int(np.ceil(np.log2(max(longest_s, IMMEDIATE_START_S) / IMMEDIATE_START_S))))
    return np.array([5.0, 15.0, *(IMMEDIATE_START_S * 2.0**k for k in range(doublings + 1))])


class WaitForest(Stored):
    """The distribution of waits: trees over queue metrics; a leaf's value is its row in ``shares``."""

    trees: Trees
    grid_s: Array  # waits (K,)
    shares: Array  # share (leaves, K) of a leaf's jobs that waited no longer

    def distribution(self, x: Array) -> Array:
        """Return P(wait ≤ grid) of each row, shape (n, K): the mean over the trees."""
        leaf = self.trees.value.astype(np.int64)[self.trees.leaves(x)]
        return np.array([self.shares[row].mean(axis=0) for row in leaf]).reshape(len(x), len(self.grid_s))

    def dump(self) -> State:
        """Return the forest as arrays, with the large ``shares`` in half the bytes."""
        return {**Stored.dump(self), "shares": self.shares.astype(np.float32)}


def wait_quantile(grid_s: Array, distribution: Array, level: Array) -> Array:
    """Return the wait (n,) at probability ``level`` (n,) in each row's distribution."""
    # Between two waits of the grid the logarithm is interpolated, below the first the wait itself.
    place = np.minimum((distribution < level[:, None] - 1e-12).sum(axis=1), len(grid_s) - 1)
    rows = np.arange(len(distribution))
    high, below = distribution[rows, place], np.where(place > 0, distribution[rows, place - 1], 0.0)
    part = np.clip((level - below) / np.maximum(high - below, 1e-12), 0.0, 1.0)
    longer, shorter = grid_s[place], grid_s[np.maximum(place - 1, 0)]
    return np.asarray(np.where(place > 0, shorter * (longer / shorter) ** part, longer * part))


def wait_probability(grid_s: Array, distribution: Array, wait_s: Array) -> Array:
    """Return P(wait ≤ ``wait_s``) (n,), each in its row's distribution; the inverse of ``wait_quantile``."""
    place = np.searchsorted(grid_s, wait_s)
    rows, inside = np.arange(len(distribution)), np.minimum(place, len(grid_s) - 1)
    high, below = distribution[rows, inside], np.where(inside > 0, distribution[rows, inside - 1], 0.0)
    longer, shorter = grid_s[inside], grid_s[np.maximum(inside - 1, 0)]
    along = np.log(np.maximum(wait_s, 1e-9) / shorter) / np.log(np.where(inside > 0, longer / shorter, 2.0))
    part = np.clip(np.where(inside > 0, along, wait_s / longer), 0.0, 1.0)
    return np.asarray(np.where(place >= len(grid_s), 1.0, np.clip(below + part * (high - below), 0.0, 1.0)))
