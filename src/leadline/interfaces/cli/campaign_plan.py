"""``leadline campaign plan``: the runs of a campaign with their forecast cost, before anything starts."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from leadline.app.campaigns.plan import CampaignPlan, PlannedRunRow, plan_campaign
from leadline.app.campaigns.runs import format_amount
from leadline.core.campaigns import BudgetUnit, Design
from leadline.core.documents import to_document
from leadline.core.errors import UnknownName
from leadline.core.estimate import Interval
from leadline.core.runs import Scale
from leadline.core.units import format_bytes, format_duration
from leadline.interfaces.cli.output import Json, out, print_json

SCHEMA = "leadline.campaign-plan/1"
ROWS_SHOWN = 24
SCALES = {Scale.SCALED_DOWN: "scaled-down", Scale.FULL_SCALE: "full scale"}


def plan(
    file: Annotated[Path, typer.Argument(metavar="CAMPAIGN.toml", help="The campaign's file.", show_default=False)],
    *,
    design: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="adaptive, space-filling, random or grid.", show_default="the file's"),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="AMOUNT", help="Such as 20m, '3 core-hours' or '2.50 USD'.", show_default="the file's"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Another seed, another design.", show_default="the file's", min=0)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help=f"Show every run, not the first {ROWS_SHOWN}.")] = False,
    json: Json = False,
) -> None:
    """Show the runs of a campaign with their forecast time and cost; nothing is started."""
    made = plan_campaign(file, design=_design(design), budget=budget, seed=seed)
    if json:
        print_json(to_document(made, SCHEMA))
        return
    console = out()
    console.print(_headline(made), markup=False, soft_wrap=True)
    shown = made.runs if everything else made.runs[:ROWS_SHOWN]
    console.print(_table(made, shown))
    if len(shown) < len(made.runs):
        console.print(f"{len(made.runs) - len(shown)} more with --all", style="dim")
    console.print()
    console.print(_totals(made))
    for line in [*_remarks(made), f"Nothing was started: leadline campaign run {file} makes these runs."]:
        console.print(line, markup=False, soft_wrap=True)


def _design(name: str | None) -> Design | None:
    known = [one.value for one in Design]
    if name is not None and name not in known:
        raise UnknownName("design", name, known)
    return None if name is None else Design(name)


def _headline(made: CampaignPlan) -> str:
    parts = [f"{made.campaign}: {made.design} design"]
    if made.budget is not None:
        of = " of run time" if made.unit is BudgetUnit.SECONDS else ""
        parts.append(f"budget {format_amount(made.budget, made.unit)}{of}")
    if made.spent:
        parts.append(f"{format_amount(made.spent, made.unit)} spent")
    if made.walltime_s is not None:
        parts.append(f"each run at most {format_duration(made.walltime_s)}")
    return ", ".join(parts)


def _table(made: CampaignPlan, rows: tuple[PlannedRunRow, ...]) -> Table:
    """Return a table with a column for each parameter, and for each resource that varies or is more than a core."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("scale", no_wrap=True)
    for name, value in rows[0].configuration.parameters.items() if rows else ():
        table.add_column(name, justify="left" if isinstance(value, str) else "right", overflow="fold")
    resources = [name for name in ("cores", "GPUs", "memory", "partition") if any(_resource(row, name) for row in rows)]
    for name in resources:
        table.add_column(name, justify="right", no_wrap=True)
    known = any(row.forecast_s for row in rows)
    money = known and made.unit is not BudgetUnit.SECONDS
    for title in (["forecast", "90 % range"] if known else ["work"]) + (["cost"] if money else []):
        table.add_column(title, justify="right", no_wrap=True)
    made_some = any(row.made for row in rows)
    if made_some:
        table.add_column("")
    for row in rows:
        forecast = [_duration(row.forecast_s), _range(row.forecast_s)] if known else [f"{row.work:.1f} ×"]
        cost = [format_amount(row.cost or 0.0, made.unit)] if money else []
        values = [f"{one:.4g}" if isinstance(one, float) else str(one) for one in row.configuration.parameters.values()]
        asked = [_resource(row, name) for name in resources]
        table.add_row(row.scale.value, *values, *asked, *forecast, *cost, *(["made" * row.made] if made_some else []))
    return table


def _resource(row: PlannedRunRow, name: str) -> str:
    """Return one resource of a run as a cell; empty where it is not asked for."""
    resources = row.configuration.resources
    memory = resources.memory_bytes_per_node
    return {
        "cores": str(resources.cores_per_task or 1),
        "GPUs": str(resources.gpus_per_node) if resources.gpus_per_node else "",
        "memory": "" if memory is None else format_bytes(memory),
        "partition": row.configuration.partition or "",
    }[name]


def _duration(forecast: Interval | None) -> str:
    return "" if forecast is None else format_duration(forecast.point)


def _range(forecast: Interval | None) -> str:
    return "" if forecast is None else f"{format_duration(forecast.low)} – {format_duration(forecast.high)}"


def _totals(made: CampaignPlan) -> Table:
    """Return what the plan comes to at each scale, and what is kept for what is chosen on the way."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    money = made.unit is not BudgetUnit.SECONDS
    table.add_column("together", no_wrap=True)
    for title in ("runs", "forecast", "cost") if money else ("runs", "forecast"):
        table.add_column(title, justify="right", no_wrap=True)
    for total in made.totals:
        time = (
            "not known" if total.forecast_s is None else "none" if not total.runs else format_duration(total.forecast_s)
        )
        cost = "not known" if total.cost is None else "none" if not total.runs else format_amount(total.cost, made.unit)
        table.add_row(SCALES[total.scale], str(total.runs), time, *([cost] if money else []))
    if made.later != 0:
        kept = "" if made.kept is None else f"{format_amount(made.kept, made.unit)} kept"
        table.add_row(
            "chosen on the way", "" if made.later is None else str(made.later), *([""] if money else []), kept
        )
    return table


def _remarks(made: CampaignPlan) -> list[str]:
    """Return what the figures compare with, what follows these runs, and what the forecast rests on."""
    found = []
    cost = sum(total.cost or 0.0 for total in made.totals)
    if made.coverage is not None and cost > 0:
        at_full_scale = format_amount(made.coverage, made.unit)
        found.append(f"As many runs at full scale: {at_full_scale}, {made.coverage / cost:.3g} × as much.")
    if made.later != 0:
        found.append(_what_follows(made))
    if made.left_out:
        found.append(f"{made.left_out} runs are left out: the budget does not allow them.")
    return [*found, _basis(made)]


def _what_follows(made: CampaignPlan) -> str:
    more = "more" if made.later is None else f"{made.later} more configurations"
    within = "" if made.budget is None else ", as the budget allows"
    if made.design is not Design.ADAPTIVE:
        return f"These come first, to learn what runs cost; then {more}{within}."
    how = "at either scale, each where it most reduces the error at full scale for what it costs"
    return f"Then {more} are chosen on the way{within}: {how}."


def _basis(made: CampaignPlan) -> str:
    if made.known_from:
        return f"The forecast rests on {made.known_from} runs of this campaign."
    if made.first_run_s is None:
        return (
            "What runs take is not known before the first; work is relative to the least. A guess of the cheapest run "
            'in the file, such as first_run = "2s", makes a forecast.'
        )
    guess = format_duration(made.first_run_s)
    return (
        f"The forecast rests on first_run, your guess of {guess} for the cheapest run; the first runs make it better."
    )
