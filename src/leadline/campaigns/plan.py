"""The initial runs of a campaign, with their forecast cost, within its budget.

Experimental designs choose them: grid, random, or space-filling with preference for cheap runs.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, product

import numpy as np
from scipy.stats import qmc

from leadline.campaigns.budgets import compute_cost
from leadline.campaigns.configurations import Axis, axes, configurations, distinct_configurations
from leadline.campaigns.run_time_model import CampaignEncoding, RunTimeForecaster, forecast_cost
from leadline.core.campaigns import Campaign, Configuration, Design, PlannedRun
from leadline.core.frozen import Frozen
from leadline.core.runs import Run, Scale
from leadline.estimators.ports import Array

# Default number of configurations at each scale in a design that is not adaptive.
DEFAULT_RUNS = {Scale.SCALED_DOWN: 60, Scale.FULL_SCALE: 6}
PILOTS = 6  # cheap configurations to run first under a budget while costs are unknown
FULL_SCALE_SHARE = 0.5  # largest share of a budget reserved for full-scale runs while scaled-down ones remain
START_SHARE = 0.3  # largest share of a budget for the start of an adaptive design


class CampaignPlan(Frozen):
    """The initial runs of a campaign, and an outlook; costs are in the budget's unit."""

    campaign: Campaign
    runs: tuple[PlannedRun, ...]
    relative: tuple[float, ...]  # each run's work relative to the smallest
    # Further configurations to be chosen once runs have shown their cost; `None` for as many as the budget allows.
    later: int | None = 0
    left_out: int = 0  # runs that the budget excludes
    coverage: float | None = None  # forecast cost of as many runs at full scale; `None` while costs are unknown


def plan_campaign(campaign: Campaign, finished: Sequence[Run] = ()) -> CampaignPlan:
    """Return the initial runs, forecast from ``finished`` runs of the campaign if there are any.

    The plan is deterministic. An adaptive design begins with its start. Under a budget and without known costs, the
    plan holds a few cheap runs, and ``propose_runs`` continues from there.
    """
    if campaign.design is Design.ADAPTIVE:
        return _start(campaign, finished)
    small, full = (
        choose_configurations(campaign, campaign.design, scale, DEFAULT_RUNS[scale] if count is None else count)
        for scale, count in requested_runs(campaign).items()
    )
    forecaster = RunTimeForecaster(campaign, finished, cheapest_configuration(campaign))
    everything = [*plan_runs(campaign, small, Scale.SCALED_DOWN), *plan_runs(campaign, full, Scale.FULL_SCALE)]
    if campaign.budget is None:
        return _plan(forecaster, everything)
    if not forecaster.informed:
        pilots = _pilots(forecaster, small)
        return _plan(forecaster, plan_runs(campaign, pilots, Scale.SCALED_DOWN), len(small) + len(full) - len(pilots))
    return _within(forecaster, forecaster.forecast(everything), campaign.budget.amount)


def cheapest_configuration(campaign: Campaign) -> Configuration:
    """Return the configuration with the lowest expected cost, to which the user's guess of the first run applies."""
    return choose_configurations(campaign, Design.SPACE_FILLING, Scale.SCALED_DOWN, 1)[0]


def requested_runs(campaign: Campaign) -> dict[Scale, int | None]:
    """Return the requested number of configurations at each scale."""
    return {Scale.SCALED_DOWN: campaign.scaled_down_runs, Scale.FULL_SCALE: campaign.full_scale_runs}


def start_size(campaign: Campaign) -> int:
    """Return the initial number of configurations of an adaptive design: two more than twice the varying dimensions."""
    dimensions = sum(
        len(parameter.choices) - 1 if parameter.choices else parameter.scaled_down is not None
        for parameter in campaign.parameters
    )
    resources = (campaign.cores, campaign.gpus, campaign.memory_bytes, campaign.partitions)
    return 2 + 2 * dimensions + sum(len(choices) > 1 for choices in resources)


def _start(campaign: Campaign, finished: Sequence[Run]) -> CampaignPlan:
    requested = [count for count in requested_runs(campaign).values() if count is not None]
    count = min(start_size(campaign), campaign.scaled_down_runs or start_size(campaign))
    forecaster = RunTimeForecaster(campaign, finished, cheapest_configuration(campaign))
    small = choose_configurations(campaign, campaign.design, Scale.SCALED_DOWN, count)
    runs = list(forecaster.forecast(plan_runs(campaign, small, Scale.SCALED_DOWN)))
    later = sum(requested) - len(small) if len(requested) == len(Scale) else None
    if campaign.budget is None or not forecaster.informed:
        return _plan(forecaster, runs, later)
    affordable = affordable_runs(campaign, runs, campaign.budget.amount * START_SHARE)
    return _plan(forecaster, affordable or runs[: campaign.repeats], later)


def _within(forecaster: RunTimeForecaster, runs: Sequence[PlannedRun], budget: float) -> CampaignPlan:
    """Return the plan that a budget allows: scaled-down runs in order, then full-scale ones."""
    campaign = forecaster.campaign
    small = [run for run in runs if run.scale is Scale.SCALED_DOWN]
    full = [run for run in runs if run.scale is Scale.FULL_SCALE]
    reserved = min(total_forecast_cost(campaign, full), budget * FULL_SCALE_SHARE)
    first = affordable_runs(campaign, small, budget - reserved)
    second = affordable_runs(campaign, full, budget - total_forecast_cost(campaign, first))
    plan = _plan(forecaster, [*first, *second])
    return replace(plan, left_out=len(runs) - len(plan.runs))


def affordable_runs(campaign: Campaign, runs: Sequence[PlannedRun], budget: float) -> list[PlannedRun]:
    """Return the runs that fit a budget together, in order; a run that does not fit is skipped."""
    affordable: list[PlannedRun] = []
    for run in runs:
        cost = forecast_cost(campaign, run) or 0.0
        if cost <= budget:
            affordable.append(run)
            budget -= cost
    return affordable


def total_forecast_cost(campaign: Campaign, runs: Sequence[PlannedRun]) -> float:
    """Return the total forecast cost of runs in the budget's unit; a run without a forecast counts 0."""
    return sum(forecast_cost(campaign, run) or 0.0 for run in runs)


def _plan(forecaster: RunTimeForecaster, runs: Sequence[PlannedRun], later: int | None = 0) -> CampaignPlan:
    relative = forecaster.relative([run.configuration for run in runs]) if runs else []
    plan = CampaignPlan(forecaster.campaign, forecaster.forecast(runs), tuple(relative), later)
    return replace(plan, coverage=_coverage(forecaster, len(runs))) if forecaster.informed else plan


def _coverage(forecaster: RunTimeForecaster, count: int) -> float:
    """Return the forecast cost of ``count`` runs spread over the full-scale space."""
    campaign = forecaster.campaign
    configurations = sobol_pool(campaign, Scale.FULL_SCALE, 128)
    times = forecaster.seconds(configurations)
    costs = [
        compute_cost(campaign, configuration.resources, time.point)
        for configuration, time in zip(configurations, times, strict=True)
        if time
    ]
    return count * sum(costs) / len(costs)


def plan_runs(campaign: Campaign, configurations: Sequence[Configuration], scale: Scale) -> list[PlannedRun]:
    """Return the runs of configurations, each with its repeats."""
    return [
        PlannedRun(campaign.name, configuration, scale, repeat)
        for configuration in configurations
        for repeat in range(campaign.repeats)
    ]


def _pilots(forecaster: RunTimeForecaster, configurations: Sequence[Configuration]) -> list[Configuration]:
    """Return a few configurations from cheap to medium, as a basis for forecasts."""
    work = forecaster.relative(configurations)
    order = sorted(range(len(configurations)), key=work.__getitem__)
    ranks = [round(index * 0.6 * (len(configurations) - 1) / (PILOTS - 1)) for index in range(PILOTS)]
    return [configurations[order[rank]] for rank in dict.fromkeys(ranks)]


POOL = 1024  # candidate points of a space-filling design
THRIFT = 0.25  # exponent of forecast cost in the denominator of a point's distance
LARGEST_PERIOD = 5  # period at which a scaled-down configuration is one of the largest


def choose_configurations(campaign: Campaign, kind: Design, scale: Scale, count: int) -> list[Configuration]:
    """Return up to ``count`` distinct configurations of a scale, determined by campaign and seed.

    An adaptive design starts as a space-filling one.
    """
    designs = {Design.GRID: grid_design, Design.RANDOM: random_design}
    return designs.get(kind, space_filling_design)(campaign, scale, count)


def grid_design(campaign: Campaign, scale: Scale, count: int) -> list[Configuration]:
    """Return a full factorial design over all categories and resources and evenly spaced numeric levels.

    Levels are added in turn, on scale-carrying axes first, up to ``count`` points. If categories and resources alone
    have more, the design is a random subset. The order is shuffled, so that every prefix is a sample.
    """
    scale_axes = axes(campaign, scale)
    counts = [len(axis.levels) if axis.levels and not _grows(axis) else 1 for axis in scale_axes]
    growing = sorted(
        (i for i, axis in enumerate(scale_axes) if _grows(axis)), key=lambda i: not scale_axes[i].carries_scale
    )
    while growing:
        for index in list(growing):
            grown = [*counts[:index], counts[index] + 1, *counts[index + 1 :]]
            if math.prod(grown) > count or grown[index] > scale_axes[index].count:
                growing.remove(index)
            else:
                counts = grown
    points = list(distinct_configurations(configurations(campaign, scale, product(*map(_shares, counts)))))
    random.Random(f"{campaign.seed} grid {scale}").shuffle(points)  # noqa: S311 - a design, no secret
    return points[:count]


def _grows(axis: Axis) -> bool:
    return axis.numeric and axis.name not in ("cores", "memory") and axis.count > 1


def _shares(levels: int) -> list[float]:
    """Return positions of evenly spaced levels from 0 to 1; the middle for a single one."""
    return [0.5] if levels == 1 else [index / (levels - 1) for index in range(levels)]


def random_design(campaign: Campaign, scale: Scale, count: int) -> list[Configuration]:
    """Return independent configurations, uniform over each axis."""
    draw = random.Random(f"{campaign.seed} random {scale}")  # noqa: S311 - a design, no secret
    width = len(axes(campaign, scale))
    drawn = ([draw.random() for _ in range(width)] for _ in range(20 * count))
    return list(islice(distinct_configurations(configurations(campaign, scale, drawn)), count))


def space_filling_design(campaign: Campaign, scale: Scale, count: int) -> list[Configuration]:
    """Return configurations far from each other, with cheaper ones preferred and some at the largest scale.

    Points of a Sobol sequence are added greedily by maximin distance over forecast cost: every prefix is a design.
    """
    candidates = sobol_pool(campaign, scale, POOL)
    encoding = CampaignEncoding(campaign)
    basis = encoding.basis(candidates)
    points = _coordinates(encoding, basis)
    cost = np.exp(basis @ encoding.mean)
    scales = _scale_share(campaign, scale, candidates)
    top = scales >= np.quantile(scales, 0.9)
    chosen = [int(np.argmin(cost))]
    nearest = np.linalg.norm(points - points[chosen[0]], axis=1)
    while len(chosen) < min(count, len(candidates)):
        largest = len(chosen) % LARGEST_PERIOD == LARGEST_PERIOD - 1
        merit = nearest * top if largest and (nearest * top).max() > 0 else nearest / cost**THRIFT
        if merit.max() <= 0:
            break
        chosen.append(int(np.argmax(merit)))
        nearest = np.minimum(nearest, np.linalg.norm(points - points[chosen[-1]], axis=1))
    return [candidates[index] for index in chosen[:count]]


def sobol_pool(campaign: Campaign, scale: Scale, size: int, salt: int = 0) -> list[Configuration]:
    """Return distinct configurations of a scrambled Sobol sequence; ``size`` is a power of two."""
    width = len(axes(campaign, scale))
    sequence = qmc.Sobol(width, scramble=True, seed=np.random.default_rng([campaign.seed, salt, len(scale.name)]))
    return list(distinct_configurations(configurations(campaign, scale, sequence.random(size))))


def _coordinates(encoding: CampaignEncoding, basis: Array) -> Array:
    """Return points in which each numeric axis spans 1 and two categories are 1 apart."""
    numeric, categories = encoding.coordinates(basis)
    span = np.ptp(numeric, axis=0) if len(numeric) else np.ones(numeric.shape[1])
    return np.hstack([numeric / np.where(span > 0, span, 1.0), categories / math.sqrt(2)])


def _scale_share(campaign: Campaign, scale: Scale, candidates: Sequence[Configuration]) -> Array:
    """Return the mean position of the scale-carrying parameters in their ranges, from 0 to 1."""
    shares = np.zeros(len(candidates))
    for axis in axes(campaign, scale):
        if axis.carries_scale and axis.low < axis.high:
            values = np.array([float(configuration.parameters[axis.name]) for configuration in candidates])
            shares += (values - axis.low) / (axis.high - axis.low)
    return shares
