"""Choose the next runs of a campaign: those that most reduce the predicted full-scale error for what they cost."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leadline.campaigns.budgets import compute_cost
from leadline.campaigns.configurations import configuration_key, run_configuration
from leadline.campaigns.designs import sobol_pool, space_filling_design
from leadline.campaigns.plan import FULL_SCALE_RUNS, SCALED_DOWN_RUNS, cheapest_configuration, plan_campaign
from leadline.campaigns.run_time_model import (
    Array,
    RunTimeForecaster,
    RunTimeModel,
    forecast_cost,
    run_observations,
    squared_distances,
)
from leadline.core.campaigns import Campaign, Configuration, Design, PlannedRun
from leadline.core.jobs import JobState
from leadline.core.runs import Run, Scale

CANDIDATES = {Scale.SCALED_DOWN: 256, Scale.FULL_SCALE: 64}
ASKED = 128
"""Full-scale configurations over which the error is to be small."""
FULL_SCALE_FIRST = (0, 1, 2, 4)
"""Numbers of full-scale runs, set apart before the rest of the budget is spent, that are compared."""
NEAR, DOUBT = 0.25, 0.5
"""How far, in ranges of a parameter, a failure reaches; how many successes are taken to be near everything."""
STEPS = 40
"""The most runs that one look ahead spends a budget on."""
GOOD_ENOUGH, WORTH_IT = 0.005, 0.03
"""Predicted full-scale error (standard deviation of its logarithm) below which no run is worth its cost, and the share
of it by which all that is left to spend has to reduce it."""


def propose_runs(campaign: Campaign, finished: Sequence[Run], spent: float) -> tuple[PlannedRun, ...]:
    """Return the runs to make next, first things first; none when nothing affordable is worth its cost.

    ``spent`` is what was spent of the budget, in its unit. Failures, timed-out runs included, are learned from: what is
    near them is avoided, and a run that reached its limit is a lower bound. Several runs may be proposed, so that they
    run beside each other. For a design that is not adaptive: the rest of it that is affordable.
    """
    left = math.inf if campaign.budget is None else campaign.budget.amount - spent
    if left <= 0:
        return ()
    if campaign.design is not Design.ADAPTIVE:
        return _rest(campaign, finished, left)
    if not any(one.censored is False for one in run_observations(finished)):
        return _another_start(campaign, finished, left)
    return _Chooser(campaign, finished, left).choose()


def _rest(campaign: Campaign, finished: Sequence[Run], left: float) -> tuple[PlannedRun, ...]:
    """Return what of a fixed design has not been run and fits what is left."""
    made = {run.id for run in finished}
    found = []
    for one in plan_campaign(campaign, finished).runs:
        cost = forecast_cost(campaign, one) or 0.0
        if one.id not in made and cost <= left:
            found.append(one)
            left -= cost
    return tuple(found)


def _another_start(campaign: Campaign, finished: Sequence[Run], left: float) -> tuple[PlannedRun, ...]:
    """Return the start, or the next of it where all that ran failed."""
    made = {run.id for run in finished}
    start = [one for one in plan_campaign(campaign).runs if one.id not in made]
    if start:
        return tuple(one for one in start if (forecast_cost(campaign, one) or 0.0) <= left)
    tried = {configuration_key(run_configuration(run)) for run in finished}
    others = [
        one
        for one in space_filling_design(campaign, Scale.SCALED_DOWN, len(tried) + 3)
        if configuration_key(one) not in tried
    ]
    return tuple(PlannedRun(campaign.name, one, Scale.SCALED_DOWN) for one in others[:1])


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Configurations that may be run: index i costs ``cost[i]`` and succeeds with probability ``success[i]``."""

    configurations: list[Configuration]
    full: npt.NDArray[np.bool_]
    cost: Array
    surely: Array
    success: Array
    noise: Array


class _Chooser:
    """One choice: what is known, what may be run, and what is left to spend."""

    def __init__(self, campaign: Campaign, finished: Sequence[Run], left: float) -> None:
        self.campaign = campaign
        self.finished = finished
        self.left = left / campaign.repeats
        self.forecaster = RunTimeForecaster(campaign, finished, cheapest_configuration(campaign))
        self.law: RunTimeModel = self.forecaster.model
        self.tried = {configuration_key(run_configuration(run)) for run in finished}
        self.asked = sobol_pool(campaign, Scale.FULL_SCALE, ASKED, salt=1)
        success = self._success(self.asked)
        self.weights = success / success.sum()

    def choose(self) -> tuple[PlannedRun, ...]:
        found = self._candidates()
        if not found.configurations:
            return ()
        covariance = self.law.predict([*self.asked, *found.configurations], jointly=True).log_covariance
        now = float(self.weights @ np.diag(covariance)[: len(self.asked)])
        ahead = [self._look_ahead(found, covariance, first) for first in FULL_SCALE_FIRST]
        then, picks = min(ahead, key=lambda one: one[0])
        spends_all = len(picks) < STEPS
        if math.sqrt(now) < GOOD_ENOUGH or (spends_all and math.sqrt(then) > (1 - WORTH_IT) * math.sqrt(now)):
            return ()
        return self._planned(found, picks)

    def _candidates(self) -> _Candidates:
        open_ = self._open()
        found: list[tuple[Scale, Configuration]] = []
        for scale, size in CANDIDATES.items():
            if open_[scale] > 0:
                fresh = sobol_pool(self.campaign, scale, size, salt=2 + len(self.finished))
                found += [(scale, one) for one in fresh if configuration_key(one) not in self.tried]
        configurations = [one for _, one in found]
        if not configurations:
            return _Candidates([], *[np.array([])] * 5)
        known = self.law.predict(configurations)
        seconds, spread = known.seconds, np.sqrt(known.log_covariance + known.log_noise**2)
        unit = np.array([compute_cost(self.campaign, one.resources, 1.0) for one in configurations])
        most = self.campaign.walltime_s or math.inf
        cost = np.minimum(seconds * np.exp(np.minimum(spread, 2.0) ** 2 / 2), most) * unit
        surely = np.minimum(seconds * np.exp(spread), most) * unit
        return _Candidates(
            configurations, np.array([scale is Scale.FULL_SCALE for scale, _ in found]), cost, surely,
            self._success(configurations) * self._in_time(seconds, spread), known.log_noise,
        )  # fmt: skip

    def _open(self) -> dict[Scale, float]:
        """Return how many configurations of each scale may still be made."""
        free = self.campaign.budget is not None
        most = {
            Scale.SCALED_DOWN: _most(self.campaign.scaled_down_runs, SCALED_DOWN_RUNS, free=free),
            Scale.FULL_SCALE: _most(self.campaign.full_scale_runs, FULL_SCALE_RUNS, free=free),
        }
        made = {
            scale: {configuration_key(run_configuration(one)) for one in self.finished if one.scale is scale}
            for scale in Scale
        }
        return {scale: most[scale] - len(made[scale]) for scale in Scale}

    def _success(self, found: Sequence[Configuration]) -> Array:
        """Return how probable it is that each run ends well, but for its limit: near failures it is not."""
        encoding = self.law.encoding
        ran = [run_configuration(run) for run in self.finished]
        failed = np.array([run.state not in (JobState.COMPLETED, JobState.TIMEOUT) for run in self.finished])
        (numeric, categories), (numeric2, categories2) = (
            encoding.coordinates(encoding.basis(each)) for each in (found, ran)
        )
        apart = squared_distances(numeric / NEAR, numeric2 / NEAR) + 2 * squared_distances(categories, categories2)
        near = np.exp(-0.5 * apart)
        return np.asarray((near @ ~failed + DOUBT) / (near.sum(1) + DOUBT))

    def _in_time(self, seconds: Array, spread: Array) -> Array:
        """Return how probable it is that each run ends before its limit."""
        if self.campaign.walltime_s is None:
            return np.ones(len(seconds))
        margin = np.log(self.campaign.walltime_s / seconds) / np.maximum(spread, 1e-6)
        return np.asarray(1 / (1 + np.exp(-1.702 * np.clip(margin, -30, 30))))

    def _look_ahead(self, found: _Candidates, covariance: Array, first: int) -> tuple[float, list[int]]:
        """Spend what is left, ``first`` full-scale runs before all else; return the error then, and the runs."""
        asked, covariance, left, open_ = len(self.asked), covariance.copy(), self.left, self._open()
        picks: list[int] = []
        for step in range(STEPS):
            variance = np.diag(covariance)[asked:]
            gain = self.weights @ covariance[:asked, asked:] ** 2 / (variance + found.noise**2) * found.success
            allowed = (found.surely <= left) & (
                np.where(found.full, open_[Scale.FULL_SCALE], open_[Scale.SCALED_DOWN]) > 0
            )
            if step < first:
                allowed &= found.full
            if not allowed.any():
                if step < first:
                    return math.inf, []
                break
            index = int(np.argmax(np.where(allowed, gain / found.cost, -1.0)))
            picks.append(index)
            left -= found.cost[index]
            open_[Scale.FULL_SCALE if found.full[index] else Scale.SCALED_DOWN] -= 1
            column = covariance[:, asked + index]
            covariance -= np.outer(column, column) * (
                found.success[index] / (column[asked + index] + found.noise[index] ** 2)
            )
        return float(self.weights @ np.diag(covariance)[:asked]), picks

    def _planned(self, found: _Candidates, picks: Sequence[int]) -> tuple[PlannedRun, ...]:
        """Return the first of the picks: few while little is known, more later."""
        most = min(max(len(self.finished) // 6, 2), 8)
        chosen = list(dict.fromkeys(picks))[:most]
        scales = [Scale.FULL_SCALE if found.full[index] else Scale.SCALED_DOWN for index in chosen]
        runs = [
            PlannedRun(self.campaign.name, found.configurations[index], scale, repeat)
            for index, scale in zip(chosen, scales, strict=True)
            for repeat in range(self.campaign.repeats)
        ]
        return self.forecaster.forecast(runs)


def _most(given: int | None, default: int, *, free: bool) -> float:
    """Return how many configurations a scale may have: without a number and without a budget, a usual one."""
    return float(given) if given is not None else math.inf if free else float(default)
