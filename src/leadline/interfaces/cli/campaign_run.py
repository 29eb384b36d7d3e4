"""``leadline campaign run``: execute a campaign's runs, and show its progress."""

import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import click

from leadline.app.campaigns.plan import first_runs, next_runs
from leadline.app.campaigns.runs import CampaignLimits, RemainingWork, campaign_folder, remaining_work, run_campaign
from leadline.app.composition import user_catalog
from leadline.app.machines.targets import LOCAL
from leadline.campaigns.budgets import budget_unit, format_amount
from leadline.campaigns.journal import CampaignRun, CampaignTotals, FailureSummary
from leadline.campaigns.runner import CampaignReport, StopReason
from leadline.campaigns.spec import read_campaign
from leadline.core.campaigns import BudgetUnit, Campaign
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.jobs import JobState
from leadline.core.units import format_duration, parse_bytes, pluralize
from leadline.interfaces.cli.command import FILE, INTERRUPTED, argument, command, flag, json_option, option
from leadline.interfaces.cli.output import print_json, print_note, show_live, status

EVERY_S = 30.0
"""Minimum interval between plain progress lines."""
BAR = 24
"""Columns of the progress bar."""
SHOWN_FAILURES = 3
"""Failures with the same state that are shown one by one; the end report counts all of them."""


def format_money(dollars: float) -> str:
    """Return an amount in dollars; less than a cent as ``< $0.01``."""
    return format_amount(dollars, BudgetUnit.USD) if dollars >= 0.01 or not dollars else "< $0.01"


class CampaignProgress:
    """Shows the state of a campaign on stderr: a progress bar on a terminal, else a line now and then.

    ``unit`` is the unit of its costs.
    """

    def __init__(self, unit: BudgetUnit) -> None:
        self.unit = unit
        self._written_s = time.monotonic()
        self._written_at = -1
        self._interrupts, self._answered = 0, 0
        self._failures: Counter[str] = Counter()

    def interrupted(self) -> None:
        """Count a Ctrl-C; the answer is printed outside the signal handler."""
        self._interrupts += 1

    def __call__(self, tally: CampaignTotals, ended: CampaignRun | None) -> None:
        """Show the state of the campaign, and the run that just ended."""
        if self._interrupts > self._answered:
            self._answered = self._interrupts
            self._answer(tally.running)
        if ended is not None and ended.state is not JobState.COMPLETED:
            self._report_failure(ended)
        if sys.stderr.isatty():
            share = "━" * (BAR * tally.ended // max(tally.planned, 1))
            show_live(f"{share:╌<{BAR}} {self.line(tally)}")
        elif self._is_time(tally):
            self._written_s, self._written_at = time.monotonic(), tally.ended
            print_note(self.line(tally))

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
            print_note(f"no more runs start; waiting for {runs} in progress (Ctrl-C again ends them)")
        elif running:
            print_note(f"ending {runs} in progress")

    def _report_failure(self, entry: CampaignRun) -> None:
        how, code = (entry.outcome.reason, entry.outcome.exit_code) if entry.outcome else ("", None)
        how = how or (f"exit code {code}" if code is not None else "")
        self._failures[entry.state] += 1
        if self._failures[entry.state] <= SHOWN_FAILURES:
            print_note(f"run {entry.key} ended {entry.state.value}{f' ({how})' if how else ''}")


where_to_run, RUNS = partial(option, section="Where, and with which resources"), "Behaviour"

folder_option = option("--folder", "FOLDER", "Folder of the campaign.", "campaigns/NAME in the data folder", type=FILE)


@command("run")
@argument("file", "CAMPAIGN.toml", "Campaign file.", type=FILE)
@where_to_run(
    "--on", "PLACE",
    "Where to run: local, slurm[:PARTITION], or SYSTEM:PARTITION of the catalog (needs sbatch on this machine).",
    default=LOCAL,
)  # fmt: skip
@where_to_run(
    "--slots", "N", "Maximum number of concurrent runs.",
    "1 on this machine, or as many as the limits below allow; unlimited on Slurm", type=click.IntRange(1),
)  # fmt: skip
@where_to_run("--cores", "N", "Cores that concurrent runs share.", "all", type=click.IntRange(1))
@where_to_run("--memory", "SIZE", "Memory that they share, such as 16G.", "all", type=parse_bytes)
@where_to_run("--gpus", "N", "GPUs that they share.", "all", type=click.IntRange(0))
@option("--max-runs", "N", "Stop after this many runs.", "none", section=RUNS, type=click.IntRange(1))
@folder_option
@flag("--retry-failed", "Repeat failed runs.", section=RUNS)
@flag("--no-history", "Do not add the runs to your history.", section=RUNS)
@flag("-y --yes", "Run without confirmation.", section=RUNS)
@json_option
def run(
    file: Path, *, on: str, slots: int | None, cores: int | None, memory: int | None, gpus: int | None,
    max_runs: int | None, folder: Path | None, retry_failed: bool, no_history: bool, yes: bool, json: bool,
) -> int:  # fmt: skip
    """Execute the runs of a campaign that are not finished; run it again to resume.

    The first Ctrl-C stops new runs and waits for the running ones; a second one ends those too. No finished run is
    ever lost or repeated.
    """
    campaign = read_campaign(file)
    room = CampaignLimits(slots, cores, memory, gpus)
    with status("planning", quiet=json):
        planned = first_runs(campaign)
    if not yes:
        _ask(campaign, remaining_work(campaign, planned, folder), on)
    progress = CampaignProgress(budget_unit(campaign))
    report = run_campaign(
        campaign, file, planned, on=on, limits=room, catalog=user_catalog(), folder=folder,
        history=not no_history, propose=next_runs, max_runs=max_runs,
        retry_failed=retry_failed, watch=progress, on_interrupt=progress.interrupted,
    )  # fmt: skip
    show_live("")
    if json:
        where = {"campaign": campaign.name, "folder": str(campaign_folder(campaign, folder)), "unit": progress.unit}
        print_json({**where, **to_document(report, "leadline.campaign-run/1")})
    else:
        click.echo(f"{campaign.name}: {progress.line(report.tally)}")
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
        click.confirm(question, default=True, abort=True, err=True)


def _conclude(campaign: Campaign, report: CampaignReport, file: Path) -> int:
    """Report why runs failed and how to go on; return the exit code.

    Raises:
        LeadlineError: no run succeeded.
    """
    tally = report.tally
    if tally.failed and not tally.completed:
        raise LeadlineError(_all_failed(campaign, tally.failed, report.causes, file))
    for cause in report.causes:
        print_note(f"{pluralize(cause.count, 'run')} failed: {cause}")
    again = f"resume with leadline campaign run {file}"
    if report.ending in (StopReason.INTERRUPTED, StopReason.STOPPED, StopReason.MAX_RUNS):
        print_note(f"{report.ending.value}: {again}")
    elif report.ending is StopReason.BUDGET and campaign.budget is not None:
        amount_left = max(campaign.budget.amount - tally.spent, 0.0)
        waiting = tally.planned - tally.ended
        planned = f"{pluralize(waiting, 'run')} planned but not started; " if waiting > 0 else ""
        print_note(f"{planned}{format_amount(amount_left, campaign.budget.unit)} of the budget left")
    return INTERRUPTED if report.ending is StopReason.INTERRUPTED else 0


def _all_failed(campaign: Campaign, failed: int, causes: list[FailureSummary], file: Path) -> str:
    first = causes[0]
    how = "it ended" if failed == 1 else "each"
    if first.count < failed:
        how = f"{pluralize(first.count, 'run')} of {failed} ended"
    return (
        f"no run of campaign {campaign.name!r} succeeded: {how} {first}; fix the cause, then run "
        f"leadline campaign run {file} --retry-failed"
    )
