"""What the next attempt has to ask for, from forecasts and from what this one has outlived."""

import math
from dataclasses import dataclass, replace
from typing import Protocol

from leadline.core.estimate import Interval
from leadline.core.jobs import JobState, ResourceSpec
from leadline.core.plane import Attempt, Job, Policy, Situation
from leadline.core.units import MIB, MINUTE_S
from leadline.uncertainty.distributions import Distribution, quantile, survival_distribution

LONGER = 4.0
"""The most by which a limit grows at once where no forecast holds: then all lost attempts together take at most a
third of the last one (1/4 + 1/16 + …), and time that was asked for and not used is given back."""
MORE = 2.0
"""The same for memory, which is held for the whole run whether it is used or not."""
MIN_RAISE = 1.1
"""The least growth after a limit was hit: within less lie the differences between runs of one job."""
MIN_SUCCESS_PROBABILITY = 0.25
"""Probability of success from which on the most that is to be had is tried, though it is less than is wanted."""


class Sizing(Protocol):
    """How a limit is chosen for a quantity that is known by a distribution."""

    def __call__(self, known: Distribution, risk: float) -> float:
        """Return the limit to ask for; it is exceeded with a probability of at most ``risk``."""


def limit_by_risk(known: Distribution, risk: float) -> float:
    """Return the least limit that the risk allows."""
    return known.quantile(1 - risk)


@dataclass(frozen=True, slots=True)
class SituationView:
    """A situation with the questions that every decision asks of it."""

    situation: Situation
    sizing: Sizing = limit_by_risk

    @property
    def job(self) -> Job:
        """The job."""
        return self.situation.job

    @property
    def policy(self) -> Policy:
        """What may be done for it."""
        return self.situation.job.policy

    @property
    def attempt(self) -> Attempt:
        """The attempt that is decided on."""
        return self.situation.attempt

    @property
    def limit_s(self) -> float | None:
        """Its limit as it is now."""
        return self.attempt.walltime_s or self.attempt.resources.walltime_s

    @property
    def outlived_s(self) -> float:
        """How long it is known to last at least: this attempt's time, and limits that ended earlier ones here.

        What an attempt that resumes has lasted is not the whole, and another place has other nodes.
        """
        attempts = (self.attempt, *(() if self.policy.resumes else self.job.attempts))
        hit = [one for one in attempts if one.state is JobState.TIMEOUT and one.place == self.attempt.place]
        return max(self.situation.elapsed_s, *(one.walltime_s or one.resources.walltime_s or 0.0 for one in hit), 0.0)

    @property
    def memory_floor_bytes(self) -> float:
        """The memory that it is known to need at least: what was seen, and what attempts had that ran out of it."""
        short = [one.resources for one in (self.attempt, *self.job.attempts) if one.state is JobState.OUT_OF_MEMORY]
        return max(self.situation.memory_now_bytes or 0.0, *(one.memory_bytes_per_node or 0 for one in short), 0.0)

    def time(self) -> Distribution | None:
        """Return what is known of the whole run time."""
        return survival_distribution(self.situation.total_s, self.outlived_s)

    def memory(self) -> Distribution | None:
        """Return what is known of the peak of memory."""
        return survival_distribution(self.situation.memory_bytes, self.memory_floor_bytes)

    def late(self, limit_s: float | None) -> float:
        """Return the probability that it lasts longer than a limit; 0 where there is no forecast or no limit."""
        return _exceeds(self.situation.total_s, self.outlived_s, limit_s)

    def short_of_memory(self, memory_bytes: float | None) -> float:
        """Return the probability that it needs more memory than that; 0 where there is no forecast or no limit."""
        return _exceeds(self.situation.memory_bytes, self.memory_floor_bytes, memory_bytes)

    def time_beyond(self, limit_s: float) -> float:
        """Return the probability that it lasts longer than a limit, also where only its own past tells."""
        known = self.time()
        return known.above(limit_s) if known is not None else 0.0

    def memory_beyond(self, memory_bytes: float) -> float:
        """Return the probability that it needs more memory than that, also where only its own past tells."""
        known = self.memory()
        return known.above(memory_bytes) if known is not None else 0.0

    def needed_s(self) -> float | None:
        """Return the walltime to ask for, in whole minutes; ``None`` where nothing tells."""
        known = self.time()
        if known is None:
            return None
        needed = _needed(known, self.situation.total_s, self.outlived_s, self.policy.risk, LONGER, self.sizing)
        return max(1, math.ceil(needed / MINUTE_S)) * MINUTE_S

    def needed_bytes(self) -> float | None:
        """Return the memory a node to ask for, in whole MiB; ``None`` where nothing tells."""
        known = self.memory()
        if known is None:
            return None
        floor, forecast = self.memory_floor_bytes, self.situation.memory_bytes
        return math.ceil(_needed(known, forecast, floor, self.policy.risk, MORE, self.sizing) / MIB) * MIB

    def request(self) -> ResourceSpec:
        """Return the attempt's request, raised to what the forecasts call for as far as the place has it."""
        asked, risk = replace(self.attempt.resources, walltime_s=self.limit_s), self.policy.risk
        if not self.policy.resizes:
            return asked
        needed_s, needed_bytes = self.needed_s(), self.needed_bytes()
        if needed_s is not None and self.late(asked.walltime_s) > risk:
            asked = replace(asked, walltime_s=max(_most(needed_s, self.situation.allowed_s), asked.walltime_s or 0.0))
        if needed_bytes is not None and self.short_of_memory(asked.memory_bytes_per_node) > risk:
            most = _most(needed_bytes, self.situation.node_memory_bytes)
            asked = replace(asked, memory_bytes_per_node=math.ceil(max(most, asked.memory_bytes_per_node or 0)))
        return asked


def _exceeds(forecast: Interval | None, floor: float, limit: float | None) -> float:
    known = survival_distribution(forecast, floor)
    return known.above(limit) if forecast is not None and known is not None and limit is not None else 0.0


def _needed(
    known: Distribution, forecast: Interval | None, floor: float, risk: float, growth: float, sizing: Sizing
) -> float:
    """Return the limit by ``sizing``, but no more than ``growth`` times the floor beyond what the forecast says.

    Nor is it more than ``growth`` times the forecast itself: one that is so vague is no better than none.
    """
    sure = 0.0
    if forecast is not None:
        sure = min(quantile(forecast, 1 - risk), growth * max(forecast.point, floor))
    chosen = sizing(known, risk)
    return max(sure, min(chosen, growth * floor) if floor else chosen)


def _most(needed: float, there: float | None) -> float:
    return needed if there is None else min(needed, there)
