"""Queues: jobs of other users in the accounting, and the predicted wait of a job."""

import math

from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState


class AccountedJob(Frozen):
    """A job in a site's accounting or a published trace; unknown fields are ``None``, and users may be pseudonyms.

    Times are seconds since the epoch. Cores, GPUs and memory are totals over all nodes.
    """

    id: str
    submitted_s: float
    started_s: float | None = None
    ended_s: float | None = None
    eligible_s: float | None = None  # the earliest possible start, after dependencies and the begin time
    state: JobState = JobState.UNKNOWN
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    name: str = ""
    nodes: int = 1
    cores: int = 1
    gpus: int = 0
    memory_bytes: int | None = None
    walltime_s: float | None = None  # the requested limit

    @property
    def wait_s(self) -> float | None:
        """Seconds from eligibility to start; ``None`` if the job has not started."""
        return None if self.started_s is None else max(0.0, self.started_s - (self.eligible_s or self.submitted_s))

    @property
    def elapsed_s(self) -> float | None:
        """Seconds from start to end; ``None`` if either is unknown."""
        if self.started_s is None or self.ended_s is None:
            return None
        return max(0.0, self.ended_s - self.started_s)


IMMEDIATE_START_S = 60.0  # longest wait that counts as none: one pass of the scheduler
MIN_REMAINING_QUANTILES = 4  # fewest quantiles above the elapsed wait from which the remaining wait is predicted
PLANNED_WAIT_SHARE, PLANNED_WAIT_LEVEL = 0.12, 0.9
"""Median share of a planned wait that jobs actually wait, and the level of the range from none of it to all of it.

The source is 12,528 jobs of the MetaCentrum trace, replayed with EASY backfilling and the users' limits at loads of
0.85 to 0.95. Jobs planned to wait over a minute waited a median 0.11 to 0.14 of the plan. 95 % waited at most 0.54 of
it, and 1 % longer than planned. The replay has no priorities, so the range here is wider."""


class QueueWait(Frozen):
    """The predicted wait of a job, in seconds, before its submission."""

    wait_s: Interval
    at_once: float  # probability of a wait of at most `IMMEDIATE_START_S`
    quantiles_s: tuple[float, ...]  # N ascending quantiles at the levels (i + ½) ÷ n, the whole distribution
    as_of_s: float  # time of the queue snapshot, in seconds since the epoch
    reasons: tuple[str, ...] = ()

    def remaining_s(self, waited_s: float) -> Interval | None:
        """Return the remaining wait after a wait of ``waited_s``, at the level of ``wait_s``."""
        # The predicted distribution is conditioned on exceeding the elapsed wait. Once hardly any of it is left, the
        # answer is `None`: the job has outlasted the prediction.
        remaining = [quantile - waited_s for quantile in self.quantiles_s if quantile > waited_s]
        if len(remaining) < MIN_REMAINING_QUANTILES:
            return None
        # Conditioning is a cut of the sorted quantiles: those that remain stay equally likely.
        tail = (1 - self.wait_s.level) / 2
        low, point, high = (
            remaining[min(len(remaining) - 1, math.floor(level * len(remaining)))] for level in (tail, 0.5, 1 - tail)
        )
        return Interval(point, low, high, self.wait_s.level)


def wait_from_plan(wait_s: float) -> Interval:
    """Return the wait to expect when the scheduler itself plans a wait in seconds."""
    # Schedulers plan with walltime limits, which few jobs use up. `QueueWait` is more accurate where the accounting
    # is readable.
    return Interval(PLANNED_WAIT_SHARE * wait_s, 0.0, wait_s, PLANNED_WAIT_LEVEL)
