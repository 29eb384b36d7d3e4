"""``leadline campaign``: plan experiments, run them, and show or stop campaigns."""

from collections.abc import Sequence
from pathlib import Path

import click

from leadline.app.campaigns.plan import CampaignPlan, PlannedRunRow, plan_campaign
from leadline.app.campaigns.runs import (
    CampaignRunStatus,
    CampaignStatus,
    all_campaigns,
    campaign_status,
    find_campaign_folder,
    stop_campaign,
)
from leadline.campaigns.budgets import format_amount
from leadline.core.campaigns import BudgetUnit, Design
from leadline.core.documents import to_document
from leadline.core.errors import choose
from leadline.core.runs import Scale, Value
from leadline.core.units import format_bytes, format_duration
from leadline.interfaces.cli.campaign_run import folder_option, format_money, run
from leadline.interfaces.cli.command import FILE, argument, flag, group, json_option, option
from leadline.interfaces.cli.output import print_answer, print_json, print_note, print_table, status
from leadline.interfaces.tables import format_range, format_time

ROWS_SHOWN = 24
"""Runs of a plan that are shown without ``--all``."""
SCALES = {Scale.SCALED_DOWN: "scaled-down", Scale.FULL_SCALE: "full scale"}
WHICH = ("which", "NAME|CAMPAIGN.toml", "Name or file of the campaign.")


@group("campaign")
def campaign() -> None:
    """Plan cheap runs of an application under a budget, execute them, and show their status."""


@campaign.command("plan")
@argument("file", "CAMPAIGN.toml", "Campaign file.", type=FILE)
@option("--design", "NAME", "adaptive, space-filling, random or grid.", "from the file")
@option("--budget", "AMOUNT", "Such as 20m, '3 core-hours' or '2.50 USD'.", "from the file")
@option("--seed", "N", "Random seed of the design.", "from the file", type=click.IntRange(0))
@flag("everything --all", f"Show all runs instead of the first {ROWS_SHOWN}.")
@json_option
def plan(file: Path, *, design: str | None, budget: str | None, seed: int | None, everything: bool, json: bool) -> None:
    """Show the runs of a campaign with their forecast time and cost, without starting any."""
    with status("planning", quiet=json):
        chosen = None if design is None else choose("design", design, Design)
        campaign_plan = plan_campaign(file, design=chosen, budget=budget, seed=seed)
    if json:
        print_json(to_document(campaign_plan, "leadline.campaign-plan/1"))
        return
    click.echo(_headline(campaign_plan))
    shown = campaign_plan.runs if everything else campaign_plan.runs[:ROWS_SHOWN]
    _print_runs(campaign_plan, shown)
    if len(shown) < len(campaign_plan.runs):
        click.secho(f"{len(campaign_plan.runs) - len(shown)} more with --all", dim=True)
    click.echo()
    _print_totals(campaign_plan)
    for line in [*_remarks(campaign_plan), f"Nothing was started. Start these runs with: leadline campaign run {file}"]:
        click.echo(line)


campaign.add_command(run)


@campaign.command("status")
@argument(*WHICH, "all", required=False)
@folder_option
@json_option
def show_status(which: str | None, *, folder: Path | None, json: bool) -> None:
    """Show the status of all campaigns, or one campaign with its runs, cost and remaining forecast."""
    if which is None and folder is None:
        campaigns = all_campaigns()
        if json:
            print_json({"schema": "leadline.campaigns/1", "campaigns": campaigns})
        elif campaigns:
            _print_table(campaigns)
        else:
            print_note("no campaigns; start one with leadline campaign run FILE")
        return
    shown = campaign_status(find_campaign_folder(which, folder))
    print_answer(shown, "leadline.campaign-status/1", _show, json=json)


@campaign.command("stop")
@argument(*WHICH)
@folder_option
def stop(which: str, *, folder: Path | None) -> None:
    """End the active runs of a campaign; they are repeated when it is resumed."""
    print_note(stop_campaign(find_campaign_folder(which, folder)))


def _show(campaign: CampaignStatus) -> None:
    _print_table([campaign])
    if campaign.runs:
        click.echo()
        titles = ("run", "scale", "parameters", "cores", "forecast", "took", "state")
        print_table(titles, [_row(run) for run in campaign.runs], words=("run", "scale", "parameters", "state"))
    for cause in campaign.causes:
        click.echo(f"{cause.count} failed: {cause}")


def _print_table(campaigns: Sequence[CampaignStatus]) -> None:
    rows = []
    for campaign in campaigns:
        tally = campaign.tally
        forecast_left = format_duration(tally.left_s) if tally.left_s else "unknown" if tally.unknown else "none"
        rows.append((
            campaign.name, *map(str, (tally.planned, tally.completed, tally.failed, tally.running)),
            _spent(campaign), "none" if tally.budget is None else format_amount(tally.budget, campaign.unit),
            f"≥ {forecast_left}" if tally.unknown and tally.left_s else forecast_left,
            campaign.runner or "no process",
        ))  # fmt: skip
    titles = ("campaign", "runs", "done", "failed", "running", "spent", "budget", "forecast left", "runner")
    print_table(titles, rows, words=("campaign", "runner"))


def _spent(campaign: CampaignStatus) -> str:
    spent = format_amount(campaign.tally.spent, campaign.unit) if campaign.tally.spent else "nothing"
    if campaign.tally.money is None or campaign.unit is BudgetUnit.USD:
        return spent
    return f"{spent}, {format_money(campaign.tally.money)}"


def _row(run: CampaignRunStatus) -> tuple[str, ...]:
    parameters = (f"{name}={format_parameter(value)}" for name, value in run.parameters.items())
    return (
        run.id, run.scale.value, " ".join(parameters), f"{run.cores or ''}{f' + {run.gpus} GPU' if run.gpus else ''}",
        "" if run.forecast_s is None else format_duration(run.forecast_s),
        "" if run.elapsed_s is None else format_duration(run.elapsed_s),
        f"{run.state.value} ({run.reason})" if run.reason else run.state.value,
    )  # fmt: skip


def _headline(plan: CampaignPlan) -> str:
    parts = [f"{plan.campaign}: {plan.design} design"]
    if plan.budget is not None:
        of = " of run time" if plan.unit is BudgetUnit.SECONDS else ""
        parts.append(f"budget {format_amount(plan.budget, plan.unit)}{of}")
    if plan.spent:
        parts.append(f"{format_amount(plan.spent, plan.unit)} spent")
    if plan.walltime_s is not None:
        parts.append(f"each run at most {format_duration(plan.walltime_s)}")
    return ", ".join(parts)


def _print_runs(plan: CampaignPlan, rows: tuple[PlannedRunRow, ...]) -> None:
    """Print a table with a column for each parameter, and for each resource that varies or is more than a core."""
    parameters = rows[0].configuration.parameters if rows else {}
    resources = [name for name in ("cores", "GPUs", "memory", "partition") if any(_resource(row, name) for row in rows)]
    has_forecast = any(row.forecast_s for row in rows)
    money = has_forecast and plan.unit is not BudgetUnit.SECONDS
    titles = ["scale", *parameters, *resources]
    titles += (["forecast", "90 % range"] if has_forecast else ["work"]) + ["cost"] * money + [""]
    table = []
    for row in rows:
        forecast = [f"{row.work:.1f} ×"]
        if has_forecast:
            forecast = [format_time(row.forecast_s) if row.forecast_s else "", format_range(row.forecast_s)]
        cost = [format_amount(row.cost or 0.0, plan.unit)] if money else []
        values = map(format_parameter, row.configuration.parameters.values())
        cells = [_resource(row, name) for name in resources]
        table.append([row.scale.value, *values, *cells, *forecast, *cost, "made" * row.made])
    words = [name for name, value in parameters.items() if isinstance(value, str)]
    print_table(titles, table, words=("scale", "partition", "", *words))


def format_parameter(value: Value) -> str:
    """Return the value of a parameter with at most four digits after rounding."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _resource(row: PlannedRunRow, name: str) -> str:
    """Return one resource of a run as a cell; empty if it is not requested."""
    resources = row.configuration.resources
    memory = resources.memory_bytes_per_node
    return {
        "cores": str(resources.cores_per_task or 1),
        "GPUs": str(resources.gpus_per_node) if resources.gpus_per_node else "",
        "memory": "" if memory is None else format_bytes(memory),
        "partition": row.configuration.partition or "",
    }[name]


def _print_totals(plan: CampaignPlan) -> None:
    """Print the totals of the plan by scale, and the budget reserved for later runs."""
    money, rows = plan.unit is not BudgetUnit.SECONDS, []
    for total in plan.totals:
        nothing = None if total.runs else "none"
        time = "unknown" if total.forecast_s is None else nothing or format_duration(total.forecast_s)
        cost = "unknown" if total.cost is None else nothing or format_amount(total.cost, plan.unit)
        rows.append([SCALES[total.scale], str(total.runs), time, *[cost] * money])
    if plan.later != 0:
        reserved = "" if plan.kept is None else f"{format_amount(plan.kept, plan.unit)} reserved"
        rows.append(["chosen later", "" if plan.later is None else str(plan.later), *[""] * money, reserved])
    print_table(["together", "runs", "forecast", *["cost"] * money], rows, words=("together",))


def _remarks(plan: CampaignPlan) -> list[str]:
    """Return the comparison with full scale, the later runs, and the basis of the forecast."""
    remarks = []
    cost = sum(total.cost or 0.0 for total in plan.totals)
    if plan.coverage is not None and cost > 0:
        at_full_scale = format_amount(plan.coverage, plan.unit)
        remarks.append(f"The same number of runs at full scale: {at_full_scale}, {plan.coverage / cost:.3g} × as much.")
    if plan.later != 0:
        remarks.append(_later_runs(plan))
    if plan.left_out:
        remarks.append(f"{plan.left_out} runs left out: over budget.")
    return [*remarks, _basis(plan)]


def _later_runs(plan: CampaignPlan) -> str:
    more = "more" if plan.later is None else f"{plan.later} more configurations"
    within = "" if plan.budget is None else ", as the budget allows"
    if plan.design is not Design.ADAPTIVE:
        return f"These runs come first, to measure costs; then {more}{within}."
    how = "at either scale, where the error at full scale falls most for the cost"
    return f"Then {more} are chosen during the campaign{within}: {how}."


def _basis(plan: CampaignPlan) -> str:
    if plan.known_from:
        return f"The forecast uses {plan.known_from} runs of this campaign."
    if plan.first_run_s is None:
        return (
            "No forecast before the first run; work is relative to the cheapest run. Add first_run = "
            '"2s" (a guess for the cheapest run) to the file to get one.'
        )
    guess = format_duration(plan.first_run_s)
    return f"The forecast uses first_run, your guess of {guess} for the cheapest run; the first runs will improve it."
