"""Where a campaign's runs are made: on this machine, or on the Slurm that is at hand."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from leadline.app.jobs.job_request import ANY_SLURM, find_partition
from leadline.app.machines.targets import LOCAL
from leadline.campaigns.configurations import build_job
from leadline.core.campaigns import Campaign, PlannedRun
from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.ports import Catalog
from leadline.core.systems import Partition
from leadline.execution.launch import LaunchOptions
from leadline.execution.processes import run_process
from leadline.execution.schedulers.job_queue import JobQueue, QueueEntry, QueueJournal
from leadline.execution.schedulers.local.capacity import Slots
from leadline.execution.schedulers.local.queue import KILL_DELAY_S, LocalJobQueue, machine_slots
from leadline.execution.schedulers.slurm.array_queue import ArrayPollIntervals, SlurmArrayQueue
from leadline.execution.schedulers.slurm.script import directives

Limit = Callable[[QueueEntry], float | None]


@dataclass(frozen=True, slots=True)
class CampaignLimits:
    """How much of a place a campaign may use at once.

    On this machine, without any of it, one run at a time may use all of it. On Slurm ``slots`` is how many elements of
    an array run at once, and the scheduler shares out the rest.
    """

    slots: int | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    gpus: int | None = None


@dataclass(frozen=True, slots=True)
class LocalCampaignPlace:
    """This machine."""

    slots: Slots

    def place(self, spec: JobSpec) -> JobSpec:
        """Return the job as it is made here."""
        return replace(spec, system=None)

    def check(self, spec: JobSpec) -> None:
        """Refuse a job that can never have what it asks for."""
        if never := self.slots.rejection_reason(spec.resources):
            raise InvalidInput(
                f"no run of {spec.name!r} that asks for so much can be made on this machine: {never}; change "
                "[resources] of the campaign, or run it elsewhere with --on"
            )

    def queue(self, journal: QueueJournal, folder: Path, limit_s: Limit) -> JobQueue:
        """Return what makes the runs."""
        return LocalJobQueue(
            journal,
            folder,
            self.slots,
            launch_options=lambda entry: LaunchOptions(walltime_s=limit_s(entry), kill_after_s=KILL_DELAY_S),
        )


@dataclass(frozen=True, slots=True)
class SlurmCampaignPlace:
    """The Slurm whose commands are at hand, as a system of the catalog or as one whose rules are not known."""

    system: str
    partition: str | None
    catalog: Catalog | None
    most: int | None = None
    poll_interval: ArrayPollIntervals = field(default_factory=ArrayPollIntervals)

    def place(self, spec: JobSpec) -> JobSpec:
        """Return the job as it is submitted; a partition that the run itself names stays."""
        return replace(spec, system=self.system, partition=spec.partition or self.partition)

    def check(self, spec: JobSpec) -> None:
        """Refuse a job that the site would refuse."""
        placed = self.place(spec)
        directives(placed, self._partition_of(placed))

    def queue(self, journal: QueueJournal, folder: Path, limit_s: Limit) -> JobQueue:
        """Return what makes the runs."""
        return SlurmArrayQueue(
            journal, folder, run_process,
            partition_of=self._partition_of, max_running=self.most, limit_s=limit_s, intervals=self.poll_interval,
        )  # fmt: skip

    def _partition_of(self, spec: JobSpec) -> Partition | None:
        return find_partition(spec, self.catalog)


CampaignPlace = LocalCampaignPlace | SlurmCampaignPlace


def find_campaign_place(
    on: str, room: CampaignLimits, campaign: Campaign, planned: Sequence[PlannedRun], catalog: Catalog | None = None
) -> CampaignPlace:
    """Return where the runs are made; refuse a place that cannot take them.

    Raises:
        UnknownName: no such system or partition.
        InvalidInput: the place has no Slurm at hand, or a run asks for more than it has.
    """
    system, _, partition = on.partition(":")
    found: CampaignPlace = (
        LocalCampaignPlace(_slots(room))
        if system.casefold() == LOCAL
        else _slurm(system, partition or None, room, catalog)
    )
    for one in planned:
        found.check(build_job(campaign, one))
    return found


def end_running_jobs(journal: QueueJournal, folder: Path, *, poll_interval: ArrayPollIntervals | None = None) -> int:
    """End the jobs of a journal that have no runner any more, wherever they are; return how many there were."""
    left = [entry for entry in journal.entries() if entry.state is JobState.RUNNING]
    queue: JobQueue
    if any(entry.host is None for entry in left):
        queue = SlurmArrayQueue(journal, folder, run_process, intervals=poll_interval or ArrayPollIntervals())
        queue.resume()
    else:
        queue = here = LocalJobQueue(journal, folder, machine_slots())
        here.resume(forget_other_hosts=True)
    running = len(queue.running)
    queue.end()
    while queue.running:
        queue.wait(0.2)
    return running


def _slurm(system: str, partition: str | None, room: CampaignLimits, catalog: Catalog | None) -> SlurmCampaignPlace:
    for option, given in (("--cores", room.cores), ("--memory", room.memory_bytes), ("--gpus", room.gpus)):
        if given is not None:
            raise InvalidInput(
                f"{option} shares out this machine; on Slurm the runs ask for what [resources] says: leave it out"
            )
    find_partition(JobSpec("", (), ResourceSpec(), system=system, partition=partition), catalog)
    if shutil.which("sbatch") is None:
        raise InvalidInput(
            f"this machine has no sbatch, so nothing can be submitted to {system}: run the command on its login node, "
            "or leave --on out to make the runs here"
        )
    return SlurmCampaignPlace(
        ANY_SLURM if system.casefold() == ANY_SLURM else system, partition, catalog, most=room.slots
    )


def _slots(room: CampaignLimits) -> Slots:
    """Return what of this machine may be used.

    Raises:
        InvalidInput: more than it has.
    """
    whole = machine_slots()
    for what, asked, there in (("--cores", room.cores, len(whole.cores)), ("--gpus", room.gpus, len(whole.gpus))):
        if asked is not None and asked > there:
            raise InvalidInput(f"{what} {asked} is more than this machine has: {there} may be used")
    limited = (room.cores, room.memory_bytes, room.gpus) != (None, None, None)
    return replace(
        whole,
        cores=whole.cores[: room.cores],
        gpus=whole.gpus[: room.gpus],
        memory_bytes=whole.memory_bytes if room.memory_bytes is None else room.memory_bytes,
        max_jobs=room.slots or (None if limited else 1),
    )
