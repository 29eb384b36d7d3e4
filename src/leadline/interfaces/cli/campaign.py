"""``leadline campaign``: plan experiments, run them, and show or stop campaigns."""

from typing import Annotated

import typer
from rich.table import Table

from leadline.app.campaigns.runs import (
    CampaignRunStatus,
    CampaignStatus,
    all_campaigns,
    campaign_status,
    find_campaign_folder,
    format_amount,
    stop_campaign,
)
from leadline.core.campaigns import BudgetUnit
from leadline.core.documents import to_document
from leadline.core.units import format_duration
from leadline.interfaces.cli.campaign_plan import plan
from leadline.interfaces.cli.campaign_run import Folder, format_money, run
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.output import Json, err, out, print_json

SCHEMA = "leadline.campaign-status/1"

Which = Annotated[
    str | None,
    typer.Argument(metavar="NAME|CAMPAIGN.toml", help="Name or file of the campaign.", show_default="all"),
]


def status(which: Which = None, *, folder: Folder = None, json: Json = False) -> None:
    """Show the status of all campaigns, or one campaign with its runs, cost and remaining forecast."""
    if which is None and folder is None:
        _show_all(all_campaigns(), json=json)
        return
    shown = campaign_status(find_campaign_folder(which, folder))
    if json:
        print_json(to_document(shown, SCHEMA))
        return
    console = out()
    console.print(_table([shown]))
    if shown.runs:
        console.print()
        console.print(_runs_table(shown))
    for cause in shown.causes:
        console.print(f"{cause.count} failed: {cause}", markup=False, soft_wrap=True)


def stop(
    which: Annotated[
        str, typer.Argument(metavar="NAME|CAMPAIGN.toml", help="Name or file of the campaign.", show_default=False)
    ],
    *,
    folder: Folder = None,
) -> None:
    """End the active runs of a campaign; they are repeated when it is resumed."""
    err().print(stop_campaign(find_campaign_folder(which, folder)), markup=False, soft_wrap=True)


def _show_all(campaigns: tuple[CampaignStatus, ...], *, json: bool) -> None:
    if json:
        print_json({"schema": "leadline.campaigns/1", "campaigns": campaigns})
    elif campaigns:
        out().print(_table(campaigns))
    else:
        err().print("no campaigns; start one with leadline campaign run FILE")


def _table(campaigns: tuple[CampaignStatus, ...] | list[CampaignStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("campaign", no_wrap=True)
    for title in ("runs", "done", "failed", "running", "spent", "budget", "forecast left"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("runner", overflow="fold")
    for campaign in campaigns:
        tally = campaign.tally
        forecast_left = format_duration(tally.left_s) if tally.left_s else "unknown" if tally.unknown else "none"
        table.add_row(
            campaign.name,
            *map(str, (tally.planned, tally.completed, tally.failed, tally.running)),
            _spent(campaign),
            "none" if tally.budget is None else format_amount(tally.budget, campaign.unit),
            f"≥ {forecast_left}" if tally.unknown and tally.left_s else forecast_left,
            campaign.runner or "no process",
        )
    return table


def _spent(campaign: CampaignStatus) -> str:
    spent = format_amount(campaign.tally.spent, campaign.unit) if campaign.tally.spent else "nothing"
    if campaign.tally.money is None or campaign.unit is BudgetUnit.USD:
        return spent
    return f"{spent}, {format_money(campaign.tally.money)}"


def _runs_table(campaign: CampaignStatus) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("run", "scale", "parameters"):
        table.add_column(title, no_wrap=title != "parameters", overflow="fold")
    for title in ("cores", "forecast", "took"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for state in campaign.runs:
        table.add_row(*_row(state))
    return table


def _row(run: CampaignRunStatus) -> tuple[str, ...]:
    parameters = " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in run.parameters.items()
    )
    return (
        run.id,
        run.scale.value,
        parameters,
        f"{run.cores or ''}{f' + {run.gpus} GPU' if run.gpus else ''}",
        "" if run.forecast_s is None else format_duration(run.forecast_s),
        "" if run.elapsed_s is None else format_duration(run.elapsed_s),
        f"{run.state.value} ({run.reason})" if run.reason else run.state.value,
    )


app = CommandApp(
    group=True, help="Plan cheap runs of an application under a budget, execute them, and show their status."
)
for command in (plan, run, status, stop):
    app.command()(command)
