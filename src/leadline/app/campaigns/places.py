"""Execute a campaign's runs: on this machine, or on the Slurm of this machine."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath

from leadline.app.jobs.job_request import find_partition
from leadline.app.machines.targets import ANY_SLURM, LOCAL
from leadline.campaigns.configurations import build_job
from leadline.core.campaigns import Campaign, PlannedRun
from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.plane import AttemptPlan, Job, Place, Policy
from leadline.core.ports import Catalog
from leadline.execution.clock import now_utc
from leadline.execution.plane.poll_interval import PollIntervals
from leadline.execution.schedulers.local.capacity import Slots
from leadline.execution.schedulers.local.queue import machine_slots
from leadline.execution.schedulers.local.scheduler import LocalScheduler
from leadline.execution.schedulers.port import Scheduler
from leadline.execution.schedulers.slurm.scheduler import SlurmScheduler
from leadline.execution.schedulers.slurm.script import directives
from leadline.execution.transport.port import LocalTransport

INTERVALS = PollIntervals(first=2.0, last=20.0, reports=float("inf"), decide=float("inf"), lost=600.0)
"""Requests of runs never change, so no report is read before the end of a run, and no decision made."""


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


class CampaignPlace:
    """This machine within ``slots``, or its Slurm, as a system of the catalog or as one with unknown rules.

    Runs that were started elsewhere before are managed, too. All files are in ``folder``. This machine and the nodes of
    Slurm must see it.
    """

    def __init__(
        self,
        folder: Path,
        slots: Slots,
        *,
        system: str = LOCAL,
        partition: str | None = None,
        catalog: Catalog | None = None,
        max_running: int | None = None,
        forget_other_hosts: bool = False,
        intervals: PollIntervals | None = None,
    ) -> None:
        self.folder = folder
        self.slots = slots
        self.system = system
        self.partition = partition
        self.catalog = catalog
        self.max_running = max_running
        self.forget_other_hosts = forget_other_hosts
        self.intervals = intervals or INTERVALS
        self.arrays = system != LOCAL
        self.scheduler = cache(self._scheduler)
        self._local: LocalScheduler | None = None

    def close(self) -> None:
        """Release what this machine's scheduler holds open; its runs go on."""
        if self._local is not None:
            self._local.close()

    def place(self, spec: JobSpec) -> JobSpec:
        """Return the job of a run as it is at this place; a partition of the run itself stays."""
        if not self.arrays:
            return replace(spec, system=None)
        return replace(spec, system=self.system, partition=spec.partition or self.partition)

    def check(self, spec: JobSpec) -> None:
        """Refuse a job that this machine can never run, or that the site would refuse."""
        if self.arrays:
            placed = self.place(spec)
            directives(placed, find_partition(placed, self.catalog))
        elif never := self.slots.rejection_reason(spec.resources):
            raise InvalidInput(
                f"this machine cannot run {spec.name!r}: {never}; change [resources] of the campaign, or "
                "run it elsewhere with --on"
            )

    def job(self, key: str, spec: JobSpec, limit_s: float | None) -> Job:
        """Return the job that starts a run. The wrapper enforces the shorter of its limit and ``limit_s``."""
        limits = [limit for limit in (spec.resources.walltime_s, limit_s) if limit is not None]
        limited = replace(spec, resources=replace(spec.resources, walltime_s=min(limits, default=None)))
        place = Place(self.system, spec.partition if self.arrays else None)
        policy = Policy((place,), resizes=False, max_running=self.max_running, own_commands=self.arrays)
        # Slurm counts whole minutes, and runs with different limits would be no array.
        plan = AttemptPlan(place, spec.resources if self.arrays else limited.resources)
        return Job(key, limited, policy, created_at=now_utc(), plan=plan)

    def has_room(self, resources: ResourceSpec) -> bool:
        """True if such a run would start at once; Slurm takes any number."""
        return self.arrays or self._local is None or self._local.has_room(resources)

    def wait(self, timeout_s: float) -> bool:
        """Wait; return True before ``timeout_s`` if a run on this machine has ended."""
        return self._local is not None and self._local.wait(timeout_s)

    def _scheduler(self, system: str) -> Scheduler:
        if system == LOCAL:
            self._local = LocalScheduler(self.folder, self.slots, forget_other_hosts=self.forget_other_hosts)
            return self._local
        return SlurmScheduler(
            system, PurePosixPath(self.folder), LocalTransport(), python=sys.executable,
            partition_of=lambda spec: find_partition(spec, self.catalog),
        )  # fmt: skip


def find_campaign_place(
    on: str,
    limits: CampaignLimits,
    campaign: Campaign,
    planned: Sequence[PlannedRun],
    folder: Path,
    catalog: Catalog | None = None,
) -> CampaignPlace:
    """Return the place that ``on`` names; refuse one that cannot run what is planned.

    Raises:
        UnknownName: unknown system or partition.
        InvalidInput: this machine has no Slurm, or a run requests more than the place has.
    """
    system, _, partition = on.partition(":")
    if system.casefold() == LOCAL:
        place = CampaignPlace(folder, _slots(limits))
    else:
        _check_slurm(system, partition or None, limits, catalog)
        place = CampaignPlace(
            folder, machine_slots(), system=ANY_SLURM if system.casefold() == ANY_SLURM else system,
            partition=partition or None, catalog=catalog, max_running=limits.slots, intervals=INTERVALS,
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
