"""Put the jobs of a trace through a simulated queue, and keep what its scheduler foretold of each at submission."""

import heapq
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.plane.trace import cluster_of
from leadline.core.accounting import AccountedJob
from leadline.core.jobs import JobState
from leadline.execution.simulated.cluster import Ask
from leadline.execution.simulated.easy import EasyQueue

_ENDED, _CAME = 0, 1


def queued(jobs: Sequence[AccountedJob], load: float) -> tuple[list[AccountedJob], dict[str, float]]:
    """Return the jobs as they would have waited on a cluster under an offered load, and the forecasts by their ids.

    First come, first served with EASY backfill by requested limits. A forecast is the wait in seconds if nobody came
    later, and all who wait or run took their whole limits: what Slurm's ``sbatch --test-only`` answers.
    """
    queue = EasyQueue(cluster_of(jobs, load))
    events = [(job.submitted_s, _CAME, place) for place, job in enumerate(jobs)]
    heapq.heapify(events)
    done, forecasts = list(jobs), {}
    while events:
        now_s = events[0][0]
        while events and events[0][0] == now_s:
            _, kind, place = heapq.heappop(events)
            if kind == _ENDED:
                queue.remove(place)
                continue
            job, ask = jobs[place], Ask(1, jobs[place].cores)
            limit_s = job.walltime_s or job.elapsed_s or 1.0
            start_s = queue.forecast_s(ask, limit_s, now_s)
            if start_s is not None:
                forecasts[job.id] = start_s - now_s
            queue.submit(place, ask, limit_s)
        for one in queue.start(now_s):
            place = int(str(one.key))
            needs_s = jobs[place].elapsed_s or 0.0
            done[place] = replace(jobs[place], started_s=now_s, ended_s=now_s + needs_s, state=JobState.COMPLETED)
            heapq.heappush(events, (now_s + needs_s, _ENDED, place))
    return done, forecasts
