"""The verb ``campaign plan``, and what chooses the runs of a campaign that is being run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from leadline.app.campaigns.runs import campaign_folder
from leadline.campaigns.budgets import budget_unit, compute_cost, parse_budget, require_prices
from leadline.campaigns.journal import JOURNAL, open_journal, run_from_entry
from leadline.campaigns.spec import read_campaign
from leadline.core.campaigns import BudgetUnit, Campaign, Configuration, Design, PlannedRun
from leadline.core.errors import MissingExtra
from leadline.core.estimate import Interval
from leadline.core.runs import Run, Scale


@dataclass(frozen=True, slots=True)
class PlannedRunRow:
    """One run of a plan: ``work`` in units of the least, ``cost`` in the budget's unit; ``made`` if it has ended."""

    id: str
    scale: Scale
    configuration: Configuration
    repeat: int
    work: float
    forecast_s: Interval | None
    cost: float | None
    made: bool


@dataclass(frozen=True, slots=True)
class ScaleTotal:
    """The runs of one scale together; ``None`` where no cost is known yet."""

    scale: Scale
    runs: int
    forecast_s: float | None
    cost: float | None


@dataclass(frozen=True, slots=True)
class CampaignPlan:
    """What a campaign starts with, and what that costs in the budget's ``unit``.

    ``later`` further configurations are chosen on the way (``None``: as the budget allows) from ``kept``; ``left_out``
    runs are more than the budget allows. ``coverage`` is what as many runs would cost at full scale. ``known_from`` is
    how many runs the forecast rests on; 0 with a forecast: on the guess of the first run. ``spent`` is what the runs
    that ended took, and is in ``kept`` no more.
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
    """Return the runs that a campaign's file starts with, under another design, budget or seed if given.

    Nothing is started. The forecast rests on the campaign's own runs that ended, where there are any.

    Raises:
        InvalidInput: the file or the budget is not valid.
        MissingExtra: what designs runs is not installed.
    """
    campaign = read_campaign(file)
    campaign = replace(campaign, design=design or campaign.design, seed=campaign.seed if seed is None else seed)
    if budget is not None:
        campaign = replace(campaign, budget=parse_budget(budget))
        require_prices(campaign, parse_budget(budget))
    finished = _finished(campaign, folder)
    with _designing():
        from leadline.campaigns.plan import plan_campaign  # noqa: PLC0415
        from leadline.campaigns.run_time_model import run_observations  # noqa: PLC0415 - numpy and scipy load for a design only

        found = plan_campaign(campaign, finished)
    made = {run.id for run in finished}
    rows = tuple(_row(campaign, *one, made) for one in zip(found.runs, found.relative, strict=True))
    spent = sum(compute_cost(campaign, run.job.resources, run.measured["elapsed_s"].value) for run in finished)
    ahead = sum(row.cost or 0.0 for row in rows if not row.made)
    kept = max(campaign.budget.amount - spent - ahead, 0.0) if campaign.budget and found.kept is not None else None
    return CampaignPlan(
        campaign.name, campaign.design, campaign.seed, budget_unit(campaign),
        campaign.budget.amount if campaign.budget else None, campaign.walltime_s, campaign.first_run_s, rows,
        tuple(_total(scale, rows) for scale in Scale), found.later, found.left_out, kept, found.coverage,
        len(run_observations(finished)), spent,
    )  # fmt: skip


def first_runs(campaign: Campaign) -> tuple[PlannedRun, ...]:
    """Return the runs that a campaign starts with.

    Raises:
        MissingExtra: what designs them is not installed.
    """
    with _designing():
        from leadline.campaigns.plan import plan_campaign  # noqa: PLC0415 - numpy and scipy load when something is designed

        return plan_campaign(campaign).runs


def next_runs(campaign: Campaign, finished: tuple[Run, ...], spent: float) -> tuple[PlannedRun, ...]:
    """Return the runs to make after those that ended; none where nothing is worth its cost or affordable."""
    with _designing():
        from leadline.campaigns.adaptive import propose_runs  # noqa: PLC0415 - numpy and scipy load for a design only

        return propose_runs(campaign, finished, spent)


@contextmanager
def _designing() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("numpy", "scipy"):
            raise
        raise MissingExtra("leadline campaign", "train") from error


def _finished(campaign: Campaign, folder: Path | None) -> tuple[Run, ...]:
    """Return the campaign's own runs that ended, but for those made when it had other parameters."""
    kept = campaign_folder(campaign, folder)
    if not (kept / JOURNAL).exists():
        return ()
    with open_journal(kept) as journal:
        ended = [run_from_entry(entry) for entry in journal.entries() if entry.state.final and entry.outcome]
    names = {parameter.name for parameter in campaign.parameters}
    return tuple(run for run in ended if set(run.parameters) == names and "elapsed_s" in run.measured)


def _row(campaign: Campaign, one: PlannedRun, work: float, made: set[str]) -> PlannedRunRow:
    resources = one.configuration.resources
    cost = None if one.forecast_s is None else compute_cost(campaign, resources, one.forecast_s.point)
    return PlannedRunRow(one.id, one.scale, one.configuration, one.repeat, work, one.forecast_s, cost, one.id in made)


def _total(scale: Scale, rows: Sequence[PlannedRunRow]) -> ScaleTotal:
    of_it = [row for row in rows if row.scale is scale]
    times = [row.forecast_s.point for row in of_it if row.forecast_s is not None]
    costs = [row.cost for row in of_it if row.cost is not None]
    known = len(times) == len(of_it)
    return ScaleTotal(scale, len(of_it), sum(times) if known else None, sum(costs) if known else None)
