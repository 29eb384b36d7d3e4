"""``leadline campaign status`` and ``stop``: where campaigns stand, and how to end one from elsewhere."""

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
    typer.Argument(metavar="NAME|CAMPAIGN.toml", help="The campaign's name or its file.", show_default="all"),
]


def status(which: Which = None, *, folder: Folder = None, json: Json = False) -> None:
    """Show where all campaigns stand, or one with its runs, what it spent and what is left of its forecast."""
    if which is None and folder is None:
        _show_all(all_campaigns(), json=json)
        return
    one = campaign_status(find_campaign_folder(which, folder))
    if json:
        print_json(to_document(one, SCHEMA))
        return
    console = out()
    console.print(_table([one]))
    if one.runs:
        console.print()
        console.print(_runs_table(one))
    for cause in one.causes:
        console.print(f"{cause.count} failed: {cause}", markup=False, soft_wrap=True)


def stop(
    which: Annotated[
        str, typer.Argument(metavar="NAME|CAMPAIGN.toml", help="The campaign's name or its file.", show_default=False)
    ],
    *,
    folder: Folder = None,
) -> None:
    """End the runs at work of a campaign, whoever runs it; they are made again when it is resumed."""
    err().print(stop_campaign(find_campaign_folder(which, folder)), markup=False, soft_wrap=True)


def _show_all(found: tuple[CampaignStatus, ...], *, json: bool) -> None:
    if json:
        print_json({"schema": "leadline.campaigns/1", "campaigns": found})
    elif found:
        out().print(_table(found))
    else:
        err().print("no campaign was run yet: leadline campaign run FILE")


def _table(found: tuple[CampaignStatus, ...] | list[CampaignStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("campaign", no_wrap=True)
    for title in ("runs", "done", "failed", "at work", "spent", "budget", "forecast left"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("run by", overflow="fold")
    for one in found:
        tally = one.tally
        left = format_duration(tally.left_s) if tally.left_s else "not known" if tally.unknown else "none"
        table.add_row(
            one.name,
            *map(str, (tally.planned, tally.completed, tally.failed, tally.running)),
            _spent(one),
            "none" if tally.budget is None else format_amount(tally.budget, one.unit),
            f"≥ {left}" if tally.unknown and tally.left_s else left,
            one.runner or "nobody",
        )
    return table


def _spent(one: CampaignStatus) -> str:
    spent = format_amount(one.tally.spent, one.unit) if one.tally.spent else "nothing"
    if one.tally.money is None or one.unit is BudgetUnit.USD:
        return spent
    return f"{spent}, {format_money(one.tally.money)}"


def _runs_table(one: CampaignStatus) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("run", "scale", "parameters"):
        table.add_column(title, no_wrap=title != "parameters", overflow="fold")
    for title in ("cores", "forecast", "took"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for state in one.runs:
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
    group=True, help="Plan cheap runs of an application under a budget, make them, and see where they stand."
)
for command in (plan, run, status, stop):
    app.command()(command)
