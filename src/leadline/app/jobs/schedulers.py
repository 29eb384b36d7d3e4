"""Construct schedulers: this machine, and the Slurm or PBS of a system, directly or over SSH."""

import shutil
import sys
from pathlib import Path, PurePosixPath

from leadline.app.machines.remotes import Remote, find_remote
from leadline.app.machines.targets import ANY_SLURM, LOCAL
from leadline.core.errors import InvalidInput, LeadlineError, SchedulerUnreachable
from leadline.core.jobs import JobSpec
from leadline.core.ports import Catalog
from leadline.core.systems import Partition
from leadline.execution.schedulers.local.queue import machine_slots
from leadline.execution.schedulers.local.scheduler import LocalScheduler
from leadline.execution.schedulers.pbs.scheduler import PbsScheduler
from leadline.execution.schedulers.pbs.script import PbsFlavour
from leadline.execution.schedulers.port import Scheduler
from leadline.execution.schedulers.slurm.scheduler import SlurmScheduler
from leadline.execution.transport.port import LocalTransport, Transport
from leadline.execution.transport.ssh import SshTransport

PBS_FLAVOURS = {"pbs": PbsFlavour.PRO, "pbspro": PbsFlavour.PRO, "openpbs": PbsFlavour.PRO, "torque": PbsFlavour.TORQUE}
SUBMIT_COMMANDS = {"slurm": "sbatch", "pbs": "qsub"}


def build_scheduler(system: str, catalog: Catalog, folder: Path) -> Scheduler:
    """Return the scheduler of a system: ``local``, ``slurm`` for this machine's Slurm, or a system of the catalog.

    Files of this machine's jobs are in ``folder``.

    Raises:
        UnknownName: there is no such system.
        InvalidInput: ``reach.toml`` lacks an entry, or Leadline does not support the scheduler.
    """
    if system.casefold() == LOCAL:
        return LocalScheduler(folder / "local", machine_slots())
    remote = find_remote(system)
    kind = scheduler_kind(system, remote, catalog)
    transport: Transport = LocalTransport() if remote.host is None else SshTransport(remote.host)
    job_folder = _folder(system, remote, folder)
    # Jobs on this machine's cluster use this interpreter; on a remote system only PATH is known.
    python = remote.python or (sys.executable if remote.host is None else "python3")
    if remote.host is None:
        _check_at_hand(system, kind)
    if kind in PBS_FLAVOURS:
        return PbsScheduler(system, job_folder, transport, flavour=PBS_FLAVOURS[kind], python=python)
    return SlurmScheduler(
        system, job_folder, transport, python=python, partition_of=lambda spec: lookup_partition(spec, catalog)
    )


def close_scheduler(scheduler: Scheduler) -> None:
    """Release what a local scheduler holds open; its jobs go on."""
    if isinstance(scheduler, LocalScheduler):
        scheduler.close()


def lookup_partition(spec: JobSpec, catalog: Catalog) -> Partition | None:
    """Return the rules of a job's partition; ``None`` if the catalog does not have them."""
    if spec.system is None or spec.system.casefold() in (LOCAL, ANY_SLURM) or spec.partition is None:
        return None
    try:
        return catalog.system(spec.system).partition(spec.partition)
    except LeadlineError:
        return None


def scheduler_kind(system: str, remote: Remote, catalog: Catalog) -> str:
    """Return which scheduler a system uses, by ``reach.toml`` or else the catalog."""
    if remote.scheduler is not None:
        kind = remote.scheduler.casefold()
    elif system.casefold() == ANY_SLURM:
        kind = ANY_SLURM
    else:
        kind = catalog.system(system).scheduler.casefold()
    if kind != ANY_SLURM and kind not in PBS_FLAVOURS:
        raise InvalidInput(
            f"{system} has no supported scheduler ({kind or 'none'}): name a system with Slurm or "
            "PBS, or run the job with --on local"
        )
    return kind


def _folder(system: str, remote: Remote, folder: Path) -> PurePosixPath:
    """Return the folder of job files on the system."""
    if remote.folder is not None:
        return PurePosixPath(remote.folder)
    if remote.host is not None:
        raise InvalidInput(
            f'no folder for {system}: add folder = "/path/that/its/nodes/see" to [systems.{system}] of reach.toml'
        )
    return PurePosixPath((folder / "systems" / system.casefold()).absolute())


def _check_at_hand(system: str, kind: str) -> None:
    command = SUBMIT_COMMANDS["pbs" if kind in PBS_FLAVOURS else kind]
    if shutil.which(command) is None:
        raise SchedulerUnreachable(
            f"this machine has no {command}, so it cannot submit to {system}: log in to that system, "
            f'or add its SSH host to reach.toml ([systems.{system}] host = "…", folder = "…"); '
            "--dry-run prints the script"
        )
