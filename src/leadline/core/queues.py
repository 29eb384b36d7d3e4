"""A job as a site's accounting, or a published trace, tells of it."""

import math
from dataclasses import dataclass

from leadline.core.estimate import Interval
from leadline.core.jobs import JobState


@dataclass(frozen=True, slots=True)
class AccountedJob:
    """One job of anybody's; what is not told is ``None``, and a user's name may be a pseudonym.

    Times are seconds since the epoch. ``eligible_s`` is when the job could have started (a dependency met, a begin
    time reached); ``walltime_s`` is what was asked for, and ``cores``, ``gpus`` and ``memory_bytes`` are of all nodes.
    """

    id: str
    submitted_s: float
    started_s: float | None = None
    ended_s: float | None = None
    eligible_s: float | None = None
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
    walltime_s: float | None = None

    @property
    def wait_s(self) -> float | None:
        """How long it waited since it could have started."""
        return None if self.started_s is None else max(0.0, self.started_s - (self.eligible_s or self.submitted_s))

    @property
    def elapsed_s(self) -> float | None:
        """How long it ran."""
        if self.started_s is None or self.ended_s is None:
            return None
        return max(0.0, self.ended_s - self.started_s)


IMMEDIATE_START_S = 60.0
"""A wait up to this is no wait: it is what a scheduler takes to go round."""
MIN_REMAINING_QUANTILES = 4
"""Quantiles that must lie beyond what a job has waited already, that anything is said of the rest."""
PLANNED_WAIT_SHARE, PLANNED_WAIT_LEVEL = 0.12, 0.9
"""The share of a planned wait that jobs do wait, and the level of the range from none of it to all of it.

Of the 12,528 jobs of MetaCentrum's trace, replayed with EASY backfilling and their users' limits at loads of 0.85 to
0.95, those planned to wait more than a minute waited 0.11 to 0.14 of that in the median, 0.54 at most in 95 %, and
longer than planned in 1 %. There nobody overtakes by priority, so that the range is left wider than that.
"""


@dataclass(frozen=True, slots=True)
class QueueWait:
    """What is foretold of a wait in seconds, before the job is submitted.

    ``at_once`` is the probability of a wait of at most ``IMMEDIATE_START_S``. ``quantiles_s`` are n quantiles at the levels
    (i + ½) ÷ n, ascending, from which the whole distribution can be told. ``as_of_s`` is the moment (seconds since the
    epoch) of the queue that was looked at.
    """

    wait_s: Interval
    at_once: float
    quantiles_s: tuple[float, ...]
    as_of_s: float
    reasons: tuple[str, ...] = ()

    def remaining_s(self, waited_s: float) -> Interval | None:
        """Return how much longer a job waits that has waited so long already, with the level of ``wait_s``.

        It is the foretold distribution without the waits that are over. ``None`` where hardly any is left: that job
        has waited longer than could be foretold, and nothing is known of the rest.
        """
        left = [one - waited_s for one in self.quantiles_s if one > waited_s]
        if len(left) < MIN_REMAINING_QUANTILES:
            return None
        tail = (1 - self.wait_s.level) / 2
        low, point, high = (left[min(len(left) - 1, math.floor(level * len(left)))] for level in (tail, 0.5, 1 - tail))
        return Interval(point, low, high, self.wait_s.level)


def wait_from_plan(wait_s: float) -> Interval:
    """Return what a wait in seconds, as a scheduler's own plan has it, will be.

    A plan takes every job for as long as its limit, which few use up. Where the accounting can be read, ``QueueWait``
    knows better.
    """
    return Interval(PLANNED_WAIT_SHARE * wait_s, 0.0, wait_s, PLANNED_WAIT_LEVEL)
