"""Choose the next runs of a campaign, those with the largest reduction of full-scale error for their cost."""

import math
from collections.abc import Sequence

import numpy as np

from leadline.campaigns.budgets import compute_cost
from leadline.campaigns.configurations import configuration_key, run_configuration
from leadline.campaigns.plan import (
    DEFAULT_RUNS,
    affordable_runs,
    cheapest_configuration,
    plan_campaign,
    plan_runs,
    requested_runs,
    sobol_pool,
    space_filling_design,
)
from leadline.campaigns.run_time_model import RunTimeForecaster, RunTimeModel, forecast_cost, run_observations
from leadline.core.campaigns import Campaign, Configuration, Design, PlannedRun
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.core.runs import Run, Scale
from leadline.estimators.gp import squared_distances
from leadline.estimators.ports import Array

CANDIDATES = {Scale.SCALED_DOWN: 256, Scale.FULL_SCALE: 64}
TARGETS = 128  # full-scale configurations over which the error is minimized
FULL_SCALE_FIRST = (0, 1, 2, 4)  # numbers of full-scale runs to try reserving before the rest of the budget is spent
FAILURE_REACH = 0.25  # reach of a failure in ranges of a parameter
PRIOR_SUCCESSES = 0.5  # successes assumed near every configuration
MAX_STEPS = 40  # most runs of one look-ahead
TARGET_ERROR = 0.005  # full-scale error (standard deviation of its logarithm) at which a campaign stops
MIN_REDUCTION = 0.03  # it also stops if the remaining budget would reduce the error by less than this share


def propose_runs(campaign: Campaign, finished: Sequence[Run], spent: float) -> tuple[PlannedRun, ...]:
    """Return the next runs, most useful first; none if no affordable run is worth its cost.

    Failures count: the choice avoids their neighborhood, and a run that reached its limit is a lower bound. Several
    runs may be proposed to run in parallel. A design that is not adaptive continues with its affordable remainder.
    ``finished`` are the ended runs, failed ones included, and ``spent`` is in the unit of the budget.
    """
    budget = math.inf if campaign.budget is None else campaign.budget.amount - spent
    if budget <= 0:
        return ()
    if campaign.design is not Design.ADAPTIVE:
        return _remaining_runs(campaign, finished, budget)
    if not any(observation.censored is False for observation in run_observations(finished)):
        return _another_start(campaign, finished, budget)
    return _Chooser(campaign, finished, budget).choose()


def _remaining_runs(campaign: Campaign, finished: Sequence[Run], budget: float) -> tuple[PlannedRun, ...]:
    """Return the runs of a fixed design that remain and fit the budget."""
    done = {run.id for run in finished}
    remaining = [planned for planned in plan_campaign(campaign, finished).runs if planned.id not in done]
    return tuple(affordable_runs(campaign, remaining, budget))


def _another_start(campaign: Campaign, finished: Sequence[Run], budget: float) -> tuple[PlannedRun, ...]:
    """Return the remaining start, or one more configuration if the whole start failed."""
    done = {run.id for run in finished}
    start = [planned for planned in plan_campaign(campaign).runs if planned.id not in done]
    if start:
        return tuple(planned for planned in start if (forecast_cost(campaign, planned) or 0.0) <= budget)
    tried = {configuration_key(run_configuration(run)) for run in finished}
    # A design is a prefix of a longer one, so that some of its next three points are new.
    design = space_filling_design(campaign, Scale.SCALED_DOWN, len(tried) + 3)
    fresh = [configuration for configuration in design if configuration_key(configuration) not in tried]
    return tuple(PlannedRun(campaign.name, configuration, Scale.SCALED_DOWN) for configuration in fresh[:1])


class _Candidates(Frozen):
    """Possible runs: index i costs ``cost[i]`` and succeeds with probability ``success[i]``."""

    configurations: list[Configuration]
    scales: list[Scale]
    cost: Array
    surely: Array
    success: Array
    noise: Array


class _Chooser:
    """One choice of runs, from the model, the candidates and the remaining budget."""

    def __init__(self, campaign: Campaign, finished: Sequence[Run], budget: float) -> None:
        self.campaign = campaign
        self.finished = finished
        self.budget = budget / campaign.repeats
        self.forecaster = RunTimeForecaster(campaign, finished, cheapest_configuration(campaign))
        self.model: RunTimeModel = self.forecaster.model
        self.tried = {configuration_key(run_configuration(run)) for run in finished}
        self.targets = sobol_pool(campaign, Scale.FULL_SCALE, TARGETS, salt=1)
        success = self._success_probability(self.targets)
        self.weights = success / success.sum()

    def choose(self) -> tuple[PlannedRun, ...]:
        candidates = self._candidates()
        if not candidates.configurations:
            return ()
        covariance = self.model.predict([*self.targets, *candidates.configurations], jointly=True).log_covariance
        variance = float(self.weights @ np.diag(covariance)[: len(self.targets)])
        ahead = [self._look_ahead(candidates, covariance, first) for first in FULL_SCALE_FIRST]
        final_variance, picks = min(ahead, key=lambda outcome: outcome[0])
        spends_all = len(picks) < MAX_STEPS
        if math.sqrt(variance) < TARGET_ERROR or (
            spends_all and math.sqrt(final_variance) > (1 - MIN_REDUCTION) * math.sqrt(variance)
        ):
            return ()
        return self._plan_picks(candidates, picks)

    def _candidates(self) -> _Candidates:
        open_ = self._open_runs()
        choices = [
            (scale, configuration)
            for scale, size in CANDIDATES.items()
            if open_[scale] > 0
            for configuration in sobol_pool(self.campaign, scale, size, salt=2 + len(self.finished))
            if configuration_key(configuration) not in self.tried
        ]
        configurations = [configuration for _, configuration in choices]
        if not configurations:
            return _Candidates([], [], *[np.array([])] * 4)
        prediction = self.model.predict(configurations)
        seconds, spread = prediction.seconds, np.sqrt(prediction.log_covariance + prediction.log_noise**2)
        unit_cost = np.array(
            [compute_cost(self.campaign, configuration.resources, 1.0) for configuration in configurations]
        )
        limit_s = self.campaign.walltime_s or math.inf
        cost = np.minimum(seconds * np.exp(np.minimum(spread, 2.0) ** 2 / 2), limit_s) * unit_cost
        surely = np.minimum(seconds * np.exp(spread), limit_s) * unit_cost
        return _Candidates(
            configurations, [scale for scale, _ in choices], cost, surely,
            self._success_probability(configurations) * self._within_limit(seconds, spread), prediction.log_noise,
        )  # fmt: skip

    def _open_runs(self) -> dict[Scale, float]:
        """Return the number of configurations of each scale still allowed."""
        open_runs = {}
        for scale, requested in requested_runs(self.campaign).items():
            # A budget is the limit of a scale without one.
            default = math.inf if self.campaign.budget is not None else DEFAULT_RUNS[scale]
            done = {configuration_key(run_configuration(run)) for run in self.finished if run.scale is scale}
            open_runs[scale] = (default if requested is None else requested) - len(done)
        return open_runs

    def _success_probability(self, queried: Sequence[Configuration]) -> Array:
        """Return the probability that each run ends well, apart from its limit; it is low near failures."""
        encoding = self.model.encoding
        ran = [run_configuration(run) for run in self.finished]
        failed = np.array([run.state not in (JobState.COMPLETED, JobState.TIMEOUT) for run in self.finished])
        (numeric, categories), (numeric2, categories2) = (
            encoding.coordinates(encoding.basis(group)) for group in (queried, ran)
        )
        distances = squared_distances(numeric / FAILURE_REACH, numeric2 / FAILURE_REACH) + 2 * squared_distances(
            categories, categories2
        )
        near = np.exp(-0.5 * distances)
        return np.asarray((near @ ~failed + PRIOR_SUCCESSES) / (near.sum(1) + PRIOR_SUCCESSES))

    def _within_limit(self, seconds: Array, spread: Array) -> Array:
        """Return the probability that each run ends before its limit."""
        if self.campaign.walltime_s is None:
            return np.ones(len(seconds))
        margin = np.log(self.campaign.walltime_s / seconds) / np.maximum(spread, 1e-6)
        # The logistic function of 1.702 x approximates the normal distribution function within 0.01.
        return np.asarray(1 / (1 + np.exp(-1.702 * np.clip(margin, -30, 30))))

    def _look_ahead(self, candidates: _Candidates, covariance: Array, first: int) -> tuple[float, list[int]]:
        """Simulate spending the budget, with ``first`` full-scale runs first; return the final error and the runs."""
        target_count, budget, open_runs = len(self.targets), self.budget, self._open_runs()
        covariance, full = covariance.copy(), np.array([scale is Scale.FULL_SCALE for scale in candidates.scales])
        # Greedy choice: the covariance after a run does not depend on its outcome, so it can be computed beforehand.
        picks: list[int] = []
        for step in range(MAX_STEPS):
            variance = np.diag(covariance)[target_count:]
            gain = (
                self.weights
                @ covariance[:target_count, target_count:] ** 2
                / (variance + candidates.noise**2)
                * candidates.success
            )
            allowed = (candidates.surely <= budget) & (
                np.where(full, open_runs[Scale.FULL_SCALE], open_runs[Scale.SCALED_DOWN]) > 0
            )
            if step < first:
                allowed &= full
            if not allowed.any():
                if step < first:
                    return math.inf, []
                break
            index = int(np.argmax(np.where(allowed, gain / candidates.cost, -1.0)))
            picks.append(index)
            budget -= candidates.cost[index]
            open_runs[candidates.scales[index]] -= 1
            column = covariance[:, target_count + index]
            covariance -= np.outer(column, column) * (
                candidates.success[index] / (column[target_count + index] + candidates.noise[index] ** 2)
            )
        return float(self.weights @ np.diag(covariance)[:target_count]), picks

    def _plan_picks(self, candidates: _Candidates, picks: Sequence[int]) -> tuple[PlannedRun, ...]:
        """Return the first picks: few early in the campaign, more later."""
        run_limit = min(max(len(self.finished) // 6, 2), 8)
        runs: list[PlannedRun] = []
        for index in list(dict.fromkeys(picks))[:run_limit]:
            runs += plan_runs(self.campaign, [candidates.configurations[index]], candidates.scales[index])
        return self.forecaster.forecast(runs)
