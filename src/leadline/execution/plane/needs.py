"""Request of the next attempt, from predictions and from the lower bounds that past attempts showed."""

import math
from dataclasses import dataclass, replace
from typing import Protocol

from leadline.core.estimate import Interval
from leadline.core.jobs import JobState, ResourceSpec
from leadline.core.plane import Attempt, Job, Policy, Situation
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


class Sizing(Protocol):
    """Chooses a limit for a quantity with a known distribution."""

    def __call__(self, distribution: Distribution, risk: float) -> float:
        """Return a limit that is exceeded with a probability of at most ``risk``."""


def limit_by_risk(distribution: Distribution, risk: float) -> float:
    """Return the smallest limit that the risk allows."""
    return distribution.quantile(1 - risk)


@dataclass(frozen=True, slots=True)
class SituationView:
    """A situation with the quantities that every decision needs."""

    situation: Situation
    sizing: Sizing = limit_by_risk

    @property
    def job(self) -> Job:
        """The job."""
        return self.situation.job

    @property
    def policy(self) -> Policy:
        """The job's policy."""
        return self.situation.job.policy

    @property
    def attempt(self) -> Attempt:
        """The attempt to decide about."""
        return self.situation.attempt

    @property
    def limit_s(self) -> float | None:
        """The current time limit."""
        return self.attempt.walltime_s or self.attempt.resources.walltime_s

    @property
    def outlived_s(self) -> float:
        """Lower bound of the run time: this attempt's time, and limits that ended earlier attempts at this place.

        The time of a resumed attempt is only a part of the whole, and other places have other nodes.
        """
        attempts = (self.attempt, *(() if self.policy.resumes else self.job.attempts))
        timeouts = [
            attempt for attempt in attempts if attempt.state is JobState.TIMEOUT and attempt.place == self.attempt.place
        ]
        return max(
            self.situation.elapsed_s,
            *(attempt.walltime_s or attempt.resources.walltime_s or 0.0 for attempt in timeouts),
            0.0,
        )

    @property
    def memory_floor_bytes(self) -> float:
        """Lower bound of the memory need: the measured peak, and requests that were too small."""
        insufficient = [
            attempt.resources
            for attempt in (self.attempt, *self.job.attempts)
            if attempt.state is JobState.OUT_OF_MEMORY
        ]
        return max(
            self.situation.memory_now_bytes or 0.0,
            *(request.memory_bytes_per_node or 0 for request in insufficient),
            0.0,
        )

    def time(self) -> Distribution | None:
        """Return the distribution of the whole run time."""
        return survival_distribution(self.situation.total_s, self.outlived_s)

    def memory(self) -> Distribution | None:
        """Return the distribution of the memory peak."""
        return survival_distribution(self.situation.memory_bytes, self.memory_floor_bytes)

    def late(self, limit_s: float | None) -> float:
        """Return the probability that the job outlasts a limit; 0 without a prediction or a limit."""
        return _exceeds(self.situation.total_s, self.outlived_s, limit_s)

    def short_of_memory(self, memory_bytes: float | None) -> float:
        """Return the probability that the job needs more memory; 0 without a prediction or a limit."""
        return _exceeds(self.situation.memory_bytes, self.memory_floor_bytes, memory_bytes)

    def time_beyond(self, limit_s: float) -> float:
        """Return the probability that the job outlasts a limit, also without a prediction."""
        run_time = self.time()
        return run_time.above(limit_s) if run_time is not None else 0.0

    def memory_beyond(self, memory_bytes: float) -> float:
        """Return the probability that the job needs more memory, also without a prediction."""
        peak = self.memory()
        return peak.above(memory_bytes) if peak is not None else 0.0

    def needed_s(self) -> float | None:
        """Return the time limit to request, in whole minutes; None if unknown."""
        run_time = self.time()
        if run_time is None:
            return None
        needed = _needed(run_time, self.situation.total_s, self.outlived_s, self.policy.risk, LONGER, self.sizing)
        return max(1, math.ceil(needed / MINUTE_S)) * MINUTE_S

    def needed_bytes(self) -> float | None:
        """Return the memory per node to request, in whole MiB; None if unknown."""
        peak = self.memory()
        if peak is None:
            return None
        floor, forecast = self.memory_floor_bytes, self.situation.memory_bytes
        # Schedulers count memory in MiB, so a fraction would be rounded down.
        return math.ceil(_needed(peak, forecast, floor, self.policy.risk, MORE, self.sizing) / MIB) * MIB

    def request(self) -> ResourceSpec:
        """Return the attempt's request, raised to the predicted need as far as the place allows."""
        request, risk = replace(self.attempt.resources, walltime_s=self.limit_s), self.policy.risk
        if not self.policy.resizes:
            return request
        needed_s, needed_bytes = self.needed_s(), self.needed_bytes()
        if needed_s is not None and self.late(request.walltime_s) > risk:
            request = replace(
                request, walltime_s=max(_capped(needed_s, self.situation.allowed_s), request.walltime_s or 0.0)
            )
        if needed_bytes is not None and self.short_of_memory(request.memory_bytes_per_node) > risk:
            largest = _capped(needed_bytes, self.situation.node_memory_bytes)
            request = replace(
                request, memory_bytes_per_node=math.ceil(max(largest, request.memory_bytes_per_node or 0))
            )
        return request


def _exceeds(forecast: Interval | None, floor: float, limit: float | None) -> float:
    distribution = survival_distribution(forecast, floor)
    return distribution.above(limit) if forecast is not None and distribution is not None and limit is not None else 0.0


def _needed(
    distribution: Distribution, forecast: Interval | None, floor: float, risk: float, growth: float, sizing: Sizing
) -> float:
    """Return the limit by ``sizing``, at most ``growth`` times the floor or what the prediction supports.

    The prediction itself counts up to ``growth`` times its point: a vaguer one is no better than none.
    """
    predicted = 0.0
    if forecast is not None:
        predicted = min(quantile(forecast, 1 - risk), growth * max(forecast.point, floor))
    chosen = sizing(distribution, risk)
    return max(predicted, min(chosen, growth * floor) if floor else chosen)


def _capped(needed: float, available: float | None) -> float:
    return needed if available is None else min(needed, available)
