"""Replay a published trace under several request rules: waits, slowdowns, kills and waste."""

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
from benchmarks.plane.simulated.replay import ReplayedAttempt, ReplayScores, RequestPolicy, replay, score_replay
from benchmarks.results import BenchmarkRow, at_most
from leadline.core.queues import AccountedJob
from leadline.core.units import DAY_S, HOUR_S

WINDOWS = 5
"""Parts of equal size of the trace. All are replayed in order. The first is not scored: it starts on an empty cluster
without training data, and the learning method was chosen on it."""
LOADS = (0.85, 0.9, 0.95)
"""Offered loads: core-seconds of all jobs ÷ those of the cluster between first and last submission."""
SHARE = 5
"""One user in so many follows Leadline, where not all do."""
MOST_S = 20.0
"""Target for the replay of 10,000 jobs on one core."""

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
"""Request rules. A least limit is Slurm's ``--time-min`` in addition to the user's limit. The last two keep the users'
limits and inform the scheduler alone, as a site could."""
SOME = {
    "Leadline's limits, one user in five": ForecastUse.LIMIT,
    "Leadline's least limits, one user in five": ForecastUse.LEAST,
}
METRICS: dict[str, tuple[str, Callable[[ReplayScores], float]]] = {
    "mean wait": ("h", lambda scores: scores.wait_s / HOUR_S),
    "mean bounded slowdown": ("", lambda scores: scores.slowdown),
    "jobs killed": ("%", lambda scores: 100 * scores.killed),
    "requested but unused": ("% of need", lambda scores: 100 * scores.waste),
    "of that lost in kills": ("% of need", lambda scores: 100 * scores.lost),
    "utilisation": ("%", lambda scores: 100 * scores.utilisation),
    "makespan": ("days", lambda scores: scores.makespan_s / DAY_S),
}


def replay_rows(data: Path, *, quick: bool = False) -> list[BenchmarkRow]:
    """Return the medians over windows and loads of MetaCentrum's trace in the folder ``data``, and a replay's time.

    Raises:
        InvalidInput: The folder lacks the table.
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
    """Let each fifth of the users in turn follow Leadline, trained on their own jobs; score those jobs."""
    users = sorted({job.user for job in jobs})
    cores = 0
    of_job: dict[int, list[ReplayedAttempt]] = {}
    for turn in range(SHARE):
        asking = PartialRequests(LearnedRequests(use), users[turn::SHARE])
        cluster = loaded_cluster(jobs, load)
        cores = cluster.cores
        by_job: defaultdict[int, list[ReplayedAttempt]] = defaultdict(list)
        for attempt in replay(jobs, cluster, asking):
            by_job[attempt.job].append(attempt)
        of_job |= {index: runs for index, runs in by_job.items() if jobs[index].user in asking.users}
    attempts = [attempt for runs in of_job.values() for attempt in runs]
    return [score_replay(jobs, attempts, cores, scored=window) for window in _windows(len(jobs))]


def _windows(count: int) -> list[range]:
    size = count // WINDOWS
    return [range(number * size, (number + 1) * size) for number in range(1, WINDOWS)]


def _speed(jobs: Jobs) -> list[BenchmarkRow]:
    """Time the replay of 10,000 jobs, and of all."""
    rows = []
    for count in (10_000, len(jobs)):
        cluster = loaded_cluster(jobs[:count], LOADS[-1])
        began = time.perf_counter()
        replay(jobs[:count], cluster, UserRequests())
        took_s = time.perf_counter() - began
        how = f"one core, {USERS}, on {cluster.cores} simulated cores, offered load {LOADS[-1]:g}"
        rows.append(at_most(f"replay of {count:,} jobs", took_s, MOST_S, "s", n=count, how=how))
    return rows


def _table(scores: Mapping[str, Mapping[float, list[ReplayScores]]]) -> list[BenchmarkRow]:
    """Return one row for each metric and rule; the baseline are the users' requests in the same windows.

    Utilisation and makespan are properties of the whole cluster, so rules for a fifth of the users have none.
    """
    rows = []
    for metric, (unit, of) in METRICS.items():
        for way, by_load in scores.items():
            if way in SOME and metric in {"utilisation", "makespan"}:
                continue
            windows = [window for load in by_load for window in by_load[load]]
            values = [of(window) for window in windows]
            users = median(of(window) for load in by_load for window in scores[USERS][load])
            loads = ", ".join(f"{load:g}" for load in by_load)
            shown = ", ".join(f"{value:.3g}" for value in values)
            how = f"median of {len(values)} windows at offered loads of {loads}: {shown}; baseline: {USERS}"
            count = sum(window.jobs for window in windows)
            rows.append(BenchmarkRow(f"{metric}: {way}", median(values), unit, baseline=users, n=count, how=how))
    return rows
