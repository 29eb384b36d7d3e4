"""Jobs that compete for the same cores, as accounting told of them up to one moment: who waits, who runs, what is free.

A pool is a whole site, one of its partitions, or one user under a limit of his own. What it can hold is nowhere said;
it is taken to be the most that it was ever seen to hold at once.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from statistics import median

from leadline.core.accounting import AccountedJob
from leadline.core.units import DAY_S

RECENT = 20
"""Starts over which a median wait is taken."""
MOST_PLANNED = 400
"""Jobs ahead that are planned one by one; the work of the others is spread over all cores."""
UNLIMITED_S = 7.0 * DAY_S
"""What a job that asked for no walltime is planned with."""
NOT_KNOWN = -1.0

FIGURES = (
    "pending_jobs", "pending_share", "backlog_s", "running_jobs", "free_cores", "planned_s", "expected_s",
    "oldest_pending_s", "last_wait_s", "since_last_start_s", "recent_wait_s",
)  # fmt: skip


@dataclass(slots=True)
class Pool:
    """The jobs that wait and run at one moment, in the order in which they came, and what was seen before."""

    pending: dict[int, AccountedJob] = field(default_factory=dict)
    running: dict[int, AccountedJob] = field(default_factory=dict)
    used_cores: int = 0
    used_gpus: int = 0
    peak_cores: int = 0
    peak_gpus: int = 0
    pending_cores: int = 0
    pending_work: float = 0.0
    last_wait_s: float = NOT_KNOWN
    last_start_s: float | None = None
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def enter(self, key: int, job: AccountedJob) -> None:
        """Let a job wait."""
        self.pending[key] = job
        self.pending_cores += job.cores
        self.pending_work += job.cores * limit_s(job)

    def withdraw(self, key: int) -> None:
        """Let a job wait no more, as it started or was cancelled."""
        job = self.pending.pop(key)
        self.pending_cores -= job.cores
        # an empty queue has no work, whatever was lost to rounding
        self.pending_work = self.pending_work - job.cores * limit_s(job) if self.pending else 0.0

    def start(self, key: int, job: AccountedJob, now_s: float) -> None:
        """Let a job run that waited."""
        self.withdraw(key)
        self.running[key] = job
        self.used_cores += job.cores
        self.used_gpus += job.gpus
        self.peak_cores, self.peak_gpus = max(self.peak_cores, self.used_cores), max(self.peak_gpus, self.used_gpus)
        self.last_wait_s, self.last_start_s = job.wait_s or 0.0, now_s
        self.recent.append(self.last_wait_s)

    def end(self, key: int) -> None:
        """Let a job that ran be gone."""
        job = self.running.pop(key)
        self.used_cores -= job.cores
        self.used_gpus -= job.gpus

    def figures(self, asked: AccountedJob, now_s: float, share: Callable[[AccountedJob], float]) -> list[float]:
        """Return ``FIGURES`` as they are for a job that comes now, before it has entered.

        ``share`` says how much of its walltime a job is expected to use.
        """
        cores = max(self.peak_cores, asked.cores)
        oldest = next(iter(self.pending.values()), None)
        return [
            len(self.pending),
            self.pending_cores / cores,
            self.pending_work / cores,
            len(self.running),
            cores - self.used_cores,
            self.planned_s(asked, now_s, _whole),
            self.planned_s(asked, now_s, share),
            NOT_KNOWN if oldest is None else now_s - ready_s(oldest),
            self.last_wait_s,
            NOT_KNOWN if self.last_start_s is None else now_s - self.last_start_s,
            median(self.recent) if self.recent else NOT_KNOWN,
        ]

    def planned_s(self, asked: AccountedJob, now_s: float, share: Callable[[AccountedJob], float]) -> float:
        """Return when ``asked`` would start, in seconds from now, were all to start in turn and none to pass another.

        Each job holds its cores for the ``share`` of its walltime, one that runs for that share of what is left of it.
        A job that asks for more than the pool ever held starts when the pool is empty.
        """
        cores = max(self.peak_cores, asked.cores) - self.used_cores
        gpus = max(self.peak_gpus, asked.gpus) - self.used_gpus
        if not self.pending and cores >= asked.cores and gpus >= asked.gpus:
            return 0.0
        releases = [(share(job) * left_s(job, now_s), job.cores, job.gpus) for job in self.running.values()]
        heapify(releases)
        start, rest = 0.0, self.pending_work
        for job in (*islice(self.pending.values(), MOST_PLANNED), asked):
            while (cores < job.cores or gpus < job.gpus) and releases:
                end, more_cores, more_gpus = heappop(releases)
                start, cores, gpus = max(start, end), cores + more_cores, gpus + more_gpus
            cores, gpus = cores - job.cores, gpus - job.gpus
            heappush(releases, (start + share(job) * limit_s(job), job.cores, job.gpus))
            rest -= job.cores * limit_s(job)
        beyond = rest + asked.cores * limit_s(asked) if len(self.pending) > MOST_PLANNED else 0.0
        return start + share(asked) * beyond / max(self.peak_cores, asked.cores, 1)

    def hole(self, asked: AccountedJob, now_s: float) -> tuple[float, float]:
        """Return how long the cores that are free now stay so (s), and how many the first that waits leaves over.

        That is the room for backfilling (Lifka 1995): a job may pass the first one if it ends before that one's turn,
        or takes no core that it needs then. ``UNLIMITED_S`` and all free cores where nobody waits.
        """
        free = max(self.peak_cores, asked.cores) - self.used_cores
        first = next(iter(self.pending.values()), None)
        if first is None:
            return UNLIMITED_S, float(free)
        turn = 0.0
        for end, cores in sorted((left_s(job, now_s), job.cores) for job in self.running.values()):
            if free >= first.cores:
                break
            turn, free = end, free + cores
        return turn, float(free - first.cores)


def limit_s(job: AccountedJob) -> float:
    """Return the walltime that a job asked for."""
    return UNLIMITED_S if job.walltime_s is None else job.walltime_s


def left_s(job: AccountedJob, now_s: float) -> float:
    """Return how much of the walltime of a job that runs is left."""
    return max(0.0, limit_s(job) - (now_s - (job.started_s or 0.0)))


def ready_s(job: AccountedJob) -> float:
    """Return since when a job could have started."""
    return job.submitted_s if job.eligible_s is None else max(job.eligible_s, job.submitted_s)


def _whole(_: AccountedJob) -> float:
    return 1.0
