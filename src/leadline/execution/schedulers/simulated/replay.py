"""Replay the jobs of an accounting on a simulated cluster: what would have become of them had they asked otherwise."""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol

from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobState
from leadline.core.queues import AccountedJob
from leadline.execution.schedulers.simulated.cluster import EasyQueue, NodeRequest, RunningJob, SimulatedCluster


@dataclass(frozen=True, slots=True)
class LimitRequest:
    """The limit of an attempt, at which it is killed, and how long the scheduler takes it to run, in seconds.

    With ``least_s`` the scheduler may lower both to what is left before others are to start, but no further.
    """

    limit_s: float
    expected_s: float
    least_s: float | None = None


class RequestPolicy(Protocol):
    """Says what jobs ask for; it is told of a job what is known at its submission, and the rest when it has ended."""

    def ask(self, job: AccountedJob, killed_at_s: Sequence[float]) -> LimitRequest:
        """Return what to ask for a job that was killed at these limits before; ``walltime_s`` is its user's request."""

    def expect_anew(self, job: AccountedJob, ran_s: float, limit_s: float) -> float:
        """Return how long a job that has outrun what was expected is expected to run in all, up to its limit."""

    def ended(self, job: AccountedJob) -> None:
        """Learn of an attempt that ended, in its state; a killed one tells no more than that it needed longer."""


@dataclass(frozen=True, slots=True)
class ReplayedAttempt:
    """One run of the ``job``-th of the replayed jobs; times are in the trace's seconds."""

    job: int
    submitted_s: float
    started_s: float
    ended_s: float
    limit_s: float
    killed: bool


class _Event(IntEnum):
    """What happens at one moment, in this order: what ends is known to those that come."""

    ENDED = 0
    OUTRAN = 1
    SUBMITTED = 2


MAX_ATTEMPTS = 60
"""A way of asking under which a job is killed so often never asks for enough."""


def replay(
    jobs: Sequence[AccountedJob], cluster: SimulatedCluster, policy: RequestPolicy, *, backfills: bool = True
) -> list[ReplayedAttempt]:
    """Run all jobs to their ends and return their attempts in the order in which they ended.

    A job needs its ``elapsed_s``, comes when it came, and is submitted anew as soon as it was killed at its limit.
    Whoever asks sees of the trace only what the replay itself has brought about by then. The partition that a job
    names is taken where the cluster has it.

    Raises:
        InvalidInput: a job has no measured time, or is killed again and again.
        NothingFits: a job is larger than the cluster.
    """
    return _Replay(jobs, cluster, policy, backfills=backfills).run()


class _Replay:
    def __init__(
        self, jobs: Sequence[AccountedJob], cluster: SimulatedCluster, asking: RequestPolicy, *, backfills: bool
    ) -> None:
        self.jobs, self.asking = jobs, asking
        self.needs_s = [_need_s(job) for job in jobs]
        self.asks = [_ask(job, cluster) for job in jobs]
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
            while self.events and self.events[0][0] == now_s:
                _, event, _, index = heapq.heappop(self.events)
                handle[event](index, now_s)
            for started in self.queue.start(now_s):
                self._start(started, now_s)
        return self.attempts

    def _submit(self, index: int, now_s: float) -> None:
        killed = self.killed_at_s[index]
        if len(killed) > MAX_ATTEMPTS:
            raise InvalidInput(f"job {self.jobs[index].id} was killed {len(killed)} times: ask for more after a kill")
        seen = replace(
            self.jobs[index], submitted_s=now_s, eligible_s=None, started_s=None, ended_s=None, state=JobState.PENDING
        )
        asked = self.asking.ask(seen, killed)
        self.live[index] = seen, asked
        self.queue.submit(index, self.asks[index], asked.expected_s, least_s=asked.least_s)

    def _start(self, started: RunningJob, now_s: float) -> None:
        index: int = started.key  # type: ignore[assignment]  # the keys here are indices
        seen, asked = self.live[index]
        if asked.least_s is not None:
            given_s = min(asked.limit_s, started.until_s - now_s)
            asked = LimitRequest(given_s, given_s)
        self.live[index] = replace(seen, started_s=now_s, state=JobState.RUNNING), asked
        ran_s = min(self.needs_s[index], asked.limit_s)
        self._push(now_s + ran_s, _Event.ENDED, index)
        if asked.expected_s < ran_s:
            self._push(now_s + asked.expected_s, _Event.OUTRAN, index)

    def _outrun(self, index: int, now_s: float) -> None:
        if index not in self.live or self.live[index][0].started_s is None:
            return  # it ended at this very moment
        seen, asked = self.live[index]
        started_s = seen.started_s or 0.0
        expected_s = self.asking.expect_anew(seen, now_s - started_s, asked.limit_s)
        if expected_s <= now_s - started_s:
            raise InvalidInput(f"job {seen.id} ran for {now_s - started_s:g} s: expect more than that of it")
        self.queue.change(index, expected_s)
        if expected_s < min(self.needs_s[index], asked.limit_s):
            self._push(started_s + expected_s, _Event.OUTRAN, index)

    def _end(self, index: int, now_s: float) -> None:
        seen, asked = self.live.pop(index)
        killed = self.needs_s[index] > asked.limit_s
        self.queue.remove(index)
        self.attempts.append(
            ReplayedAttempt(index, seen.submitted_s, seen.started_s or 0.0, now_s, asked.limit_s, killed)
        )
        state = JobState.TIMEOUT if killed else JobState.COMPLETED
        self.asking.ended(replace(seen, ended_s=now_s, state=state))
        if killed:
            self.killed_at_s[index].append(asked.limit_s)
            self._push(now_s, _Event.SUBMITTED, index)

    def _push(self, at_s: float, event: _Event, index: int) -> None:
        self.pushed += 1
        heapq.heappush(self.events, (at_s, event, self.pushed, index))


def _need_s(job: AccountedJob) -> float:
    need_s = job.elapsed_s
    if not need_s:
        raise InvalidInput(f"job {job.id} has no measured time: leave out what did not run")
    return need_s


def _ask(job: AccountedJob, cluster: SimulatedCluster) -> NodeRequest:
    names = {one.name for one in cluster.partitions}
    return NodeRequest(
        job.nodes, -(-job.cores // job.nodes), -(-job.gpus // job.nodes), -(-(job.memory_bytes or 0) // job.nodes),
        job.partition if job.partition in names else "",
    )  # fmt: skip


TAU_S = 10.0
"""Jobs shorter than this count as that long in the slowdown (Feitelson et al., "Parallel job scheduling", 1997)."""


@dataclass(frozen=True, slots=True)
class ReplayScores:
    """Means over jobs, and shares.

    ``wait_s`` is what all attempts of a job waited in the queue; ``slowdown`` is the bounded one, max(1, (time from the
    submission to the end) ÷ max(need, 10 s)), lost attempts included. ``killed`` is the share of jobs that were killed
    at least once. ``unused`` is what was asked for beyond what the last attempts ran, ``lost`` what killed attempts
    ran, both in core-seconds ÷ those that the jobs needed. ``utilisation`` is the share of all cores that ran what was
    needed, whoever's, from the first submission to the last; ``makespan_s`` lasts from the first to the last end.
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
        """What was asked for in vain, unused or lost, ÷ what was needed."""
        return self.unused + self.lost


def score_replay(
    jobs: Sequence[AccountedJob],
    attempts: Sequence[ReplayedAttempt],
    cores: int,
    *,
    scored: Sequence[int] | None = None,
) -> ReplayScores:
    """Score the attempts of a replay on ``cores`` cores, by all jobs or by those whose positions are ``scored``.

    Raises:
        InvalidInput: there is no job to score.
    """
    scored = range(len(jobs)) if scored is None else scored
    if not scored:
        raise InvalidInput("there is no job to score: name at least one")
    by_job: dict[int, list[ReplayedAttempt]] = defaultdict(list)
    for one in attempts:
        by_job[one.job].append(one)
    wait_s = slowdown = killed = unused = lost = needed = 0.0
    for index in scored:
        own, core_count, need_s = by_job[index], jobs[index].cores, jobs[index].elapsed_s or 0.0
        last = own[-1]
        wait_s += sum(one.started_s - one.submitted_s for one in own)
        slowdown += max(1.0, (last.ended_s - jobs[index].submitted_s) / max(need_s, TAU_S))
        killed += len(own) > 1
        unused += core_count * (last.limit_s - (last.ended_s - last.started_s))
        lost += core_count * sum(one.ended_s - one.started_s for one in own[:-1])
        needed += core_count * need_s
    came_s = [jobs[index].submitted_s for index in scored]
    return ReplayScores(
        len(scored), wait_s / len(scored), slowdown / len(scored), killed / len(scored), unused / needed,
        lost / needed, _utilisation(jobs, attempts, cores, min(came_s), max(came_s)),
        max(by_job[index][-1].ended_s for index in scored) - min(came_s),
    )  # fmt: skip


def _utilisation(
    jobs: Sequence[AccountedJob], attempts: Sequence[ReplayedAttempt], cores: int, begin_s: float, stop_s: float
) -> float:
    if stop_s <= begin_s:
        return 0.0
    busy = sum(
        jobs[one.job].cores * max(0.0, min(one.ended_s, stop_s) - max(one.started_s, begin_s))
        for one in attempts
        if not one.killed
    )
    return busy / (cores * (stop_s - begin_s))
