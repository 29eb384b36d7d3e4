"""Request of the next attempt, from predictions and from the lower bounds that past attempts showed."""

import math
from dataclasses import replace

from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState, ResourceSpec
from leadline.core.plane import Situation
from leadline.core.units import MIB, MINUTE_S
from leadline.uncertainty.distributions import Distribution, quantile, survival_distribution

LONGER = 4.0
"""Largest growth of a time limit at once without a prediction. All lost attempts together then take at most a third of
the last one (1/4 + 1/16 + ...). Unused time is given back.
"""
MORE = 2.0
"""The same for memory, which is held for the whole run even if unused."""
MIN_RAISE = 1.1
"""Smallest growth after a limit was hit. Runs of one job differ by about as much."""
MIN_SUCCESS_PROBABILITY = 0.25
"""Success probability from which the largest available limit is tried although it is too small."""


class Need(Frozen):
    """What a job needs of a limited quantity, its run time or the memory of a node."""

    forecast: Interval | None  # the prediction
    floor: float  # lower bound of the need
    growth: float  # largest growth at once without a prediction
    unit: int  # the request is a multiple of it
    risk: float  # accepted probability that the request is too small

    @property
    def distribution(self) -> Distribution | None:
        """The distribution of the need; None if nothing is known about it."""
        return survival_distribution(self.forecast, self.floor)

    def exceeds(self, limit: float | None) -> float:
        """Return the probability that the job needs more than a limit; 0 without a prediction or a limit."""
        return self.beyond(limit) if self.forecast is not None and limit is not None else 0.0

    def beyond(self, limit: float) -> float:
        """Return the same probability, also without a prediction."""
        distribution = self.distribution
        return distribution.above(limit) if distribution is not None else 0.0

    def needed(self) -> float | None:
        """Return the limit to request; None if unknown.

        It is at most ``growth`` times the floor or what the prediction supports. The prediction itself counts up to
        ``growth`` times its point: a vaguer one is no better than none.
        """
        distribution = self.distribution
        if distribution is None:
            return None
        predicted = 0.0
        if self.forecast is not None:
            predicted = min(quantile(self.forecast, 1 - self.risk), self.growth * max(self.forecast.point, self.floor))
        chosen = distribution.quantile(1 - self.risk)
        needed = max(predicted, min(chosen, self.growth * self.floor) if self.floor else chosen)
        return max(1, math.ceil(needed / self.unit)) * self.unit


class SituationView:
    """A situation with the quantities that every decision needs.

    Attributes:
        limit_s: the current time limit.
        requested_s: the limit of another attempt, for which a limit that was lowered from outside does not count.
        limit_bytes: the requested memory per node.
        time: the need of run time, requested in whole minutes.
        memory: the need of memory per node. Schedulers count it in MiB, so a fraction of one would be rounded down.
    """

    def __init__(self, situation: Situation) -> None:
        self.situation = situation
        self.job, self.policy, self.attempt = situation.job, situation.job.policy, situation.attempt
        self.limit_s = self.attempt.walltime_s or self.attempt.resources.walltime_s
        self.requested_s = max(self.limit_s, self.attempt.resources.walltime_s or 0.0) if self.limit_s else None
        self.limit_bytes = self.attempt.resources.memory_bytes_per_node
        self.time = Need(situation.total_s, self._outlived_s(), LONGER, MINUTE_S, self.policy.risk)
        self.memory = Need(situation.memory_bytes, self._memory_floor_bytes(), MORE, MIB, self.policy.risk)

    def _outlived_s(self) -> float:
        """Return a lower bound of the run time: this attempt's, and limits that ended earlier attempts at this place.

        The time of a resumed attempt is only a part of the whole, and other places have other nodes.
        """
        timeouts = [
            attempt.walltime_s or attempt.resources.walltime_s or 0.0
            for attempt in (self.attempt, *(() if self.policy.resumes else self.job.attempts))
            if attempt.state is JobState.TIMEOUT and attempt.place == self.attempt.place
        ]
        return max(self.situation.elapsed_s, *timeouts, 0.0)

    def _memory_floor_bytes(self) -> float:
        """Return a lower bound of the memory: the measured peak, and requests that were too small."""
        insufficient = [
            attempt.resources.memory_bytes_per_node or 0
            for attempt in (self.attempt, *self.job.attempts)
            if attempt.state is JobState.OUT_OF_MEMORY
        ]
        return max(self.situation.memory_now_bytes or 0.0, *insufficient, 0.0)

    def request(self) -> ResourceSpec:
        """Return the attempt's request, raised to the predicted need as far as the place allows."""
        request, risk = replace(self.attempt.resources, walltime_s=self.requested_s), self.policy.risk
        if not self.policy.resizes:
            return request
        needed_s, needed_bytes = self.time.needed(), self.memory.needed()
        if needed_s is not None and self.time.exceeds(request.walltime_s) > risk:
            longest_s = _capped(needed_s, self.situation.allowed_s)
            request = replace(request, walltime_s=max(longest_s, request.walltime_s or 0.0))
        if needed_bytes is not None and self.memory.exceeds(self.limit_bytes) > risk:
            largest = _capped(needed_bytes, self.situation.node_memory_bytes)
            request = replace(request, memory_bytes_per_node=math.ceil(max(largest, self.limit_bytes or 0)))
        return request


def _capped(needed: float, available: float | None) -> float:
    return needed if available is None else min(needed, available)
