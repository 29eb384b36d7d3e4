"""Request rules for time: the users' own, their last two runs, Leadline's learned limits, and an oracle."""

import math
from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from enum import StrEnum

from benchmarks.plane.runtimes import RuntimeForest
from benchmarks.plane.simulated.replay import LimitRequest, RequestPolicy
from leadline.core.queues import AccountedJob
from leadline.core.recommendation import Constraints
from leadline.core.units import HOUR_S, MINUTE_S
from leadline.recommendation.requests import RERUN_GROWTH, KillLoss, cheapest_risk

STEPS_S = (*(n * MINUTE_S for n in (1, 5, 15, 30)), *(n * HOUR_S for n in (1, 2, 5, 10, 20, 50, 100)))
"""Extension of the expected time each time a job exceeds it (Tsafrir et al. 2007, table 3)."""
PACE = 0.005
"""Step size of the risk's adaptation, as in the paper."""
LONGER = 1.2
"""Least factor on the elapsed time of a job that exceeded its learned distribution."""


class UserRequests:
    """Keep the user's request; add half of it after every kill."""

    def ask(self, job: AccountedJob, killed_at_s: Sequence[float]) -> LimitRequest:  # noqa: D102 - the protocol's
        limit_s = _request_s(job, killed_at_s)
        return LimitRequest(limit_s, limit_s)

    def expect_anew(self, job: AccountedJob, ran_s: float, limit_s: float) -> float:  # noqa: D102 - the protocol's
        return limit_s

    def ended(self, job: AccountedJob) -> None:
        """Do nothing."""


class OracleRequests(UserRequests):
    """Request exactly what each job will need."""

    def __init__(self, jobs: Sequence[AccountedJob]) -> None:
        self._needs_s = {job.id: job.elapsed_s or 0.0 for job in jobs}

    def ask(self, job: AccountedJob, killed_at_s: Sequence[float]) -> LimitRequest:  # noqa: D102 - the protocol's
        need_s = self._needs_s[job.id]
        return LimitRequest(need_s, need_s)


class LastTwoRuns:
    """Predict the mean of the last two runs of the same user, at most the request (Tsafrir, Etsion, Feitelson 2007).

    As in the paper, only the scheduler uses it, and kills stay at the user's request. The prediction for a job that
    exceeds it grows in steps. With ``limits`` it replaces the user's request and is doubled after a kill.
    """

    def __init__(self, *, limits: bool) -> None:
        self._limits = limits
        self._last: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=2))
        self._outran: defaultdict[str, int] = defaultdict(int)

    def ask(self, job: AccountedJob, killed_at_s: Sequence[float]) -> LimitRequest:  # noqa: D102 - the protocol's
        last, request_s = self._last[job.user], _request_s(job, killed_at_s)
        predicted_s = min(request_s, sum(last) / len(last)) if last else request_s
        if not self._limits:
            return LimitRequest(request_s, max(1.0, predicted_s))
        limit_s = min(2 * killed_at_s[-1], _request_s(job, [])) if killed_at_s else predicted_s
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
    """The use of a distribution of run times."""

    LIMIT = "limit"
    """Request the limit of least expected loss instead of the user's."""
    LEAST = "least"
    """Keep the user's request, and accept that limit if the job can start at once with it."""
    HINT = "hint"
    """Keep the user's request as the limit; only the scheduler expects the median."""


class LearnedRequests:
    """Use the run times that Leadline learns from ended jobs.

    The limit has the least expected loss for the accepted risk and the default weights, at most the user's request.
    After a kill only longer runs count. The risk adapts to the outcomes of earlier jobs, so that it holds (I. Gibbs and
    E. Candès, "Adaptive conformal inference under distribution shift", 2021). Once it is used up, the user's request
    is kept.
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
        runtimes = self._runtimes.of(job)
        if runtimes is not None and killed_at_s:
            runtimes = runtimes.beyond(killed_at_s[-1])
        if runtimes is None:
            return LimitRequest(request_s, request_s)
        if self._use is ForecastUse.HINT:
            return LimitRequest(request_s, min(runtimes.median, request_s))
        if not killed_at_s:
            self._bounds_s[job.id] = runtimes.quantile(1 - self._risk) if self._risk > 0 else math.inf
        if self._risk <= 0:
            return LimitRequest(request_s, request_s)
        risk = min(self._risk, cheapest_risk(runtimes, self._usual.weights, KillLoss.LIMIT))
        limit_s = _whole_minutes(runtimes.quantile(1 - risk), request_s)
        return (
            LimitRequest(request_s, request_s, limit_s)
            if self._use is ForecastUse.LEAST
            else LimitRequest(limit_s, limit_s)
        )

    def expect_anew(self, job: AccountedJob, ran_s: float, limit_s: float) -> float:  # noqa: D102 - the protocol's
        runtimes = self._runtimes.of(job)
        longer = runtimes.beyond(ran_s) if runtimes is not None else None
        return min(max(longer.median, LONGER * ran_s), limit_s) if longer is not None else limit_s

    def ended(self, job: AccountedJob) -> None:  # noqa: D102 - the protocol's
        if job.state.censored:
            return
        self._runtimes.ended(job)
        if job.id in self._bounds_s:
            exceeded = (job.elapsed_s or 0.0) > self._bounds_s.pop(job.id)
            self._risk = min(0.5, self._risk + PACE * (self._usual.risk - exceeded))


class PartialRequests:
    """Apply one rule to some users, trained on their own jobs alone; all others keep their requests."""

    def __init__(self, rule: RequestPolicy, users: Collection[str]) -> None:
        self.users = frozenset(users)
        self._rule, self._default = rule, UserRequests()

    def ask(self, job: AccountedJob, killed_at_s: Sequence[float]) -> LimitRequest:  # noqa: D102 - the protocol's
        return self._of(job).ask(job, killed_at_s)

    def expect_anew(self, job: AccountedJob, ran_s: float, limit_s: float) -> float:  # noqa: D102 - the protocol's
        return self._of(job).expect_anew(job, ran_s, limit_s)

    def ended(self, job: AccountedJob) -> None:  # noqa: D102 - the protocol's
        self._of(job).ended(job)

    def _of(self, job: AccountedJob) -> RequestPolicy:
        return self._rule if job.user in self.users else self._default


def _request_s(job: AccountedJob, killed_at_s: Sequence[float]) -> float:
    """Return the user's request, or 1.5 times the time of the last kill once that was reached."""
    request_s = job.walltime_s or 0.0
    return request_s if not killed_at_s or killed_at_s[-1] < request_s else RERUN_GROWTH * killed_at_s[-1]


def _whole_minutes(limit_s: float, most_s: float) -> float:
    """Round up to whole minutes, at most to the user's request."""
    return min(most_s, max(1, math.ceil(limit_s / MINUTE_S)) * MINUTE_S)
