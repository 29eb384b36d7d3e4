"""How long a job will wait in a queue before it starts."""

from dataclasses import dataclass

from leadline.core.estimate import Interval

AT_ONCE_S = 60.0
"""A wait up to this is no wait: it is what a scheduler takes to go round."""


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
