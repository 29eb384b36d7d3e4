"""Execute a campaign's runs: on this machine, or on the Slurm of this machine."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from leadline.app.jobs.schedulers import find_partition
from leadline.app.machines.targets import ANY_SLURM, LOCAL
from leadline.campaigns.configurations import build_job
from leadline.campaigns.place import RunPlace
from leadline.core.campaigns import Campaign, PlannedRun
from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.ports import Catalog
from leadline.execution.schedulers.local.capacity import Slots
from leadline.execution.schedulers.local.queue import machine_slots


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
