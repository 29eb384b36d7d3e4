"""What each run of a campaign will take, before it is made: from runs that ended, else from a guess of the cheapest."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from leadline.campaigns.budgets import cost_of
from leadline.campaigns.law import Law, Observation, fit
from leadline.campaigns.space import configuration_of
from leadline.core.campaigns import Campaign, Configuration, PlannedRun
from leadline.core.estimate import Interval
from leadline.core.jobs import JobState
from leadline.core.runs import Run

GUESS_SD = 1.0
"""Spread of the logarithm of a user's guess: a factor of 2.7 either way."""
LEVEL, NORMAL_95 = 0.9, 1.645


class Forecaster:
    """Forecasts the runs of a campaign from its runs that ended, failures apart; timed-out ones are lower bounds."""

    def __init__(self, campaign: Campaign, finished: Sequence[Run] = (), cheapest: Configuration | None = None) -> None:
        self.campaign = campaign
        found = observations(finished)
        self.known = bool(found) or (campaign.first_run_s is not None and cheapest is not None)
        if not found and campaign.first_run_s is not None and cheapest is not None:
            found = [Observation(cheapest, campaign.first_run_s, sd=GUESS_SD)]
        self.law: Law = fit(campaign, found)

    def seconds(self, found: Sequence[Configuration]) -> list[Interval | None]:
        """Return what runs of these configurations take; ``None`` for each where nothing is known yet."""
        if not self.known or not found:
            return [None] * len(found)
        known = self.law.predict(found)
        points, spreads = known.seconds, np.sqrt(known.log_covariance + known.log_noise**2)
        most = self.campaign.walltime_s or np.inf
        ends = [
            np.minimum(points * factor, most)
            for factor in np.exp(NORMAL_95 * np.array([0 * spreads, -spreads, spreads]))
        ]
        return [Interval(float(point), float(low), float(high), LEVEL) for point, low, high in zip(*ends, strict=True)]

    def relative(self, found: Sequence[Configuration]) -> list[float]:
        """Return the work of each configuration in units of the least of them, as far as it is known."""
        points = self.law.predict(found).seconds
        return [float(one) for one in points / points.min()]

    def forecast(self, planned: Sequence[PlannedRun]) -> tuple[PlannedRun, ...]:
        """Return the runs with what each is forecast to take."""
        times = self.seconds([one.configuration for one in planned])
        return tuple(replace(one, forecast_s=time) for one, time in zip(planned, times, strict=True))


def observations(finished: Sequence[Run]) -> list[Observation]:
    """Return what can be learned from runs: times of those that completed, bounds of those cut off by their limit."""
    found = []
    for run in finished:
        elapsed = run.measured.get("elapsed_s")
        if elapsed is None or not elapsed.value > 0:
            continue
        if run.state in (JobState.COMPLETED, JobState.TIMEOUT):
            found.append(Observation(configuration_of(run), elapsed.value, run.state is JobState.TIMEOUT))
    return found


def forecast_cost(campaign: Campaign, planned: PlannedRun) -> float | None:
    """Return a run's forecast cost in the budget's unit; ``None`` where its time is not known."""
    if planned.forecast_s is None:
        return None
    return cost_of(campaign, planned.configuration.resources, planned.forecast_s.point)
