"""The runs of a campaign before it starts, with their forecast cost, within its budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from leadline.campaigns.budgets import compute_cost
from leadline.campaigns.designs import choose_configurations, sobol_pool
from leadline.campaigns.run_time_model import RunTimeForecaster, forecast_cost
from leadline.core.campaigns import Campaign, Configuration, Design, PlannedRun
from leadline.core.runs import Run, Scale

SCALED_DOWN_RUNS, FULL_SCALE_RUNS = 60, 6
"""Configurations of a design that is not adaptive, where the campaign does not say how many."""
PILOTS = 6
"""Cheap configurations to run first where a budget is to be kept and nothing is known of the costs."""
FULL_SCALE_SHARE = 0.5
"""The most of a budget that is kept for full-scale runs while there are scaled-down ones to make."""
START_SHARE = 0.3
"""The most of a budget that the start of an adaptive design takes."""


@dataclass(frozen=True, slots=True)
class CampaignPlan:
    """What is made first, and what follows from it; costs are in the budget's unit.

    ``later`` is how many further configurations are chosen or checked against the budget once runs have shown what
    they cost (``None``: as many as the budget allows), ``left_out`` how many runs the budget does not allow. ``kept``
    is what the budget leaves for choices made on the way, and ``coverage`` the forecast cost of as many runs as are
    planned, all at full scale; both are ``None`` where costs are not known yet. ``relative`` is each run's work in
    units of the least.
    """

    campaign: Campaign
    runs: tuple[PlannedRun, ...]
    relative: tuple[float, ...]
    later: int | None = 0
    left_out: int = 0
    kept: float | None = None
    coverage: float | None = None


def plan_campaign(campaign: Campaign, finished: Sequence[Run] = ()) -> CampaignPlan:
    """Return the runs to start with, forecast from ``finished`` runs of the campaign where there are any.

    The same campaign has the same runs whenever it is planned. Of an adaptive design it is the start. Where a budget is
    to be kept and no cost is known, it is a few cheap runs: ``propose`` goes on from there.
    """
    if campaign.design is Design.ADAPTIVE:
        return _start(campaign, finished)
    small = choose_configurations(
        campaign, campaign.design, Scale.SCALED_DOWN, _or(campaign.scaled_down_runs, SCALED_DOWN_RUNS)
    )
    full = choose_configurations(
        campaign, campaign.design, Scale.FULL_SCALE, _or(campaign.full_scale_runs, FULL_SCALE_RUNS)
    )
    forecaster = RunTimeForecaster(campaign, finished, cheapest_configuration(campaign))
    everything = [*_runs(campaign, small, Scale.SCALED_DOWN), *_runs(campaign, full, Scale.FULL_SCALE)]
    if campaign.budget is None:
        return _plan(forecaster, everything)
    if not forecaster.informed:
        pilots = _pilots(forecaster, small)
        return _plan(forecaster, _runs(campaign, pilots, Scale.SCALED_DOWN), len(small) + len(full) - len(pilots))
    return _within(forecaster, forecaster.forecast(everything), campaign.budget.amount)


def cheapest_configuration(campaign: Campaign) -> Configuration:
    """Return the configuration that is expected to take least, on which a user's guess of the first run is taken."""
    return choose_configurations(campaign, Design.SPACE_FILLING, Scale.SCALED_DOWN, 1)[0]


def start_size(campaign: Campaign) -> int:
    """Return how many configurations an adaptive design starts from: two more than twice the things that vary."""
    return (
        2
        + 2 * sum(len(one.choices) - 1 if one.choices else one.scaled_down is not None for one in campaign.parameters)
        + sum(len(each) > 1 for each in (campaign.cores, campaign.gpus, campaign.memory_bytes, campaign.partitions))
    )


def _start(campaign: Campaign, finished: Sequence[Run]) -> CampaignPlan:
    count = min(start_size(campaign), _or(campaign.scaled_down_runs, start_size(campaign)))
    forecaster = RunTimeForecaster(campaign, finished, cheapest_configuration(campaign))
    small = choose_configurations(campaign, campaign.design, Scale.SCALED_DOWN, count)
    runs = list(forecaster.forecast(_runs(campaign, small, Scale.SCALED_DOWN)))
    wanted = [campaign.scaled_down_runs, campaign.full_scale_runs]
    later = None if None in wanted else sum(one or 0 for one in wanted) - len(small)
    if campaign.budget is None or not forecaster.informed:
        return _plan(forecaster, runs, later)
    affordable = _prefix(campaign, runs, campaign.budget.amount * START_SHARE)
    made = _plan(forecaster, affordable or runs[: campaign.repeats], later)
    return replace(made, kept=max(campaign.budget.amount - total_forecast_cost(campaign, made.runs), 0.0))


def _within(forecaster: RunTimeForecaster, runs: Sequence[PlannedRun], budget: float) -> CampaignPlan:
    """Return the plan of the runs that a budget allows: scaled-down ones in their order, then full-scale ones."""
    campaign = forecaster.campaign
    small = [one for one in runs if one.scale is Scale.SCALED_DOWN]
    full = [one for one in runs if one.scale is Scale.FULL_SCALE]
    kept = min(total_forecast_cost(campaign, full), budget * FULL_SCALE_SHARE)
    first = _prefix(campaign, small, budget - kept)
    second = _prefix(campaign, full, budget - total_forecast_cost(campaign, first))
    made = _plan(forecaster, [*first, *second])
    return replace(made, left_out=len(runs) - len(made.runs), kept=budget - total_forecast_cost(campaign, made.runs))


def _prefix(campaign: Campaign, runs: Sequence[PlannedRun], budget: float) -> list[PlannedRun]:
    """Return the runs, in their order, that fit a budget together; one that does not fit is passed over."""
    taken: list[PlannedRun] = []
    for one in runs:
        cost = forecast_cost(campaign, one) or 0.0
        if cost <= budget:
            taken.append(one)
            budget -= cost
    return taken


def total_forecast_cost(campaign: Campaign, runs: Sequence[PlannedRun]) -> float:
    """Return what runs are forecast to cost together, in the budget's unit; those without a forecast count nothing."""
    return sum(forecast_cost(campaign, one) or 0.0 for one in runs)


def _plan(forecaster: RunTimeForecaster, runs: Sequence[PlannedRun], later: int | None = 0) -> CampaignPlan:
    relative = forecaster.relative([one.configuration for one in runs]) if runs else []
    made = CampaignPlan(forecaster.campaign, forecaster.forecast(runs), tuple(relative), later)
    return replace(made, coverage=_coverage(forecaster, len(runs))) if forecaster.informed else made


def _coverage(forecaster: RunTimeForecaster, count: int) -> float:
    """Return the forecast cost of ``count`` runs spread over the full-scale space."""
    campaign = forecaster.campaign
    found = sobol_pool(campaign, Scale.FULL_SCALE, 128)
    times = forecaster.seconds(found)
    costs = [compute_cost(campaign, one.resources, time.point) for one, time in zip(found, times, strict=True) if time]
    return count * sum(costs) / len(costs)


def _runs(campaign: Campaign, found: Sequence[Configuration], scale: Scale) -> list[PlannedRun]:
    return [PlannedRun(campaign.name, one, scale, repeat) for one in found for repeat in range(campaign.repeats)]


def _pilots(forecaster: RunTimeForecaster, found: Sequence[Configuration]) -> list[Configuration]:
    """Return a few configurations from the cheapest to the middling, from which the others can be forecast."""
    work = forecaster.relative(found)
    order = sorted(range(len(found)), key=work.__getitem__)
    ranks = [round(index * 0.6 * (len(found) - 1) / (PILOTS - 1)) for index in range(PILOTS)]
    return [found[order[rank]] for rank in dict.fromkeys(ranks)]


def _or(given: int | None, default: int) -> int:
    return default if given is None else given
