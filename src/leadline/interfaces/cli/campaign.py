"""``leadline campaign``: plan experiments, run them, and show or stop campaigns."""

from collections.abc import Sequence
from pathlib import Path

import click

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
from leadline.core.units import format_duration
from leadline.interfaces.cli.campaign_plan import format_parameter, plan
from leadline.interfaces.cli.campaign_run import folder_option, format_money, run
from leadline.interfaces.cli.command import argument, group, json_option
from leadline.interfaces.cli.output import print_answer, print_json, print_note, print_table

WHICH = ("which", "NAME|CAMPAIGN.toml", "Name or file of the campaign.")


@group("campaign")
def campaign() -> None:
    """Plan cheap runs of an application under a budget, execute them, and show their status."""


campaign.add_command(plan)
campaign.add_command(run)


@campaign.command("status")
@argument(*WHICH, "all", required=False)
@folder_option
@json_option
def status(which: str | None, *, folder: Path | None, json: bool) -> None:
    """Show the status of all campaigns, or one campaign with its runs, cost and remaining forecast."""
    if which is None and folder is None:
        _show_all(all_campaigns(), json=json)
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


def _show_all(campaigns: tuple[CampaignStatus, ...], *, json: bool) -> None:
    if json:
        print_json({"schema": "leadline.campaigns/1", "campaigns": campaigns})
    elif campaigns:
        _print_table(campaigns)
    else:
        print_note("no campaigns; start one with leadline campaign run FILE")


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
