"""Replay accounted jobs on a simulated cluster with other requests, and score the result."""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol

from benchmarks.plane.simulated.cluster import EasyQueue, NodeRequest, RunningJob, SimulatedCluster
from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobState
from leadline.core.queues import AccountedJob


@dataclass(frozen=True, slots=True)
class LimitRequest:
    """The limit of an attempt, at which it is killed, and the run time that the scheduler expects, in seconds.

    With ``least_s`` the scheduler may lower both, down to this, to start the job before others.
    """

    limit_s: float
    expected_s: float
    least_s: float | None = None


class RequestPolicy(Protocol):
    """Chooses requests. At submission it sees only the data known then, and the rest when a job has ended."""

    def ask(self, job: AccountedJob, killed_at_s: Sequence[float]) -> LimitRequest:
        """Return the request for a job that was killed at these limits before; ``walltime_s`` is its user's request."""

    def expect_anew(self, job: AccountedJob, ran_s: float, limit_s: float) -> float:
        """Return the new expected run time of a job that outran the old one, up to its limit."""

    def ended(self, job: AccountedJob) -> None:
        """Learn from an ended attempt; a killed one only shows that it needed longer."""


@dataclass(frozen=True, slots=True)
class ReplayedAttempt:
    """One run of the ``job``-th replayed job; times are seconds of the trace."""

    job: int
    submitted_s: float
    started_s: float
    ended_s: float
    limit_s: float
    killed: bool


class _Event(IntEnum):
    """Events at one time, in this order: ends are known to later submissions."""

    ENDED = 0
    OUTRAN = 1
    SUBMITTED = 2


MAX_ATTEMPTS = 60
"""A policy under which a job is killed this often never requests enough."""


def replay(
    jobs: Sequence[AccountedJob], cluster: SimulatedCluster, policy: RequestPolicy, *, backfills: bool = True
) -> list[ReplayedAttempt]:
    """Run all jobs to their ends and return their attempts in the order in which they ended.

    A job needs its ``elapsed_s``, arrives at its submission time, and is resubmitted as soon as it was killed at its
    limit. The policy sees only the part of the trace that the replay has produced by then. A job's partition is used if
    the cluster has it.

    Raises:
        InvalidInput: a job has no measured time, or is killed again and again.
        NothingFits: a job is larger than the cluster.
    """
    return _Replay(jobs, cluster, policy, backfills=backfills).run()


class _Replay:
    def __init__(
        self, jobs: Sequence[AccountedJob], cluster: SimulatedCluster, policy: RequestPolicy, *, backfills: bool
    ) -> None:
        self.jobs, self.policy = jobs, policy
        self.needs_s = [_need_s(job) for job in jobs]
        self.requests = [_node_request(job, cluster) for job in jobs]
        self.queue = EasyQueue(cluster, backfills=backfills)
        self.killed_at_s: list[list[float]] = [[] for _ in jobs]
        self.live: dict[int, tuple[AccountedJob, LimitRequest]] = {}
        self.attempts: list[ReplayedAttempt] = []
        self.events: list[tuple[float, _Event, int, int]] = []
        self.pushed = 0
        for index, job in enumerate(jobs):
            self._push(job.submitted_s, _Event.SUBMITTED, index)

    def run(self) -> list[ReplayedAttempt]:
        handle = {_Event.ENDED: self._end, _Event.OUTRAN: self._outrun, _Event.SUBMITTED: self._submit}
        while self.events:
            now_s = self.events[0][0]
            # All events of one time come first, so that a start sees every node that is freed.
            while self.events and self.events[0][0] == now_s:
                _, event, _, index = heapq.heappop(self.events)
                handle[event](index, now_s)
            for started in self.queue.start(now_s):
                self._start(started, now_s)
        return self.attempts

    def _submit(self, index: int, now_s: float) -> None:
        killed = self.killed_at_s[index]
        if len(killed) > MAX_ATTEMPTS:
            raise InvalidInput(f"job {self.jobs[index].id} was killed {len(killed)} times: request more after a kill")
        # The policy must not see the future of the trace.
        visible = replace(
            self.jobs[index], submitted_s=now_s, eligible_s=None, started_s=None, ended_s=None, state=JobState.PENDING
        )
        limits = self.policy.ask(visible, killed)
        self.live[index] = visible, limits
        self.queue.submit(index, self.requests[index], limits.expected_s, least_s=limits.least_s)

    def _start(self, started: RunningJob, now_s: float) -> None:
        index: int = started.key  # type: ignore[assignment]  # the keys here are indices
        visible, limits = self.live[index]
        if limits.least_s is not None:
            granted_s = min(limits.limit_s, started.until_s - now_s)
            limits = LimitRequest(granted_s, granted_s)
        self.live[index] = replace(visible, started_s=now_s, state=JobState.RUNNING), limits
        ran_s = min(self.needs_s[index], limits.limit_s)
        self._push(now_s + ran_s, _Event.ENDED, index)
        if limits.expected_s < ran_s:
            self._push(now_s + limits.expected_s, _Event.OUTRAN, index)

    def _outrun(self, index: int, now_s: float) -> None:
        # The job may have ended at this very time.
        if index not in self.live or self.live[index][0].started_s is None:
            return
        visible, limits = self.live[index]
        started_s = visible.started_s or 0.0
        expected_s = self.policy.expect_anew(visible, now_s - started_s, limits.limit_s)
        if expected_s <= now_s - started_s:
            raise InvalidInput(f"job {visible.id} ran for {now_s - started_s:g} s: expect more than that of it")
        self.queue.change(index, expected_s)
        if expected_s < min(self.needs_s[index], limits.limit_s):
            self._push(started_s + expected_s, _Event.OUTRAN, index)

    def _end(self, index: int, now_s: float) -> None:
        visible, limits = self.live.pop(index)
        killed = self.needs_s[index] > limits.limit_s
        self.queue.remove(index)
        self.attempts.append(
            ReplayedAttempt(index, visible.submitted_s, visible.started_s or 0.0, now_s, limits.limit_s, killed)
        )
        state = JobState.TIMEOUT if killed else JobState.COMPLETED
        self.policy.ended(replace(visible, ended_s=now_s, state=state))
        if killed:
            self.killed_at_s[index].append(limits.limit_s)
            self._push(now_s, _Event.SUBMITTED, index)

    def _push(self, at_s: float, event: _Event, index: int) -> None:
        self.pushed += 1
        heapq.heappush(self.events, (at_s, event, self.pushed, index))


def _need_s(job: AccountedJob) -> float:
    need_s = job.elapsed_s
    if not need_s:
        raise InvalidInput(f"job {job.id} has no measured time: leave out what did not run")
    return need_s


def _node_request(job: AccountedJob, cluster: SimulatedCluster) -> NodeRequest:
    names = {partition.name for partition in cluster.partitions}
    return NodeRequest(
        job.nodes, -(-job.cores // job.nodes), -(-job.gpus // job.nodes), -(-(job.memory_bytes or 0) // job.nodes),
        job.partition if job.partition in names else "",
    )  # fmt: skip


TAU_S = 10.0
"""Shorter jobs count as this long in the slowdown (Feitelson et al., "Parallel job scheduling", 1997)."""


@dataclass(frozen=True, slots=True)
class ReplayScores:
    """Means over jobs, and shares.

    Attributes:
        wait_s: time that all attempts of a job waited.
        slowdown: bounded slowdown, max(1, (end - submission) / max(need, 10 s)), including lost attempts.
        killed: share of jobs that were killed at least once.
        unused: requested time after the end of the last attempts, in core-seconds / needed core-seconds.
        lost: time of killed attempts, in the same unit.
        utilisation: share of all cores that ran needed work of any job, from the first submission to the last.
        makespan_s: time from the first submission to the last end.
    """

    jobs: int
    wait_s: float
    slowdown: float
    killed: float
    unused: float
    lost: float
    utilisation: float
    makespan_s: float

    @property
    def waste(self) -> float:
        """Unused and lost time / needed time."""
        return self.unused + self.lost


def score_replay(
    jobs: Sequence[AccountedJob],
    attempts: Sequence[ReplayedAttempt],
    cores: int,
    *,
    scored: Sequence[int] | None = None,
) -> ReplayScores:
    """Score a replay on ``cores`` cores, over all jobs or over the positions in ``scored``.

    Raises:
        InvalidInput: there is no job to score.
    """
    scored = range(len(jobs)) if scored is None else scored
    if not scored:
        raise InvalidInput("there is no job to score: select at least one")
    by_job: dict[int, list[ReplayedAttempt]] = defaultdict(list)
    for attempt in attempts:
        by_job[attempt.job].append(attempt)
    wait_s = slowdown = killed = unused = lost = needed = 0.0
    for index in scored:
        job_attempts, core_count, need_s = by_job[index], jobs[index].cores, jobs[index].elapsed_s or 0.0
        last = job_attempts[-1]
        wait_s += sum(attempt.started_s - attempt.submitted_s for attempt in job_attempts)
        slowdown += max(1.0, (last.ended_s - jobs[index].submitted_s) / max(need_s, TAU_S))
        killed += len(job_attempts) > 1
        unused += core_count * (last.limit_s - (last.ended_s - last.started_s))
        lost += core_count * sum(attempt.ended_s - attempt.started_s for attempt in job_attempts[:-1])
        needed += core_count * need_s
    arrivals_s = [jobs[index].submitted_s for index in scored]
    return ReplayScores(
        len(scored), wait_s / len(scored), slowdown / len(scored), killed / len(scored), unused / needed,
        lost / needed, _utilisation(jobs, attempts, cores, min(arrivals_s), max(arrivals_s)),
        max(by_job[index][-1].ended_s for index in scored) - min(arrivals_s),
    )  # fmt: skip


def _utilisation(
    jobs: Sequence[AccountedJob], attempts: Sequence[ReplayedAttempt], cores: int, begin_s: float, stop_s: float
) -> float:
    if stop_s <= begin_s:
        return 0.0
    busy = sum(
        jobs[attempt.job].cores * max(0.0, min(attempt.ended_s, stop_s) - max(attempt.started_s, begin_s))
        for attempt in attempts
        if not attempt.killed
    )
    return busy / (cores * (stop_s - begin_s))
