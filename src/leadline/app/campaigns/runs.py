"""The verbs ``campaign run``, ``status`` and ``stop``."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from leadline.app import settings
from leadline.app.campaigns.places import CampaignLimits, end_running_jobs, find_campaign_place
from leadline.app.machines.targets import LOCAL
from leadline.campaigns.budgets import budget_unit, format_amount
from leadline.campaigns.journal import (
    JOURNAL,
    PARSED,
    CampaignTotals,
    FailureSummary,
    campaign_totals,
    failure_summaries,
    find_runner,
    open_journal,
    read_planned_run,
    read_stored_campaign,
    runner_lock,
    store_campaign,
    total_elapsed_s,
)
from leadline.campaigns.runner import STOP_FLAG, CampaignReport, ProposeRuns, Runner, StopReason
from leadline.campaigns.spec import read_campaign
from leadline.core.campaigns import BudgetUnit, Campaign, PlannedRun
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.jobs import JobState
from leadline.core.ports import Catalog
from leadline.core.runs import Scale, Value
from leadline.execution.schedulers.job_queue import QueueEntry
from leadline.history.sqlite import SqliteHistory

__all__ = [  # the commands need these of the rooms below
    "CampaignLimits", "CampaignReport", "CampaignRunStatus", "CampaignStatus", "CampaignTotals", "FailureSummary",
    "QueueEntry", "RemainingWork", "StopReason", "all_campaigns", "budget_unit", "campaign_folder", "campaign_status",
    "find_campaign_folder", "format_amount", "read_campaign", "remaining_work", "run_campaign", "stop_campaign",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class CampaignRunStatus:
    """One run of a campaign, for ``campaign status``."""

    id: str
    scale: Scale
    parameters: dict[str, Value]
    cores: int | None
    gpus: int
    state: JobState
    attempt: int
    forecast_s: float | None
    elapsed_s: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class CampaignStatus:
    """A campaign: its totals, its runner, its runs in the order of the plan, and the causes of failures."""

    name: str
    folder: str
    tally: CampaignTotals
    unit: BudgetUnit
    runner: str | None
    runs: tuple[CampaignRunStatus, ...]
    causes: tuple[FailureSummary, ...]


def campaigns_dir() -> Path:
    """Return the folder with one folder per campaign."""
    return settings.data_dir() / "campaigns"


def run_campaign(
    campaign: Campaign,
    file: Path,
    planned: Sequence[PlannedRun],
    *,
    on: str = LOCAL,
    limits: CampaignLimits | None = None,
    catalog: Catalog | None = None,
    folder: Path | None = None,
    history: bool = True,
    propose: ProposeRuns | None = None,
    max_runs: int | None = None,
    retry_failed: bool = False,
    watch: Callable[[CampaignTotals, QueueEntry | None], None] = lambda *_: None,
    on_interrupt: Callable[[], None] = lambda: None,
) -> CampaignReport:
    """Execute planned runs that are not finished; SIGINT stops the campaign in order.

    Raises:
        LeadlineError: another process runs the campaign, or its folder or the history cannot be used.
        InvalidInput: a run requests more than the place has.
    """
    place = find_campaign_place(on, limits or CampaignLimits(), campaign, planned, catalog)
    folder = campaign_folder(campaign, folder)
    settings.require_writable(folder)
    store = SqliteHistory(settings.history_path()) if history else None
    if store is not None:
        # An unreadable history must fail now, and not after hours of running.
        next(iter(store.runs(limit=1)), None)
    store_campaign(folder, campaign, file)
    with runner_lock(folder, campaign.name), open_journal(folder) as journal:
        runner = Runner(
            campaign,
            journal=journal,
            folder=folder,
            history=store,
            propose=propose,
            place=place.place,
            max_runs=max_runs,
            retry_failed=retry_failed,
            watch=watch,
        )
        queue = place.queue(journal, folder, runner.limit_s)
        with _interrupts(runner.interrupt, on_interrupt):
            return runner.run(planned, queue)


@dataclass(frozen=True, slots=True)
class RemainingWork:
    """The unfinished runs of a campaign: their number, their forecast, and how many have none."""

    runs: int
    forecast_s: float
    unknown: int


def remaining_work(campaign: Campaign, planned: Sequence[PlannedRun], folder: Path | None = None) -> RemainingWork:
    """Return the unfinished runs of this plan and of earlier ones."""
    folder = campaign_folder(campaign, folder)
    finished: set[str] = set()
    waiting = {run.id: run for run in planned}
    if (folder / JOURNAL).exists():
        with open_journal(folder) as journal:
            entries = journal.entries()
        finished = {entry.key for entry in entries if entry.state.final}
        waiting = {**{entry.key: read_planned_run(entry) for entry in entries}, **waiting}
    unfinished = [run for key, run in waiting.items() if key not in finished]
    forecasts = [run.forecast_s.point for run in unfinished if run.forecast_s is not None]
    return RemainingWork(len(unfinished), sum(forecasts), len(unfinished) - len(forecasts))


def campaign_folder(campaign: Campaign, folder: Path | None) -> Path:
    """Return the folder of a campaign."""
    return (folder or campaigns_dir() / campaign.name).absolute()


@contextmanager
def _interrupts(*callbacks: Callable[[], None]) -> Iterator[None]:
    """Call the functions on Ctrl-C while the context lasts."""

    def on_signal(*_: object) -> None:
        for callback in callbacks:
            callback()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def find_campaign_folder(which: str | None, folder: Path | None) -> Path:
    """Return a campaign's folder by its name, its file, or the folder itself.

    Raises:
        UnknownName: no campaign of that name was run.
    """
    if folder is not None:
        return folder.absolute()
    if which is None:
        raise InvalidInput("no campaign given: add its name or its file; leadline campaign status lists them")
    name = which
    if which.endswith(".toml") and Path(which).is_file():
        name = read_campaign(Path(which)).name
    path = campaigns_dir() / name
    if not (path / PARSED).is_file():
        raise UnknownName("campaign", name, _names(), fix="start one with leadline campaign run FILE")
    return path


def _names() -> list[str]:
    return sorted(path.parent.name for path in campaigns_dir().glob(f"*/{PARSED}"))


def all_campaigns() -> tuple[CampaignStatus, ...]:
    """Return every campaign in the user's folder, by name."""
    return tuple(campaign_status(campaigns_dir() / name) for name in _names())


def campaign_status(folder: Path) -> CampaignStatus:
    """Return the status of the campaign in a folder.

    Raises:
        LeadlineError: there is none, or it cannot be read.
    """
    campaign = read_stored_campaign(folder)
    entries: tuple[QueueEntry, ...] = ()
    if (folder / JOURNAL).exists():
        with open_journal(folder) as journal:
            entries = journal.entries()
    return CampaignStatus(
        campaign.name,
        str(folder),
        campaign_totals(campaign, entries),
        budget_unit(campaign),
        find_runner(folder),
        tuple(_run_state(entry) for entry in entries),
        tuple(failure_summaries(entries, folder)),
    )


def _run_state(entry: QueueEntry) -> CampaignRunStatus:
    planned = read_planned_run(entry)
    resources = planned.configuration.resources
    return CampaignRunStatus(
        entry.key,
        planned.scale,
        planned.configuration.parameters,
        resources.cores_per_task,
        resources.gpus_per_node,
        entry.state,
        entry.attempt,
        planned.forecast_s.point if planned.forecast_s else None,
        total_elapsed_s(entry) if entry.outcome else None,
        entry.outcome.reason if entry.outcome else "",
    )


def stop_campaign(folder: Path) -> str:
    """Stop a campaign: through its runner, or else by ending its running jobs; return the result in a sentence.

    Raises:
        LeadlineError: there is no campaign.
    """
    name = read_stored_campaign(folder).name
    with open_journal(folder) as journal:
        if (runner := find_runner(folder)) is not None:
            journal.set_flag(STOP_FLAG)
            return f"stopping campaign {name!r}: {runner} ends its runs now; leadline campaign run resumes it"
        with runner_lock(folder, name):
            ended = end_running_jobs(journal, folder)
    if not ended:
        return f"campaign {name!r} is not running"
    return f"campaign {name!r} had no runner; ended {ended} of its runs"
