"""``leadline campaign run``: make a campaign's runs, and say how it went."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from leadline.app.campaign_plan import first_runs, next_runs
from leadline.app.campaign_runs import (
    Ahead,
    Cause,
    Ending,
    Report,
    Room,
    campaign_folder,
    format_amount,
    read_campaign,
    run_campaign,
    unit_of,
    what_is_ahead,
)
from leadline.app.composition import toolbox
from leadline.app.places import LOCAL
from leadline.core.campaigns import Campaign
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.units import format_duration, parse_bytes
from leadline.interfaces.cli.campaign_progress import CampaignProgress
from leadline.interfaces.cli.face import INTERRUPTED, Json, err, out, print_json

PLACE, RUNS = "Where, and how much of it", "What happens"
SCHEMA = "leadline.campaign-run/1"

Folder = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="The folder that keeps the campaign.", show_default="campaigns/NAME in the data folder"
    ),
]


def _room(form: str, what: str, default: str = "all", least: int | None = 1) -> Any:  # noqa: ANN401 - an option, for Typer
    return typer.Option(metavar=form, help=what, show_default=default, rich_help_panel=PLACE, min=least)


def _flag(name: str, what: str) -> Any:  # noqa: ANN401 - an option, for Typer
    return typer.Option(*name.split(), help=what, rich_help_panel=RUNS)


def run(
    file: Annotated[Path, typer.Argument(metavar="CAMPAIGN.toml", help="The campaign's file.", show_default=False)],
    *,
    on: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="Where: local; slurm[:PARTITION], or SYSTEM:PARTITION of the catalog, where sbatch is at hand.",
            rich_help_panel=PLACE,
        ),
    ] = LOCAL,
    slots: Annotated[
        int | None, _room("N", "Runs at once.", "1 here, and with a limit below as many as fit; on Slurm no limit")
    ] = None,
    cores: Annotated[int | None, _room("N", "Cores that runs side by side share out.")] = None,
    memory: Annotated[str | None, _room("SIZE", "Memory that they share out, such as 16G.", least=None)] = None,
    gpus: Annotated[int | None, _room("N", "GPUs that they share out.", least=0)] = None,
    max_runs: Annotated[
        int | None,
        typer.Option(metavar="N", help="End after so many runs.", show_default="none", rich_help_panel=RUNS, min=1),
    ] = None,
    folder: Folder = None,
    retry_failed: Annotated[bool, _flag("--retry-failed", "Make runs again that failed before.")] = False,
    no_history: Annotated[bool, _flag("--no-history", "Keep the runs out of your history.")] = False,
    yes: Annotated[bool, _flag("-y --yes", "Do not ask before running.")] = False,
    json: Json = False,
) -> int:
    """Make the runs of a campaign that are not finished; called again, it goes on where it ended.

    Ctrl-C starts no more runs and waits for those at work; a second one ends them. Whatever is killed, no run that
    finished is lost or made again.
    """
    campaign = read_campaign(file)
    room = Room(slots, cores, parse_bytes(memory) if memory else None, gpus)
    planned = first_runs(campaign)
    if not yes:
        _ask(campaign, what_is_ahead(campaign, planned, folder), on)
    with CampaignProgress(unit_of(campaign)) as progress:
        report = run_campaign(
            campaign, file, planned, on=on, room=room, catalog=toolbox().catalog, folder=folder,
            history=not no_history, propose=next_runs, max_runs=max_runs,
            retry_failed=retry_failed, watch=progress, on_interrupt=progress.interrupted,
        )  # fmt: skip
    if json:
        where = {"campaign": campaign.name, "folder": str(campaign_folder(campaign, folder)), "unit": unit_of(campaign)}
        print_json({**where, **to_document(report, SCHEMA)})
    else:
        out().print(f"{campaign.name}: {progress.line(report.tally)}", markup=False, soft_wrap=True)
    return _conclude(campaign, report, file)


def _ask(campaign: Campaign, ahead: Ahead, on: str) -> None:
    """Ask before anything is spent; not if there is nothing to do that is known beforehand."""
    if not sys.stdin.isatty():
        raise InvalidInput("nobody can be asked whether to make the runs, for there is no terminal: add -y")
    forecast = [f"forecast {format_duration(ahead.forecast_s)}"] if ahead.forecast_s else []
    if ahead.unknown:
        forecast.append("not known how long" if ahead.unknown == ahead.runs else f"{ahead.unknown} without a forecast")
    if campaign.budget is not None:
        forecast.append(f"budget {format_amount(campaign.budget.amount, campaign.budget.unit)}")
    elif campaign.walltime_s:
        forecast.append(f"each at most {format_duration(campaign.walltime_s)}")
    place = "this machine" if on == LOCAL else on
    question = f"Make {ahead.runs} runs of {campaign.name!r} on {place} ({', '.join(forecast)})?"
    if ahead.runs:
        typer.confirm(question, default=True, abort=True, err=True)


def _conclude(campaign: Campaign, report: Report, file: Path) -> int:
    """Say why runs failed and how to go on; return the exit code.

    Raises:
        LeadlineError: no run succeeded.
    """
    console, tally = err(), report.tally
    if tally.failed and not tally.completed:
        raise LeadlineError(_all_failed(campaign, tally.failed, report.causes, file))
    for cause in report.causes:
        console.print(f"{_runs(cause.count)} failed: {cause}", markup=False, soft_wrap=True)
    again = f"leadline campaign run {file} goes on from here"
    if report.ending in (Ending.INTERRUPTED, Ending.STOPPED, Ending.MAX_RUNS):
        console.print(f"{report.ending.value}: {again}", markup=False, soft_wrap=True)
    elif report.ending is Ending.BUDGET and campaign.budget is not None:
        left = max(campaign.budget.amount - tally.spent, 0.0)
        unit = campaign.budget.unit
        what = f"{_runs(tally.planned - tally.ended)} planned and not made, for" if tally.planned > tally.ended else ""
        console.print(f"{what} {format_amount(left, unit)} of the budget are left".strip(), markup=False)
    return INTERRUPTED if report.ending is Ending.INTERRUPTED else 0


def _all_failed(campaign: Campaign, failed: int, causes: list[Cause], file: Path) -> str:
    first = causes[0]
    how = f"{_runs(first.count)} of {failed} ended" if first.count < failed else "it ended" if failed == 1 else "each"
    return (
        f"no run of campaign {campaign.name!r} succeeded: {how} {first}; mend the cause, then "
        f"leadline campaign run {file} --retry-failed"
    )


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"
