"""Construct schedulers: this machine, and the Slurm or PBS of a system, directly or over SSH."""

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import field

from leadline.app.machines.remotes import Remote, find_remote, job_folder, read_remotes
from leadline.app.machines.targets import ANY_SLURM, LOCAL, lookup_partition
from leadline.core.errors import InvalidInput, SchedulerUnreachable, UnknownName
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec
from leadline.core.plane import Place
from leadline.core.ports import Catalog
from leadline.core.systems import Partition, System
from leadline.execution.schedulers.local.queue import machine_slots
from leadline.execution.schedulers.local.scheduler import LocalScheduler
from leadline.execution.schedulers.pbs.scheduler import PbsScheduler
from leadline.execution.schedulers.pbs.script import PbsFlavour
from leadline.execution.schedulers.port import Scheduler
from leadline.execution.schedulers.slurm.scheduler import SlurmScheduler
from leadline.execution.transport.port import LocalTransport, Transport
from leadline.execution.transport.ssh import SshTransport

PBS_FLAVOURS = {"pbs": PbsFlavour.PRO, "pbspro": PbsFlavour.PRO, "openpbs": PbsFlavour.PRO, "torque": PbsFlavour.TORQUE}


class JobTarget(Frozen):
    """A resolved target: its place, its scheduler, the way to it, and its rules (None if they are unknown)."""

    place: Place
    kind: str = LOCAL
    remote: Remote = field(default_factory=Remote)
    partition: Partition | None = None

    @property
    def at_hand(self) -> bool:
        """Return whether this machine can submit to it without another one."""
        return self.kind == LOCAL or (self.remote.host is None and shutil.which(_submit_command(self.kind)) is not None)


def resolve_job_targets(on: Sequence[str], catalog: Catalog) -> tuple[JobTarget, ...]:
    """Return the targets with the catalog's names of their systems.

    Raises:
        UnknownName: unknown system or partition.
        InvalidInput: a target is given twice, lacks its partition, or has a scheduler that Leadline does not support.
    """
    remotes = read_remotes()
    targets: list[JobTarget] = []
    for name in on:
        target = _resolve_job_target(name, catalog, remotes)
        if target.place in [earlier.place for earlier in targets]:
            raise InvalidInput(f"--on {target.place} is given twice")
        targets.append(target)
    return tuple(targets)


def _resolve_job_target(name: str, catalog: Catalog, remotes: Mapping[str, Remote]) -> JobTarget:
    system_name, _, partition = name.partition(":")
    folded = system_name.casefold()
    if folded == LOCAL:
        if partition:
            raise InvalidInput(f"{name}: this machine has no partitions; write --on local")
        return JobTarget(Place(LOCAL))
    remote_name = next((each for each in remotes if each.casefold() == folded), None)
    remote = remotes[remote_name] if remote_name is not None else Remote()
    if folded == ANY_SLURM:
        return JobTarget(Place(folded, partition or None), supported_kind(folded, remote.scheduler or folded), remote)
    try:
        system = find_system(system_name, catalog)
    except UnknownName:
        if remote.scheduler is None:
            raise
        place = Place(remote_name or system_name, partition or None)
        return JobTarget(place, supported_kind(system_name, remote.scheduler), remote)
    place = Place(remote_name or system.name, partition or None)
    kind = supported_kind(system.name, remote.scheduler or system.scheduler)
    rules = named_partition(system, place.partition) if kind == ANY_SLURM else None
    if rules is None and partition and remote.scheduler is None:
        system.partition(partition)
    return JobTarget(place, kind, remote, rules)


def named_partition(system: System, name: str | None) -> Partition:
    """Return a partition of a Slurm system; ``InvalidInput`` without a name."""
    if name is None:
        names = ", ".join(partition.name for partition in system.partitions)
        raise InvalidInput(f"{system.name} has several partitions: write {system.name}:PARTITION, one of {names}")
    return system.partition(name)


def find_system(name: str, catalog: Catalog) -> System:
    """Return the system; the error for an unknown one also suggests ``local`` and ``slurm``."""
    try:
        return catalog.system(name)
    except UnknownName as error:
        names = [LOCAL, ANY_SLURM, *(system.name for system in catalog.systems())]
        fix = "leadline systems list shows the systems; slurm[:PARTITION] is any other Slurm cluster"
        raise UnknownName("system", name, names, fix=fix) from error


def full_system_name(folded: str, catalog: Catalog) -> str | None:
    """Return the name of a system from its lower-case name; ``None`` if there is no such system any more."""
    if folded in (LOCAL, ANY_SLURM):
        return folded
    try:
        names = (*read_remotes(), catalog.system(folded).name)
    except UnknownName:
        names = tuple(read_remotes())
    return next((name for name in names if name.casefold() == folded), None)


def find_partition(spec: JobSpec, catalog: Catalog | None) -> Partition | None:
    """Return the partition that ``spec`` names; ``None`` for a Slurm cluster that the catalog does not know."""
    if spec.system is None:
        raise InvalidInput("no cluster given: add --on SYSTEM:PARTITION, or --on slurm")
    if spec.system.casefold() == ANY_SLURM:
        return None
    if catalog is None:
        fix = "without a catalog, only local and slurm are known"
        raise UnknownName("system", spec.system, [LOCAL, ANY_SLURM], fix=fix)
    system = find_system(spec.system, catalog)
    if system.scheduler.casefold() != ANY_SLURM:
        raise InvalidInput(
            f"{system.name} does not use Slurm (scheduler: {system.scheduler or 'none'}), so there is "
            "no batch script: name a Slurm system, or run here with --on local"
        )
    return named_partition(system, spec.partition)


def build_scheduler(system: str, catalog: Catalog, folder: Path) -> Scheduler:
    """Return the scheduler of a system: ``local``, ``slurm`` for this machine's Slurm, or a system of the catalog.

    Files of this machine's jobs are in ``folder``.

    Raises:
        UnknownName: there is no such system.
        InvalidInput: ``reach.toml`` lacks an entry, or Leadline does not support the scheduler.
        SchedulerUnreachable: its commands are not on this machine.
    """
    if system.casefold() == LOCAL:
        return LocalScheduler(folder / "local", machine_slots())
    remote = find_remote(system)
    target = JobTarget(Place(system), scheduler_kind(system, remote, catalog), remote)
    check_at_hand(target)
    return scheduler_of(target, folder, lambda spec: lookup_partition(spec.system, spec.partition, catalog))


def scheduler_of(
    target: JobTarget, folder: Path, partition_of: Callable[[JobSpec], Partition | None] | None = None
) -> Scheduler:
    """Return the scheduler of a target other than this machine; raises as ``build_scheduler`` does."""
    system, remote = target.place.system, target.remote
    transport = transport_to(remote)
    files = job_folder(system, remote, folder)
    # Jobs on this machine's cluster use this interpreter; on a remote system only PATH is known.
    python = remote.python or (sys.executable if remote.host is None else "python3")
    if target.kind in PBS_FLAVOURS:
        return PbsScheduler(system, files, transport, flavour=PBS_FLAVOURS[target.kind], python=python)
    rules_of = partition_of or (lambda _: target.partition)
    return SlurmScheduler(system, files, transport, python=python, partition_of=rules_of)


def transport_to(remote: Remote) -> Transport:
    """Return the transport to a system."""
    return LocalTransport() if remote.host is None else SshTransport(remote.host)


def close_scheduler(scheduler: Scheduler) -> None:
    """Release what a local scheduler holds open; its jobs go on."""
    if isinstance(scheduler, LocalScheduler):
        scheduler.close()


def scheduler_kind(system: str, remote: Remote, catalog: Catalog) -> str:
    """Return which scheduler a system uses, by ``reach.toml`` or else the catalog."""
    if remote.scheduler is not None or system.casefold() == ANY_SLURM:
        return supported_kind(system, remote.scheduler or ANY_SLURM)
    return supported_kind(system, catalog.system(system).scheduler)


def supported_kind(system: str, scheduler: str) -> str:
    """Return the lower-case name of a scheduler; ``InvalidInput`` if Leadline does not support it."""
    kind = scheduler.casefold()
    if kind != ANY_SLURM and kind not in PBS_FLAVOURS:
        raise InvalidInput(
            f"{system} has no supported scheduler ({kind or 'none'}): name a system with Slurm or "
            "PBS, or run the job with --on local"
        )
    return kind


def check_at_hand(target: JobTarget) -> None:
    """Refuse a target that this machine cannot submit to, without contacting it.

    Raises:
        InvalidInput: ``reach.toml`` lacks its folder.
        SchedulerUnreachable: its commands are not on this machine.
    """
    system, host = target.place.system, target.remote.host
    if host is not None:
        job_folder(system, target.remote, Path())
    elif not target.at_hand:
        raise SchedulerUnreachable(
            f"this machine has no {_submit_command(target.kind)}, so it cannot submit to {system}: log in to that "
            f'system, or add its SSH host to reach.toml ([systems.{system}] host = "…", folder = "…"); '
            "--dry-run prints the script"
        )


def _submit_command(kind: str) -> str:
    return "qsub" if kind in PBS_FLAVOURS else "sbatch"
