"""How long a job will wait in a queue before it starts."""

import math
from dataclasses import dataclass

from leadline.core.estimate import Interval

AT_ONCE_S = 60.0
"""A wait up to this is no wait: it is what a scheduler takes to go round."""
FEWEST_LEFT = 4
"""Quantiles that must lie beyond what a job has waited already, that anything is said of the rest."""
PLAN_LEVEL = 0.9
"""Probability that is given to the range around a scheduler's own plan."""


@dataclass(frozen=True, slots=True)
class QueueWait:
    """What is foretold of a wait in seconds, before the job is submitted.

    ``at_once`` is the probability of a wait of at most ``AT_ONCE_S``. ``quantiles_s`` are n quantiles at the levels
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
        if len(left) < FEWEST_LEFT:
            return None
        tail = (1 - self.wait_s.level) / 2
        low, point, high = (left[min(len(left) - 1, math.floor(level * len(left)))] for level in (tail, 0.5, 1 - tail))
        return Interval(point, low, high, self.wait_s.level)


def planned_wait(wait_s: float) -> Interval:
    """Return the wait that a scheduler's own plan tells, in seconds, with how far it may be off.

    A plan takes every job for as long as its limit, which most do not use up, so that the wait may shrink to nothing;
    jobs of higher priority that come later push it back, and it is taken to double at the most. Nothing is learned
    here: where the accounting can be read, ``QueueWait`` knows better.
    """
    return Interval(wait_s, 0.0, 2.0 * wait_s, PLAN_LEVEL)
