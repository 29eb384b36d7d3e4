"""The verbs ``campaign run``, ``status`` and ``stop``: runs on this machine, or on its Slurm."""

import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from leadline.app import settings
from leadline.app.jobs.schedulers import find_partition
from leadline.app.machines.targets import ANY_SLURM, LOCAL
from leadline.campaigns.budgets import budget_unit
from leadline.campaigns.configurations import build_job
from leadline.campaigns.folder import (
    LOCK,
    PARSED,
    find_runner,
    has_journal,
    open_journal,
    read_stored_campaign,
    runner_lock,
    store_campaign,
)
from leadline.campaigns.journal import CampaignRun, CampaignTotals, FailureSummary, campaign_totals, failure_summaries
from leadline.campaigns.place import RunPlace
from leadline.campaigns.runner import CampaignReport, ProposeRuns, Runner
from leadline.campaigns.spec import read_campaign
from leadline.core.campaigns import BudgetUnit, Campaign, PlannedRun
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.ports import Catalog
from leadline.core.runs import Scale, Value
from leadline.execution.schedulers.local.capacity import Slots
from leadline.execution.schedulers.local.queue import machine_slots
from leadline.files.lock import file_lock
from leadline.files.read import is_file
from leadline.history.sqlite import SqliteHistory


class CampaignLimits(Frozen):
    """Limits on the resources that a campaign uses at once.

    On this machine without any limit, one run at a time may use everything. On Slurm, ``slots`` is the number of array
    elements that run at once, and the scheduler shares the rest.
    """

    slots: int | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    gpus: int | None = None


def find_campaign_place(
    on: str,
    limits: CampaignLimits,
    campaign: Campaign,
    planned: Sequence[PlannedRun],
    folder: Path,
    catalog: Catalog | None = None,
) -> RunPlace:
    """Return the place that ``on`` names; refuse one that cannot run what is planned.

    Raises:
        UnknownName: unknown system or partition.
        InvalidInput: this machine has no Slurm, or a run requests more than the place has.
    """
    system, _, partition = on.partition(":")
    if system.casefold() == LOCAL:
        place = RunPlace(folder, _slots(limits))
    else:
        _check_slurm(system, partition or None, limits, catalog)
        place = RunPlace(
            folder, machine_slots(), system=ANY_SLURM if system.casefold() == ANY_SLURM else system,
            partition=partition or None, partition_of=lambda spec: find_partition(spec, catalog),
            max_running=limits.slots,
        )  # fmt: skip
    for run in planned:
        place.check(build_job(campaign, run))
    return place


def _check_slurm(system: str, partition: str | None, limits: CampaignLimits, catalog: Catalog | None) -> None:
    for option, value in (("--cores", limits.cores), ("--memory", limits.memory_bytes), ("--gpus", limits.gpus)):
        if value is not None:
            raise InvalidInput(f"{option} is for this machine; on Slurm, set [resources] of the campaign")
    find_partition(JobSpec("", (), ResourceSpec(), system=system, partition=partition), catalog)
    if shutil.which("sbatch") is None:
        raise InvalidInput(
            f"this machine has no sbatch, so it cannot submit to {system}: run the command on its "
            "login node, or leave --on out to run here"
        )


def _slots(limits: CampaignLimits) -> Slots:
    """Return the share of this machine that runs may use.

    Raises:
        InvalidInput: it has less.
    """
    whole = machine_slots()
    for option, requested, available in (
        ("--cores", limits.cores, len(whole.cores)),
        ("--gpus", limits.gpus, len(whole.gpus)),
    ):
        if requested is not None and requested > available:
            raise InvalidInput(f"{option} is {requested}, but this machine has {available}")
    limited = (limits.cores, limits.memory_bytes, limits.gpus) != (None, None, None)
    return replace(
        whole,
        cores=whole.cores[: limits.cores],
        gpus=whole.gpus[: limits.gpus],
        memory_bytes=whole.memory_bytes if limits.memory_bytes is None else limits.memory_bytes,
        # Without limits, each run may use the whole machine: then only one at a time.
        max_jobs=limits.slots or (None if limited else 1),
    )


class CampaignRunStatus(Frozen):
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


class CampaignStatus(Frozen):
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
    watch: Callable[[CampaignTotals, CampaignRun | None], None] = lambda *_: None,
    on_interrupt: Callable[[], None] = lambda: None,
) -> CampaignReport:
    """Execute planned runs that are not finished; SIGINT stops the campaign in order.

    Raises:
        LeadlineError: another process runs the campaign, or its folder or the history cannot be used.
        InvalidInput: a run requests more than the place has.
    """
    folder = campaign_folder(campaign, folder)
    place = find_campaign_place(on, limits or CampaignLimits(), campaign, planned, folder, catalog)
    settings.require_writable(folder)
    store = SqliteHistory(settings.history_path()) if history else None
    if store is not None:
        # An unreadable history must fail now, and not after hours of running.
        next(iter(store.runs(limit=1)), None)
    store_campaign(folder, campaign, file)
    with runner_lock(folder, campaign.name), open_journal(folder) as journal, closing(place):
        runner = Runner(
            campaign=campaign, journal=journal, folder=folder, place=place, history=store, propose=propose,
            max_runs=max_runs, retry_failed=retry_failed, watch=watch,
        )  # fmt: skip
        with _interrupts(runner.interrupt, on_interrupt):
            return runner.run(planned)


class RemainingWork(Frozen):
    """The unfinished runs of a campaign: their number, their forecast, and how many have none."""

    runs: int
    forecast_s: float
    unknown: int


def remaining_work(campaign: Campaign, planned: Sequence[PlannedRun], folder: Path | None = None) -> RemainingWork:
    """Return the unfinished runs of this plan and of earlier ones."""
    folder = campaign_folder(campaign, folder)
    runs = stored_runs(folder)
    finished = {run.key for run in runs if run.state.final}
    waiting = {**{run.key: run.planned for run in runs}, **{run.id: run for run in planned}}
    unfinished = [run for key, run in waiting.items() if key not in finished]
    forecasts = [run.forecast_s.point for run in unfinished if run.forecast_s is not None]
    return RemainingWork(len(unfinished), sum(forecasts), len(unfinished) - len(forecasts))


def stored_runs(folder: Path) -> tuple[CampaignRun, ...]:
    """Return the runs in the journal of a campaign's folder; empty without one."""
    if not has_journal(folder):
        return ()
    with open_journal(folder) as journal:
        return journal.runs()


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
    if which.endswith(".toml") and is_file(which):
        name = read_campaign(Path(which)).name
    path = campaigns_dir() / name
    if not is_file(path / PARSED):
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
    runs = stored_runs(folder)
    return CampaignStatus(
        campaign.name,
        str(folder),
        campaign_totals(campaign, runs),
        budget_unit(campaign),
        find_runner(folder),
        tuple(map(_run_state, runs)),
        tuple(failure_summaries(runs, folder)),
    )


def _run_state(run: CampaignRun) -> CampaignRunStatus:
    planned = run.planned
    resources = planned.configuration.resources
    return CampaignRunStatus(
        run.key,
        planned.scale,
        planned.configuration.parameters,
        resources.cores_per_task,
        resources.gpus_per_node,
        run.state,
        run.attempt,
        planned.forecast_s.point if planned.forecast_s else None,
        run.elapsed_s if run.outcome else None,
        run.outcome.reason if run.outcome else "",
    )


def stop_campaign(folder: Path) -> str:
    """Stop a campaign: through its runner, or else by ending its running jobs; return the result in a sentence.

    Raises:
        LeadlineError: there is no campaign.
    """
    campaign = read_stored_campaign(folder)
    name = campaign.name
    # A lock that is taken is tried again: a program that a killed runner was just starting holds it for a moment.
    with open_journal(folder) as journal, file_lock(folder / LOCK) as free:
        if not free:
            journal.request_stop()
            runner = find_runner(folder) or "its runner"
            return f"stopping campaign {name!r}: {runner} ends its runs now; leadline campaign run resumes it"
        with closing(RunPlace(folder, machine_slots(), forget_other_hosts=True)) as place:
            ended = Runner(campaign=campaign, journal=journal, folder=folder, place=place).end_runs()
    if not ended:
        return f"campaign {name!r} is not running"
    return f"campaign {name!r} had no runner; ended {ended} of its runs"
