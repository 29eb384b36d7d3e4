"""The verb ``campaign plan``, and the choice of further runs during a campaign."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from leadline.app.campaigns.runs import campaign_folder, stored_runs
from leadline.campaigns.budgets import budget_unit, compute_cost, parse_budget, require_prices
from leadline.campaigns.spec import read_campaign
from leadline.core.campaigns import BudgetUnit, Campaign, Configuration, Design, PlannedRun
from leadline.core.errors import MissingExtra
from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.runs import Run, Scale


class PlannedRunRow(Frozen):
    """One planned run: ``work`` relative to the cheapest, ``cost`` in the budget's unit; ``made`` if it has ended."""

    id: str
    scale: Scale
    configuration: Configuration
    repeat: int
    work: float
    forecast_s: Interval | None
    cost: float | None
    made: bool


class ScaleTotal(Frozen):
    """The runs of one scale together; ``None`` if the cost is unknown."""

    scale: Scale
    runs: int
    forecast_s: float | None
    cost: float | None


class CampaignPlan(Frozen):
    """The first runs of a campaign, and their cost in the budget's ``unit``.

    Attributes:
        later: number of configurations chosen during the campaign (``None``: as the budget allows).
        kept: budget reserved for those.
        left_out: runs that the budget does not allow.
        coverage: cost of as many runs at full scale.
        known_from: number of runs behind the forecast; 0 with a forecast: the guess of the first run.
        spent: cost of the runs that ended, not included in ``kept``.
    """

    campaign: str
    design: Design
    seed: int
    unit: BudgetUnit
    budget: float | None
    walltime_s: float | None
    first_run_s: float | None
    runs: tuple[PlannedRunRow, ...]
    totals: tuple[ScaleTotal, ...]
    later: int | None
    left_out: int
    kept: float | None
    coverage: float | None
    known_from: int
    spent: float


def plan_campaign(
    file: Path,
    *,
    design: Design | None = None,
    budget: str | None = None,
    seed: int | None = None,
    folder: Path | None = None,
) -> CampaignPlan:
    """Return the first runs of a campaign's file, with another design, budget or seed if given.

    Nothing is started. The forecast uses the campaign's own finished runs, if there are any.

    Raises:
        InvalidInput: the file or the budget is not valid.
        MissingExtra: the packages for experimental design are not installed.
    """
    campaign = read_campaign(file)
    campaign = replace(campaign, design=design or campaign.design, seed=campaign.seed if seed is None else seed)
    if budget is not None:
        campaign = replace(campaign, budget=parse_budget(budget))
        require_prices(campaign, parse_budget(budget))
    finished = _finished(campaign, folder)
    _require_packages()
    from leadline.campaigns.plan import plan_campaign  # noqa: PLC0415
    from leadline.campaigns.run_time_model import run_observations  # noqa: PLC0415 - numpy and scipy load on use

    design_plan = plan_campaign(campaign, finished)
    finished_ids = {run.id for run in finished}
    rows = []
    for run, work in zip(design_plan.runs, design_plan.relative, strict=True):
        forecast_s, configuration = run.forecast_s, run.configuration
        cost = None if forecast_s is None else compute_cost(campaign, configuration.resources, forecast_s.point)
        is_made = run.id in finished_ids
        rows.append(PlannedRunRow(run.id, run.scale, configuration, run.repeat, work, forecast_s, cost, is_made))
    spent = sum(compute_cost(campaign, run.job.resources, run.measured["elapsed_s"].value) for run in finished)
    ahead = sum(row.cost or 0.0 for row in rows if not row.made)
    costs_known = campaign.budget is not None and design_plan.coverage is not None
    kept = max(campaign.budget.amount - spent - ahead, 0.0) if campaign.budget and costs_known else None
    return CampaignPlan(
        campaign.name, campaign.design, campaign.seed, budget_unit(campaign),
        campaign.budget.amount if campaign.budget else None, campaign.walltime_s, campaign.first_run_s, tuple(rows),
        tuple(_total(scale, rows) for scale in Scale), design_plan.later, design_plan.left_out, kept,
        design_plan.coverage, len(run_observations(finished)), spent,
    )  # fmt: skip


def first_runs(campaign: Campaign) -> tuple[PlannedRun, ...]:
    """Return the first runs of a campaign.

    Raises:
        MissingExtra: the packages for experimental design are not installed.
    """
    _require_packages()
    from leadline.campaigns.plan import plan_campaign  # noqa: PLC0415 - numpy and scipy load on use

    return plan_campaign(campaign).runs


def next_runs(campaign: Campaign, finished: tuple[Run, ...], spent: float) -> tuple[PlannedRun, ...]:
    """Return the next runs; empty if none is affordable or worth its cost."""
    _require_packages()
    from leadline.campaigns.adaptive import propose_runs  # noqa: PLC0415 - numpy and scipy load on use

    return propose_runs(campaign, finished, spent)


def _require_packages() -> None:
    if any(find_spec(name) is None for name in ("numpy", "scipy")):
        raise MissingExtra("leadline campaign", "train")


def _finished(campaign: Campaign, folder: Path | None) -> tuple[Run, ...]:
    """Return the campaign's finished runs, without those made with other parameters."""
    ended = [run.run for run in stored_runs(campaign_folder(campaign, folder)) if run.state.final]
    names = {parameter.name for parameter in campaign.parameters}
    return tuple(run for run in ended if set(run.parameters) == names and "elapsed_s" in run.measured)


def _total(scale: Scale, rows: Sequence[PlannedRunRow]) -> ScaleTotal:
    scale_rows = [row for row in rows if row.scale is scale]
    times = [row.forecast_s.point for row in scale_rows if row.forecast_s is not None]
    costs = [row.cost for row in scale_rows if row.cost is not None]
    all_forecast = len(times) == len(scale_rows)
    return ScaleTotal(
        scale, len(scale_rows), sum(times) if all_forecast else None, sum(costs) if all_forecast else None
    )
