"""Construct the plane's schedulers: this machine, and the Slurm or PBS of a system, here or over SSH."""

import shutil
import sys
from pathlib import Path, PurePosixPath

from leadline.app.jobs.job_request import ANY_SLURM
from leadline.app.machines.remotes import Remote, find_remote
from leadline.app.machines.targets import LOCAL
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
    """Return the scheduler of a system: ``local``, ``slurm`` for the one at hand, or one of the catalog's.

    Files of jobs of this machine lie in ``folder``.

    Raises:
        UnknownName: there is no such system.
        InvalidInput: there is no way to it, or its scheduler is none that Leadline speaks to.
    """
    if system.casefold() == LOCAL:
        return LocalScheduler(folder / "local", machine_slots())
    reach = find_remote(system)
    kind = scheduler_kind(system, reach, catalog)
    transport: Transport = LocalTransport() if reach.host is None else SshTransport(reach.host)
    there = _folder(system, reach, folder)
    python = reach.python or (sys.executable if reach.host is None else "python3")
    if reach.host is None:
        _check_at_hand(system, kind)
    if kind in PBS_FLAVOURS:
        return PbsScheduler(system, there, transport, flavour=PBS_FLAVOURS[kind], python=python)
    return SlurmScheduler(
        system, there, transport, python=python, partition_of=lambda spec: lookup_partition(spec, catalog)
    )


def close_scheduler(scheduler: Scheduler) -> None:
    """Close what a scheduler of this machine holds open, once it is asked no more; its jobs go on."""
    if isinstance(scheduler, LocalScheduler):
        scheduler.close()


def lookup_partition(spec: JobSpec, catalog: Catalog) -> Partition | None:
    """Return the rules of a job's partition; ``None`` where the catalog does not know them."""
    if spec.system is None or spec.system.casefold() in (LOCAL, ANY_SLURM) or spec.partition is None:
        return None
    try:
        return catalog.system(spec.system).partition(spec.partition)
    except LeadlineError:
        return None


def scheduler_kind(system: str, reach: Remote, catalog: Catalog) -> str:
    """Return which scheduler a system has: what the user's file says, else the catalog."""
    if reach.scheduler is not None:
        kind = reach.scheduler.casefold()
    elif system.casefold() == ANY_SLURM:
        kind = ANY_SLURM
    else:
        kind = catalog.system(system).scheduler.casefold()
    if kind != ANY_SLURM and kind not in PBS_FLAVOURS:
        raise InvalidInput(
            f"{system} has no scheduler that Leadline speaks to ({kind or 'none'}): name a system with Slurm or PBS, "
            "or run the job here with --on local"
        )
    return kind


def _folder(system: str, reach: Remote, folder: Path) -> PurePosixPath:
    """Return where files of jobs lie at the system."""
    if reach.folder is not None:
        return PurePosixPath(reach.folder)
    if reach.host is not None:
        raise InvalidInput(
            f'the folder of {system} is not known: add folder = "/path/that/its/nodes/see" to [systems.{system}] of '
            "reach.toml"
        )
    return PurePosixPath((folder / "systems" / system.casefold()).absolute())


def _check_at_hand(system: str, kind: str) -> None:
    command = SUBMIT_COMMANDS["pbs" if kind in PBS_FLAVOURS else kind]
    if shutil.which(command) is None:
        raise SchedulerUnreachable(
            f"this machine has no {command}, so no job can be submitted to {system} from here: log in to it, or say in "
            f'reach.toml how it is reached ([systems.{system}] host = "…", folder = "…"); --dry-run prints the script'
        )
