"""What a replay was worth to those who waited, and to the site."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from leadline.core.accounting import AccountedJob
from leadline.core.errors import InvalidInput
from leadline.execution.simulated.replay import Attempt

TAU_S = 10.0
"""Jobs shorter than this count as that long in the slowdown (Feitelson et al., "Parallel job scheduling", 1997)."""


@dataclass(frozen=True, slots=True)
class Scores:
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


def score(
    jobs: Sequence[AccountedJob], attempts: Sequence[Attempt], cores: int, *, scored: Sequence[int] | None = None
) -> Scores:
    """Score the attempts of a replay on ``cores`` cores, by all jobs or by those whose positions are ``scored``.

    Raises:
        InvalidInput: there is no job to score.
    """
    scored = range(len(jobs)) if scored is None else scored
    if not scored:
        raise InvalidInput("there is no job to score: name at least one")
    by_job: dict[int, list[Attempt]] = defaultdict(list)
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
    return Scores(
        len(scored), wait_s / len(scored), slowdown / len(scored), killed / len(scored), unused / needed,
        lost / needed, _utilisation(jobs, attempts, cores, min(came_s), max(came_s)),
        max(by_job[index][-1].ended_s for index in scored) - min(came_s),
    )  # fmt: skip


def _utilisation(
    jobs: Sequence[AccountedJob], attempts: Sequence[Attempt], cores: int, begin_s: float, stop_s: float
) -> float:
    if stop_s <= begin_s:
        return 0.0
    busy = sum(
        jobs[one.job].cores * max(0.0, min(one.ended_s, stop_s) - max(one.started_s, begin_s))
        for one in attempts
        if not one.killed
    )
    return busy / (cores * (stop_s - begin_s))
