"""``leadline campaign run``: execute a campaign's runs, and show its progress."""

import sys
import time
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from leadline.app.campaigns.plan import first_runs, next_runs
from leadline.app.campaigns.runs import (
    CampaignLimits,
    CampaignReport,
    CampaignRun,
    CampaignTotals,
    FailureSummary,
    RemainingWork,
    StopReason,
    budget_unit,
    campaign_folder,
    format_amount,
    read_campaign,
    remaining_work,
    run_campaign,
)
from leadline.app.composition import user_catalog
from leadline.app.machines.targets import LOCAL
from leadline.core.campaigns import BudgetUnit, Campaign
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.jobs import JobState
from leadline.core.units import format_duration, parse_bytes
from leadline.interfaces.cli.output import INTERRUPTED, Json, err, out, print_json

EVERY_S = 30.0
"""Minimum interval between plain progress lines."""
SHOWN_FAILURES = 3
"""Failures with the same state that are shown one by one; the end report counts all of them."""


def format_money(dollars: float) -> str:
    """Return an amount in dollars; less than a cent as ``< $0.01``."""
    return format_amount(dollars, BudgetUnit.USD) if dollars >= 0.01 or not dollars else "< $0.01"


class CampaignProgress(AbstractContextManager["CampaignProgress"]):
    """Shows the state of a campaign on stderr: a progress bar on a terminal, else a line now and then.

    ``unit`` is the unit of its costs.
    """

    def __init__(self, unit: BudgetUnit) -> None:
        self.unit = unit
        self.console = err()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._written_s = time.monotonic()
        self._written_at = -1
        self._interrupts, self._answered = 0, 0
        self._failures: Counter[str] = Counter()

    def interrupted(self) -> None:
        """Count a Ctrl-C; the answer is printed outside the signal handler."""
        self._interrupts += 1

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            columns = (BarColumn(bar_width=24), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._task = self._bar.add_task("starting", total=None)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, tally: CampaignTotals, ended: CampaignRun | None) -> None:
        """Show the state of the campaign, and the run that just ended."""
        if self._interrupts > self._answered:
            self._answered = self._interrupts
            self._answer(tally.running)
        if ended is not None and ended.state is not JobState.COMPLETED:
            self._report_failure(ended)
        if self._bar is not None and self._task is not None:
            total = max(tally.planned, 1)
            self._bar.update(self._task, completed=tally.ended, total=total, description=self.line(tally))
        elif self._is_time(tally):
            self._written_s, self._written_at = time.monotonic(), tally.ended
            self.console.print(self.line(tally), markup=False, soft_wrap=True)

    def line(self, tally: CampaignTotals) -> str:
        """Return one line: ``12 of 40 runs, 1 failed · 3m 20s left · 1m 05s of 20m 00s spent · $0.02``."""
        parts = [f"{tally.ended} of {tally.planned} runs" + (f", {tally.failed} failed" if tally.failed else "")]
        if tally.left_s:
            about = "at least " if tally.unknown else ""
            parts.append(f"{about}{format_duration(tally.left_s / max(tally.running, 1))} left")
        spent = format_amount(tally.spent, self.unit) if tally.spent else "nothing"
        parts.append(
            f"{spent} spent" if tally.budget is None else f"{spent} of {format_amount(tally.budget, self.unit)} spent"
        )
        if tally.money is not None and self.unit is not BudgetUnit.USD:
            parts.append(format_money(tally.money))
        return " · ".join(parts)

    def _is_time(self, tally: CampaignTotals) -> bool:
        """Return whether a plain line is due: the first, the last, and one every ``EVERY_S``."""
        if tally.ended == self._written_at:
            return False
        return self._written_at < 0 or tally.ended == tally.planned or time.monotonic() - self._written_s >= EVERY_S

    def _answer(self, running: int) -> None:
        """Report the effect of a Ctrl-C."""
        runs = f"the {running} runs" if running > 1 else "the run"
        if running and self._interrupts == 1:
            self.console.print(f"no more runs start; waiting for {runs} in progress (Ctrl-C again ends them)")
        elif running:
            self.console.print(f"ending {runs} in progress")

    def _report_failure(self, entry: CampaignRun) -> None:
        why = entry.outcome.reason if entry.outcome and entry.outcome.reason else ""
        code = entry.outcome.exit_code if entry.outcome else None
        how = why or (f"exit code {code}" if code is not None else "")
        self._failures[entry.state] += 1
        if self._failures[entry.state] > SHOWN_FAILURES:
            return
        self.console.print(
            f"run {entry.key} ended {entry.state.value}{f' ({how})' if how else ''}", markup=False, soft_wrap=True
        )


PLACE, RUNS = "Where, and with which resources", "Behaviour"
SCHEMA = "leadline.campaign-run/1"

Folder = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Folder of the campaign.", show_default="campaigns/NAME in the data folder"),
]


def _limit_option(form: str, description: str, default: str = "all", least: int | None = 1) -> Any:  # noqa: ANN401 - an option, for Typer
    return typer.Option(metavar=form, help=description, show_default=default, rich_help_panel=PLACE, min=least)


def _run_flag(name: str, description: str) -> Any:  # noqa: ANN401 - an option, for Typer
    return typer.Option(*name.split(), help=description, rich_help_panel=RUNS)


def run(
    file: Annotated[Path, typer.Argument(metavar="CAMPAIGN.toml", help="Campaign file.", show_default=False)],
    *,
    on: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="Where to run: local, slurm[:PARTITION], or SYSTEM:PARTITION of the catalog (needs "
            "sbatch on this machine).",
            rich_help_panel=PLACE,
        ),
    ] = LOCAL,
    slots: Annotated[
        int | None,
        _limit_option(
            "N",
            "Maximum number of concurrent runs.",
            "1 on this machine, or as many as the limits below allow; unlimited on Slurm",
        ),
    ] = None,
    cores: Annotated[int | None, _limit_option("N", "Cores that concurrent runs share.")] = None,
    memory: Annotated[str | None, _limit_option("SIZE", "Memory that they share, such as 16G.", least=None)] = None,
    gpus: Annotated[int | None, _limit_option("N", "GPUs that they share.", least=0)] = None,
    max_runs: Annotated[
        int | None,
        typer.Option(metavar="N", help="Stop after this many runs.", show_default="none", rich_help_panel=RUNS, min=1),
    ] = None,
    folder: Folder = None,
    retry_failed: Annotated[bool, _run_flag("--retry-failed", "Repeat failed runs.")] = False,
    no_history: Annotated[bool, _run_flag("--no-history", "Do not add the runs to your history.")] = False,
    yes: Annotated[bool, _run_flag("-y --yes", "Run without confirmation.")] = False,
    json: Json = False,
) -> int:
    """Execute the runs of a campaign that are not finished; run it again to resume.

    The first Ctrl-C stops new runs and waits for the running ones; a second one ends those too. No finished run is
    ever
    lost or repeated.
    """
    campaign = read_campaign(file)
    room = CampaignLimits(slots, cores, parse_bytes(memory) if memory else None, gpus)
    planned = first_runs(campaign)
    if not yes:
        _ask(campaign, remaining_work(campaign, planned, folder), on)
    with CampaignProgress(budget_unit(campaign)) as progress:
        report = run_campaign(
            campaign, file, planned, on=on, limits=room, catalog=user_catalog(), folder=folder,
            history=not no_history, propose=next_runs, max_runs=max_runs,
            retry_failed=retry_failed, watch=progress, on_interrupt=progress.interrupted,
        )  # fmt: skip
    if json:
        where = {
            "campaign": campaign.name,
            "folder": str(campaign_folder(campaign, folder)),
            "unit": budget_unit(campaign),
        }
        print_json({**where, **to_document(report, SCHEMA)})
    else:
        out().print(f"{campaign.name}: {progress.line(report.tally)}", markup=False, soft_wrap=True)
    return _conclude(campaign, report, file)


def _ask(campaign: Campaign, ahead: RemainingWork, on: str) -> None:
    """Ask for confirmation before anything is spent; not if nothing is left to run."""
    if not sys.stdin.isatty():
        raise InvalidInput("cannot ask for confirmation without a terminal: add -y to start the runs")
    forecast = [f"forecast {format_duration(ahead.forecast_s)}"] if ahead.forecast_s else []
    if ahead.unknown:
        forecast.append("duration unknown" if ahead.unknown == ahead.runs else f"{ahead.unknown} without a forecast")
    if campaign.budget is not None:
        forecast.append(f"budget {format_amount(campaign.budget.amount, campaign.budget.unit)}")
    elif campaign.walltime_s:
        forecast.append(f"each at most {format_duration(campaign.walltime_s)}")
    place = "this machine" if on == LOCAL else on
    question = f"Start {ahead.runs} runs of {campaign.name!r} on {place} ({', '.join(forecast)})?"
    if ahead.runs:
        typer.confirm(question, default=True, abort=True, err=True)


def _conclude(campaign: Campaign, report: CampaignReport, file: Path) -> int:
    """Report why runs failed and how to go on; return the exit code.

    Raises:
        LeadlineError: no run succeeded.
    """
    console, tally = err(), report.tally
    if tally.failed and not tally.completed:
        raise LeadlineError(_all_failed(campaign, tally.failed, report.causes, file))
    for cause in report.causes:
        console.print(f"{_runs(cause.count)} failed: {cause}", markup=False, soft_wrap=True)
    again = f"resume with leadline campaign run {file}"
    if report.ending in (StopReason.INTERRUPTED, StopReason.STOPPED, StopReason.MAX_RUNS):
        console.print(f"{report.ending.value}: {again}", markup=False, soft_wrap=True)
    elif report.ending is StopReason.BUDGET and campaign.budget is not None:
        amount_left = max(campaign.budget.amount - tally.spent, 0.0)
        unit = campaign.budget.unit
        planned = (
            f"{_runs(tally.planned - tally.ended)} planned but not started;" if tally.planned > tally.ended else ""
        )
        console.print(f"{planned} {format_amount(amount_left, unit)} of the budget left".strip(), markup=False)
    return INTERRUPTED if report.ending is StopReason.INTERRUPTED else 0


def _all_failed(campaign: Campaign, failed: int, causes: list[FailureSummary], file: Path) -> str:
    first = causes[0]
    how = f"{_runs(first.count)} of {failed} ended" if first.count < failed else "it ended" if failed == 1 else "each"
    return (
        f"no run of campaign {campaign.name!r} succeeded: {how} {first}; fix the cause, then run "
        f"leadline campaign run {file} --retry-failed"
    )


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"
