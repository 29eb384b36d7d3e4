"""What is known of a queue when a job is submitted, as one row of figures; nothing that happened later is looked at."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, log2

import numpy as np
import numpy.typing as npt

from leadline.core.accounting import AccountedJob
from leadline.core.jobs import JobState
from leadline.core.units import DAY_S, HOUR_S
from leadline.estimators.queue_pool import FIGURES, NOT_KNOWN, Pool, limit_s, ready_s

Array = npt.NDArray[np.float64]

PRIOR_SHARE, PRIOR_ENDED = 0.5, 5.0
"""The share of a walltime that is taken to be used before any job ended, and how many ended jobs that weighs."""
POOLS = ("site", "partition", "user")
FEATURES = (
    "walltime_s", "gpus", "share_of_site", "share_of_partition", "hour", "weekday",
    *(f"{pool}_{figure}" for pool in POOLS for figure in FIGURES),
    "hole_s", "hole_to_spare_s", "spare_cores", "same_shape_wait_s", "since_same_shape_s", "forecast_s",
)  # fmt: skip
FORECAST = FEATURES.index("forecast_s")
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
    everybody: Pool = field(default_factory=Pool)
    partitions: dict[str, Pool] = field(default_factory=dict)
    users: dict[str, Pool] = field(default_factory=dict)
    used: dict[str, _Used] = field(default_factory=dict)
    total: _Used = field(default_factory=_Used)
    shapes: dict[tuple[object, ...], tuple[float, float]] = field(default_factory=dict)

    def pools(self, job: AccountedJob) -> tuple[Pool, Pool, Pool]:
        return (self.everybody, self.partitions.setdefault(job.partition, Pool()),
                self.users.setdefault(job.user, Pool()))  # fmt: skip

    def take_in(self, kind: int, key: int, job: AccountedJob, at_s: float) -> None:
        """Let what happened to a job at ``at_s`` be so: it came, or ended, or was cancelled, or started."""
        pools = self.pools(job)
        if kind == _ENTER:
            for pool in pools:
                pool.enter(key, job)
        elif key in self.everybody.running:
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
        """Return ``FEATURES`` of a job that comes now."""
        everybody = self.total.mean(PRIOR_SHARE)

        def share(one: AccountedJob) -> float:
            """Return how much of its walltime a job uses: its user's mean, drawn to everybody's."""
            return self.used.get(one.user, _NOTHING).mean(everybody)

        site, partition, _ = pools = self.pools(job)
        hole_s, spare = site.hole(job, now_s)
        wait_s, at_s = self.shapes.get(_shape(job), (NOT_KNOWN, None))
        return [
            limit_s(job),
            job.gpus,
            job.cores / max(site.peak_cores, 1),
            job.cores / max(partition.peak_cores, 1),
            now_s % DAY_S // HOUR_S,
            now_s // DAY_S % 7,
            *(figure for pool in pools for figure in pool.figures(job, now_s, share)),
            hole_s,
            hole_s - limit_s(job),
            spare - job.cores,
            wait_s,
            NOT_KNOWN if at_s is None else now_s - at_s,
            NOT_KNOWN if forecast_s is None else forecast_s,
        ]


def queue_rows(
    jobs: Sequence[AccountedJob], wanted: Sequence[int] | None = None, forecasts: Mapping[str, float] | None = None
) -> Array:
    """Return what was known of the queue when each job could first start, shape (n, len(FEATURES)).

    ``jobs`` is the accounting of a site, in the order of submission; ``wanted`` are places in it (all of them);
    ``forecasts`` are the waits in seconds that the scheduler itself foretold at submission, by the jobs' ids. A row
    says what was to be seen before its moment: an earlier job that had not ended shows its requested end, one that had
    not started shows no wait, and a later one nothing. Rows of jobs that never could start are ``NOT_KNOWN``.
    """
    places = {place: number for number, place in enumerate(range(len(jobs)) if wanted is None else wanted)}
    found = np.full((len(places), len(FEATURES)), NOT_KNOWN)
    foretold, site = forecasts or {}, _Site()
    for at_s, kind, place in sorted(_events(jobs)):
        if kind == _ENTER and place in places:
            job = jobs[place]
            found[places[place]] = site.row(job, at_s, foretold.get(job.id))
        site.take_in(kind, place, jobs[place], at_s)
    return found


def rows_now(
    jobs: Sequence[AccountedJob], asked: Sequence[AccountedJob], forecasts: Mapping[str, float] | None = None
) -> Array:
    """Return the rows of jobs each of which would come next after all that the accounting tells.

    They are in the form of ``queue_rows``, and know nothing of one another.
    """
    foretold, site = forecasts or {}, _Site()
    for at_s, kind, place in sorted(_events(jobs)):
        site.take_in(kind, place, jobs[place], at_s)
    rows = [site.row(job, ready_s(job), foretold.get(job.id)) for job in asked]
    return np.array(rows).reshape(len(rows), len(FEATURES))


def known_at(jobs: Sequence[AccountedJob], now_s: float) -> list[AccountedJob]:
    """Return the accounting as it stood just before ``now_s``: what happened from then on is not known yet."""
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
    """Yield (when, kind, place); what changes at one moment is seen by those alone who come after it."""
    for place, job in enumerate(jobs):
        ready = ready_s(job)
        if ready == inf:
            continue
        yield ready, _ENTER, place
        if job.started_s is not None:
            yield max(ready, job.started_s), _CHANGE, place
        if job.ended_s is not None:
            yield max(ready, job.started_s or ready, job.ended_s), _CHANGE, place


def _shape(job: AccountedJob) -> tuple[object, ...]:
    """Return what jobs have in common that a scheduler treats alike: sizes count by their powers of two."""
    return (job.partition, round(log2(max(1, job.cores))), round(log2(job.gpus + 1)),
            round(log2(max(1.0, limit_s(job)))))  # fmt: skip
