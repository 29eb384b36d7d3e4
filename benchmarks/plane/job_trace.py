"""The jobs of a published trace in accounting form, a cluster with a realistic load, and their simulated queue."""

import heapq
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.plane.simulated.cluster import EasyQueue, NodeRequest, SimulatedCluster, SimulatedNode
from benchmarks.tables import read_table
from leadline.core.jobs import JobState
from leadline.core.queues import AccountedJob


def metacentrum_jobs(folder: Path, *, truncated: bool = True) -> tuple[AccountedJob, ...]:
    """Read MetaCentrum's jobs of 2013 in the order of their submission, without those that never ran.

    Jobs that were killed at their limit have unknown needs. ``truncated`` sets them to the limit, as is usual with such
    traces; otherwise they need the recorded time, a little more.

    Raises:
        InvalidInput: The folder lacks the table.
        MissingExtra: pyarrow is not installed.
    """
    table = read_table(
        folder, "metacentrum_jobs", ("job", "submit", "wait", "run", "procs_req", "time_req", "user", "extra")
    )
    jobs = []
    for row in zip(*(values.tolist() for values in table.values()), strict=True):
        job, submitted_s, wait_s, run_s, cores, request_s, user, extra = row
        if run_s <= 0 or request_s <= 0:
            continue
        need_s = float(min(run_s, request_s) if truncated else run_s)
        started_s = float(submitted_s + max(0, wait_s))
        state = JobState.TIMEOUT if run_s >= request_s else JobState.COMPLETED
        jobs.append(
            AccountedJob(
                str(job), float(submitted_s), started_s, started_s + need_s, state=state, user=str(user),
                partition=extra.split()[1], cores=int(cores), walltime_s=float(request_s),
            )
        )  # fmt: skip
    return tuple(sorted(jobs, key=lambda job: job.submitted_s))


def loaded_cluster(jobs: Sequence[AccountedJob], load: float) -> SimulatedCluster:
    """Return a cluster on which the jobs are an offered load: core-seconds ÷ those between first and last submission.

    It is one pool of cores, as the trace does not name nodes, and at least as large as the widest job.
    """
    work = sum(job.cores * (job.elapsed_s or 0.0) for job in jobs)
    cores = round(work / (jobs[-1].submitted_s - jobs[0].submitted_s) / load)
    return SimulatedCluster((SimulatedNode("pool", max(cores, *(job.cores for job in jobs))),))


_ENDED, _CAME = 0, 1


def simulate_queue(jobs: Sequence[AccountedJob], load: float) -> tuple[list[AccountedJob], dict[str, float]]:
    """Return the jobs with their waits on a cluster under an offered load, and the scheduler's forecasts by id.

    The queue is first come, first served with EASY backfill by requested limits. A forecast assumes that no job comes
    later and that all jobs take their whole limits, as ``sbatch --test-only`` does.
    """
    queue = EasyQueue(loaded_cluster(jobs, load))
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
            job, ask = jobs[place], NodeRequest(1, jobs[place].cores)
            limit_s = job.walltime_s or job.elapsed_s or 1.0
            start_s = queue.forecast_s(ask, limit_s, now_s)
            if start_s is not None:
                forecasts[job.id] = start_s - now_s
            queue.submit(place, ask, limit_s)
        for started in queue.start(now_s):
            place = int(str(started.key))
            needs_s = jobs[place].elapsed_s or 0.0
            done[place] = replace(jobs[place], started_s=now_s, ended_s=now_s + needs_s, state=JobState.COMPLETED)
            heapq.heappush(events, (now_s + needs_s, _ENDED, place))
    return done, forecasts
