"""Replay a published trace under several ways of asking for time: waits, slowdowns, kills and waste, in one table."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.plane.job_trace import loaded_cluster, metacentrum_jobs
from benchmarks.plane.request_rules import (
    ForecastUse,
    LastTwoRuns,
    LearnedRequests,
    OracleRequests,
    PartialRequests,
    UserRequests,
)
from benchmarks.results import BenchmarkRow, at_most
from leadline.core.queues import AccountedJob
from leadline.core.units import DAY_S, HOUR_S
from leadline.execution.schedulers.simulated.replay import (
    ReplayedAttempt,
    ReplayScores,
    RequestPolicy,
    replay,
    score_replay,
)

WINDOWS = 5
"""Into so many parts of as many jobs the trace is cut. All are replayed, one after the other, and the first is not
scored: it meets an empty cluster and nothing learned, and on it alone the way of learning was chosen."""
LOADS = (0.85, 0.9, 0.95)
"""Offered loads: the core-seconds that all jobs need ÷ those of the cluster between the first and last submission."""
SHARE = 5
"""One user in so many asks as Leadline says, where it is not all of them."""
MOST_S = 20.0
"""In which 10,000 jobs are to be replayed on one core."""

Jobs = Sequence[AccountedJob]
USERS = "users' requests"
WAYS: dict[str, Callable[[Jobs], RequestPolicy]] = {
    USERS: lambda _: UserRequests(),
    "last two runs as limits": lambda _: LastTwoRuns(limits=True),
    "Leadline's limits": lambda _: LearnedRequests(ForecastUse.LIMIT),
    "Leadline's least limits": lambda _: LearnedRequests(ForecastUse.LEAST),
    "oracle": OracleRequests,
    "last two runs, backfill only": lambda _: LastTwoRuns(limits=False),
    "Leadline, backfill only": lambda _: LearnedRequests(ForecastUse.HINT),
}
"""Ways of asking. A least limit is Slurm's ``--time-min`` beside the user's own; with the last two limits stay the
users', and the scheduler alone is told: a site could do that."""
SOME = {
    "Leadline's limits, one user in five": ForecastUse.LIMIT,
    "Leadline's least limits, one user in five": ForecastUse.LEAST,
}
FIGURES: dict[str, tuple[str, Callable[[ReplayScores], float]]] = {
    "mean wait": ("h", lambda one: one.wait_s / HOUR_S),
    "mean bounded slowdown": ("", lambda one: one.slowdown),
    "jobs killed": ("%", lambda one: 100 * one.killed),
    "asked for in vain": ("% of need", lambda one: 100 * one.waste),
    "of that lost in kills": ("% of need", lambda one: 100 * one.lost),
    "utilisation": ("%", lambda one: 100 * one.utilisation),
    "makespan": ("days", lambda one: one.makespan_s / DAY_S),
}


def replay_rows(data: Path, *, quick: bool = False) -> list[BenchmarkRow]:
    """Return the medians over windows and loads of MetaCentrum's trace in the folder ``data``, and a replay's time.

    Raises:
        InvalidInput: the folder lacks the table.
        MissingExtra: pyarrow or scikit-learn is not installed.
    """
    jobs = metacentrum_jobs(data)
    scores: defaultdict[str, dict[float, list[ReplayScores]]] = defaultdict(dict)
    for load in LOADS[1:2] if quick else LOADS:
        for name, way in WAYS.items():
            scores[name][load] = replayed(jobs, way(jobs), load)
    for name, use in SOME.items():
        scores[name][LOADS[1]] = by_some(jobs, use, LOADS[1])
    return [*_speed(jobs), *_table(scores)]


def replayed(jobs: Jobs, asking: RequestPolicy, load: float) -> list[ReplayScores]:
    """Replay all jobs and score each window but the first."""
    cluster = loaded_cluster(jobs, load)
    cores, attempts = cluster.cores, replay(jobs, cluster, asking)
    return [score_replay(jobs, attempts, cores, scored=window) for window in _windows(len(jobs))]


def by_some(jobs: Jobs, use: ForecastUse, load: float) -> list[ReplayScores]:
    """Let each fifth of the users in turn ask as Leadline says, learning from their own jobs, and score those jobs."""
    users = sorted({job.user for job in jobs})
    cores = 0
    of_job: dict[int, list[ReplayedAttempt]] = {}
    for turn in range(SHARE):
        asking = PartialRequests(LearnedRequests(use), users[turn::SHARE])
        cluster = loaded_cluster(jobs, load)
        cores = cluster.cores
        own: defaultdict[int, list[ReplayedAttempt]] = defaultdict(list)
        for one in replay(jobs, cluster, asking):
            own[one.job].append(one)
        of_job |= {index: runs for index, runs in own.items() if jobs[index].user in asking.users}
    attempts = [one for runs in of_job.values() for one in runs]
    return [score_replay(jobs, attempts, cores, scored=window) for window in _windows(len(jobs))]


def _windows(count: int) -> list[range]:
    size = count // WINDOWS
    return [range(number * size, (number + 1) * size) for number in range(1, WINDOWS)]


def _speed(jobs: Jobs) -> list[BenchmarkRow]:
    """Time the replay of 10,000 jobs, and of all."""
    found = []
    for count in (10_000, len(jobs)):
        cluster = loaded_cluster(jobs[:count], LOADS[-1])
        began = time.perf_counter()
        replay(jobs[:count], cluster, UserRequests())
        took_s = time.perf_counter() - began
        how = f"one core, {USERS}, on {cluster.cores} simulated cores, offered load {LOADS[-1]:g}"
        found.append(at_most(f"replay of {count:,} jobs", took_s, MOST_S, "s", n=count, how=how))
    return found


def _table(scores: Mapping[str, Mapping[float, list[ReplayScores]]]) -> list[BenchmarkRow]:
    """Make one row of each figure and way; what a fifth of the users did tells nothing of the whole cluster.

    The baseline is what the users' requests made of the same windows at the same loads.
    """
    found = []
    for figure, (unit, of) in FIGURES.items():
        for way, own in scores.items():
            if way in SOME and figure in {"utilisation", "makespan"}:
                continue
            values = [of(one) for load in own for one in own[load]]
            users = median(of(one) for load in own for one in scores[USERS][load])
            loads = ", ".join(f"{load:g}" for load in own)
            shown = ", ".join(f"{value:.3g}" for value in values)
            how = f"median of {len(values)} windows at offered loads of {loads}: {shown}; baseline: {USERS}"
            count = sum(one.jobs for load in own for one in own[load])
            found.append(BenchmarkRow(f"{figure}: {way}", median(values), unit, baseline=users, n=count, how=how))
    return found
