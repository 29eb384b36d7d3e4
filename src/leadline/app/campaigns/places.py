"""Execute a campaign's runs: on this machine, or on the Slurm of this machine."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from leadline.app.jobs.schedulers import find_partition
from leadline.app.machines.targets import ANY_SLURM, LOCAL
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
    """Limits on the resources that a campaign uses at once.

    On this machine without any limit, one run at a time may use everything. On Slurm, ``slots`` is the number of array
    elements that run at once, and the scheduler shares the rest.
    """

    slots: int | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    gpus: int | None = None


@dataclass(frozen=True, slots=True)
class LocalCampaignPlace:
    """Runs on this machine."""

    slots: Slots

    def place(self, spec: JobSpec) -> JobSpec:
        """Return the job as it runs here."""
        return replace(spec, system=None)

    def check(self, spec: JobSpec) -> None:
        """Refuse a job that this machine can never run."""
        if never := self.slots.rejection_reason(spec.resources):
            raise InvalidInput(
                f"this machine cannot run {spec.name!r}: {never}; change [resources] of the campaign, or "
                "run it elsewhere with --on"
            )

    def queue(self, journal: QueueJournal, folder: Path, limit_s: Limit) -> JobQueue:
        """Return the queue of runs."""
        return LocalJobQueue(
            journal,
            folder,
            self.slots,
            launch_options=lambda entry: LaunchOptions(walltime_s=limit_s(entry), kill_after_s=KILL_DELAY_S),
        )


@dataclass(frozen=True, slots=True)
class SlurmCampaignPlace:
    """Runs on this machine's Slurm, as a system of the catalog or as one with unknown rules."""

    system: str
    partition: str | None
    catalog: Catalog | None
    most: int | None = None
    poll_interval: ArrayPollIntervals = field(default_factory=ArrayPollIntervals)

    def place(self, spec: JobSpec) -> JobSpec:
        """Return the job as it is submitted; a partition of the run itself stays."""
        return replace(spec, system=self.system, partition=spec.partition or self.partition)

    def check(self, spec: JobSpec) -> None:
        """Refuse a job that the site would refuse."""
        placed = self.place(spec)
        directives(placed, self._partition_of(placed))

    def queue(self, journal: QueueJournal, folder: Path, limit_s: Limit) -> JobQueue:
        """Return the queue of runs."""
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
    """Return the place that ``on`` names; refuse one that cannot run what is planned.

    Raises:
        UnknownName: unknown system or partition.
        InvalidInput: this machine has no Slurm, or a run requests more than the place has.
    """
    system, _, partition = on.partition(":")
    place: CampaignPlace = (
        LocalCampaignPlace(_slots(room))
        if system.casefold() == LOCAL
        else _slurm(system, partition or None, room, catalog)
    )
    for run in planned:
        place.check(build_job(campaign, run))
    return place


def end_running_jobs(journal: QueueJournal, folder: Path, *, poll_interval: ArrayPollIntervals | None = None) -> int:
    """End the jobs of a journal whose runner has died; return their number."""
    running_entries = [entry for entry in journal.entries() if entry.state is JobState.RUNNING]
    queue: JobQueue
    # Only entries of this machine have a host; those of Slurm have job IDs.
    if any(entry.host is None for entry in running_entries):
        queue = SlurmArrayQueue(journal, folder, run_process, intervals=poll_interval or ArrayPollIntervals())
        queue.resume()
    else:
        queue = local_queue = LocalJobQueue(journal, folder, machine_slots())
        local_queue.resume(forget_other_hosts=True)
    running = len(queue.running)
    queue.end()
    while queue.running:
        queue.wait(0.2)
    return running


def _slurm(system: str, partition: str | None, limits: CampaignLimits, catalog: Catalog | None) -> SlurmCampaignPlace:
    for option, value in (("--cores", limits.cores), ("--memory", limits.memory_bytes), ("--gpus", limits.gpus)):
        if value is not None:
            raise InvalidInput(f"{option} is for this machine; on Slurm, set [resources] of the campaign")
    find_partition(JobSpec("", (), ResourceSpec(), system=system, partition=partition), catalog)
    if shutil.which("sbatch") is None:
        raise InvalidInput(
            f"this machine has no sbatch, so it cannot submit to {system}: run the command on its "
            "login node, or leave --on out to run here"
        )
    return SlurmCampaignPlace(
        ANY_SLURM if system.casefold() == ANY_SLURM else system, partition, catalog, most=limits.slots
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
