"""The jobs of a published trace as an accounting would tell of them, and a cluster on which their load is realistic."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.dnn.data import read
from leadline.core.accounting import AccountedJob
from leadline.core.jobs import JobState
from leadline.execution.simulated.cluster import Cluster, Node


def metacentrum(folder: Path, *, truncated: bool = True) -> tuple[AccountedJob, ...]:
    """Read MetaCentrum's jobs of 2013 in the order of their submission; those that never ran are left out.

    Some ended at their limit, where they were killed: what they would have needed is not known. ``truncated`` takes
    them to need what they were given, as is usual with such traces; else they need what was recorded, a little more.

    Raises:
        InvalidInput: the folder lacks the table.
        MissingExtra: pyarrow is not installed.
    """
    table = read(folder, "metacentrum_jobs", ("job", "submit", "wait", "run", "procs_req", "time_req", "user", "extra"))
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
    return tuple(sorted(jobs, key=lambda one: one.submitted_s))


def cluster_of(jobs: Sequence[AccountedJob], load: float) -> Cluster:
    """Return a cluster on which jobs make an offered load: what they need ÷ what it has between their submissions.

    It is one pool of cores, for the trace does not tell its nodes apart, and has those of the widest job at least.
    """
    work = sum(job.cores * (job.elapsed_s or 0.0) for job in jobs)
    cores = round(work / (jobs[-1].submitted_s - jobs[0].submitted_s) / load)
    return Cluster((Node("pool", max(cores, *(job.cores for job in jobs))),))
