"""Workloads that Hypothesis draws, and a way of asking that asks for what each job's request says."""

from dataclasses import dataclass

from hypothesis import strategies as st

from benchmarks.plane.simulated.replay import LimitRequest
from leadline.core.queues import AccountedJob

CORES = 8


@dataclass
class Given:
    """Asks for the request, and for twice the last limit after a kill."""

    def ask(self, job, killed_at_s):
        limit_s = 2 * killed_at_s[-1] if killed_at_s else job.walltime_s
        return LimitRequest(limit_s, limit_s)

    def expect_anew(self, job, ran_s, limit_s):
        return limit_s

    def ended(self, job):
        """Learn nothing."""


def job(number, submitted_s, cores, need_s, request_s, nodes=1):
    return AccountedJob(
        str(number), submitted_s, submitted_s, submitted_s + need_s, user="anne", nodes=nodes, cores=cores,
        walltime_s=request_s,
    )  # fmt: skip


@st.composite
def workloads(draw, *, exact=False, kills=False, nodes=1):
    """Draw up to 25 jobs in the order of their submission; ``nodes`` is the most that one spans."""
    jobs, now_s = [], 0.0
    for number in range(draw(st.integers(1, 25))):
        now_s += draw(st.integers(0, 20))
        need_s = draw(st.integers(1, 60))
        request_s = need_s if exact else need_s + draw(st.integers(-need_s // 2 if kills else 0, 60))
        wide = draw(st.integers(1, nodes))
        jobs.append(
            job(number, now_s, wide * draw(st.integers(1, CORES)), float(need_s), float(max(1, request_s)), wide)
        )
    return jobs
