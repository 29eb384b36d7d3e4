"""Ways of asking for time: as users do, by their last two jobs, by what Leadline learns, and knowing it all."""

import math
from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from enum import StrEnum

from benchmarks.plane.runtimes import RuntimeForest
from leadline.core.queues import AccountedJob
from leadline.core.recommendation import Constraints
from leadline.core.units import HOUR_S, MINUTE_S
from leadline.execution.schedulers.simulated.replay import LimitRequest, RequestPolicy
from leadline.recommendation.requests import RERUN_GROWTH, KillLoss, limit_from_distribution

STEPS_S = tuple([one * MINUTE_S for one in (1, 5, 15, 30)] + [one * HOUR_S for one in (1, 2, 5, 10, 20, 50, 100)])
"""By how much more a job is expected to run each time it outran what was expected (Tsafrir et al. 2007, table 3)."""
PACE = 0.005
"""How fast the risk that is asked for follows what became of it, as its authors took it."""
LONGER = 1.2
"""By at least so much more, of what it ran, a job is expected to run that outran what was learned of it."""


class UserRequests:
    """Ask for what the user asked for, and for half as much again after every kill."""

    def ask(self, job: AccountedJob, killed_at_s: Sequence[float]) -> LimitRequest:  # noqa: D102 - the protocol's
        limit_s = _request_s(job, killed_at_s)
        return LimitRequest(limit_s, limit_s)

    def expect_anew(self, job: AccountedJob, ran_s: float, limit_s: float) -> float:  # noqa: D102 - the protocol's
        return limit_s

    def ended(self, job: AccountedJob) -> None:
        """Learn nothing."""


class OracleRequests(UserRequests):
    """Ask for what each job will need."""

    def __init__(self, jobs: Sequence[AccountedJob]) -> None:
        self._needs_s = {job.id: job.elapsed_s or 0.0 for job in jobs}

    def ask(self, job: AccountedJob, killed_at_s: Sequence[float]) -> LimitRequest:  # noqa: D102 - the protocol's
        need_s = self._needs_s[job.id]
        return LimitRequest(need_s, need_s)


class LastTwoRuns:
    """Take the mean of the last two runs of the same user, at most the request (Tsafrir, Etsion, Feitelson 2007).

    As they did, the scheduler alone uses it, kills remain at the user's request, and who outruns it is expected to run
    a little longer, and more each time. With ``limits`` it is what users ask for instead, doubled after a kill.
    """

    def __init__(self, *, limits: bool) -> None:
        self._limits = limits
        self._last: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=2))
        self._outran: defaultdict[str, int] = defaultdict(int)

    def ask(self, job: AccountedJob, killed_at_s: Sequence[float]) -> LimitRequest:  # noqa: D102 - the protocol's
        last, request_s = self._last[job.user], _request_s(job, killed_at_s)
        foretold_s = min(request_s, sum(last) / len(last)) if last else request_s
        if not self._limits:
            return LimitRequest(request_s, max(1.0, foretold_s))
        limit_s = min(2 * killed_at_s[-1], _request_s(job, [])) if killed_at_s else foretold_s
        limit_s = _whole_minutes(limit_s, request_s)
        return LimitRequest(limit_s, limit_s)

    def expect_anew(self, job: AccountedJob, ran_s: float, limit_s: float) -> float:  # noqa: D102 - the protocol's
        step_s = STEPS_S[min(self._outran[job.id], len(STEPS_S) - 1)]
        self._outran[job.id] += 1
        return min(ran_s + step_s, limit_s)

    def ended(self, job: AccountedJob) -> None:  # noqa: D102 - the protocol's
        if not job.state.censored:
            self._last[job.user].append(job.elapsed_s or 0.0)


class ForecastUse(StrEnum):
    """What is done with a distribution of run times."""

    LIMIT = "limit"
    """The limit of least expected loss is asked for, in place of the user's request."""
    LEAST = "least"
    """The user's request is asked for, and that limit is enough if the job can start at once with it."""
    HINT = "hint"
    """The user's request remains the limit, and the scheduler alone expects the median."""


class LearnedRequests:
    """Take the run times that Leadline learns from the jobs that have ended.

    The limit of least expected loss is that for the accepted risk and the weights that hold where nobody chose others,
    never above the user's request; after a kill it is that of the runs that take longer still. So that the risk is what
    it says, the one that is asked for follows what became of those before (I. Gibbs and E. Candès, "Adaptive conformal
    inference under distribution shift", 2021); once it is used up, the user's request stands.
    """

    def __init__(self, use: ForecastUse, *, usual: Constraints | None = None) -> None:
        self._use, self._usual = use, usual or Constraints()
        self._risk = self._usual.risk
        self._runtimes = RuntimeForest()
        self._bounds_s: dict[str, float] = {}

    def ask(self, job: AccountedJob, killed_at_s: Sequence[float]) -> LimitRequest:  # noqa: D102 - the protocol's
        request_s = _request_s(job, killed_at_s)
        if not killed_at_s:
            self._runtimes.came(job)
        known = self._runtimes.of(job)
        if known is not None and killed_at_s:
            known = known.beyond(killed_at_s[-1])
        if known is None:
            return LimitRequest(request_s, request_s)
        if self._use is ForecastUse.HINT:
            return LimitRequest(request_s, min(known.median, request_s))
        if not killed_at_s:
            self._bounds_s[job.id] = known.quantile(1 - self._risk) if self._risk > 0 else math.inf
        if self._risk <= 0:
            return LimitRequest(request_s, request_s)
        limit_s = _whole_minutes(
            limit_from_distribution(known, self._risk, self._usual.weights, KillLoss.LIMIT).value, request_s
        )
        return (
            LimitRequest(request_s, request_s, limit_s)
            if self._use is ForecastUse.LEAST
            else LimitRequest(limit_s, limit_s)
        )

    def expect_anew(self, job: AccountedJob, ran_s: float, limit_s: float) -> float:  # noqa: D102 - the protocol's
        known = self._runtimes.of(job)
        longer = known.beyond(ran_s) if known is not None else None
        return min(max(longer.median, LONGER * ran_s), limit_s) if longer is not None else limit_s

    def ended(self, job: AccountedJob) -> None:  # noqa: D102 - the protocol's
        if job.state.censored:
            return
        self._runtimes.ended(job)
        if job.id in self._bounds_s:
            exceeded = (job.elapsed_s or 0.0) > self._bounds_s.pop(job.id)
            self._risk = min(0.5, self._risk + PACE * (self._usual.risk - exceeded))


class PartialRequests:
    """Let some users ask in one way, which learns from their own jobs alone, and all others for their requests."""

    def __init__(self, theirs: RequestPolicy, users: Collection[str]) -> None:
        self.users = frozenset(users)
        self._theirs, self._others = theirs, UserRequests()

    def ask(self, job: AccountedJob, killed_at_s: Sequence[float]) -> LimitRequest:  # noqa: D102 - the protocol's
        return self._of(job).ask(job, killed_at_s)

    def expect_anew(self, job: AccountedJob, ran_s: float, limit_s: float) -> float:  # noqa: D102 - the protocol's
        return self._of(job).expect_anew(job, ran_s, limit_s)

    def ended(self, job: AccountedJob) -> None:  # noqa: D102 - the protocol's
        self._of(job).ended(job)

    def _of(self, job: AccountedJob) -> RequestPolicy:
        return self._theirs if job.user in self.users else self._others


def _request_s(job: AccountedJob, killed_at_s: Sequence[float]) -> float:
    """Return the user's request, or, once that was too little, half as much again as what was."""
    request_s = job.walltime_s or 0.0
    return request_s if not killed_at_s or killed_at_s[-1] < request_s else RERUN_GROWTH * killed_at_s[-1]


def _whole_minutes(limit_s: float, most_s: float) -> float:
    """Round up to what schedulers count in, at most to the user's own request."""
    return min(most_s, max(1, math.ceil(limit_s / MINUTE_S)) * MINUTE_S)
