"""Construct the plane's schedulers: this machine, and the Slurm or PBS of a system, here or over SSH."""

import shutil
import sys
from pathlib import Path, PurePosixPath

from leadline.app.places import LOCAL
from leadline.app.reach import Reach, reach_of
from leadline.app.submit import BARE
from leadline.core.errors import InvalidInput, LeadlineError, SchedulerUnreachable
from leadline.core.jobs import JobSpec
from leadline.core.ports import Catalog
from leadline.core.systems import Partition
from leadline.execution.local_queue import this_machine
from leadline.execution.local_scheduler import LocalScheduler
from leadline.execution.pbs.scheduler import PbsScheduler
from leadline.execution.pbs.script import Flavour
from leadline.execution.scheduler import Scheduler
from leadline.execution.slurm.scheduler import SlurmScheduler
from leadline.execution.ssh import Ssh
from leadline.execution.transport import Here, Transport

PBS = {"pbs": Flavour.PRO, "pbspro": Flavour.PRO, "openpbs": Flavour.PRO, "torque": Flavour.TORQUE}
COMMAND = {"slurm": "sbatch", "pbs": "qsub"}


def scheduler_of(system: str, catalog: Catalog, folder: Path) -> Scheduler:
    """Return the scheduler of a system: ``local``, ``slurm`` for the one at hand, or one of the catalog's.

    Files of jobs of this machine lie in ``folder``.

    Raises:
        UnknownName: there is no such system.
        InvalidInput: there is no way to it, or its scheduler is none that Leadline speaks to.
    """
    if system.casefold() == LOCAL:
        return LocalScheduler(folder / "local", this_machine())
    reach = reach_of(system)
    kind = kind_of(system, reach, catalog)
    transport: Transport = Here() if reach.host is None else Ssh(reach.host)
    there = _folder(system, reach, folder)
    python = reach.python or (sys.executable if reach.host is None else "python3")
    if reach.host is None:
        _check_at_hand(system, kind)
    if kind in PBS:
        return PbsScheduler(system, there, transport, flavour=PBS[kind], python=python)
    return SlurmScheduler(
        system, there, transport, python=python, partition_of=lambda spec: known_partition(spec, catalog)
    )


def let_go(scheduler: Scheduler) -> None:
    """Close what a scheduler of this machine holds open, once it is asked no more; its jobs go on."""
    if isinstance(scheduler, LocalScheduler):
        scheduler.close()


def known_partition(spec: JobSpec, catalog: Catalog) -> Partition | None:
    """Return the rules of a job's partition; ``None`` where the catalog does not know them."""
    if spec.system is None or spec.system.casefold() in (LOCAL, BARE) or spec.partition is None:
        return None
    try:
        return catalog.system(spec.system).partition(spec.partition)
    except LeadlineError:
        return None


def kind_of(system: str, reach: Reach, catalog: Catalog) -> str:
    """Return which scheduler a system has: what the user's file says, else the catalog."""
    if reach.scheduler is not None:
        kind = reach.scheduler.casefold()
    elif system.casefold() == BARE:
        kind = BARE
    else:
        kind = catalog.system(system).scheduler.casefold()
    if kind != BARE and kind not in PBS:
        raise InvalidInput(
            f"{system} has no scheduler that Leadline speaks to ({kind or 'none'}): name a system with Slurm or PBS, "
            "or run the job here with --on local"
        )
    return kind


def _folder(system: str, reach: Reach, folder: Path) -> PurePosixPath:
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
    command = COMMAND["pbs" if kind in PBS else kind]
    if shutil.which(command) is None:
        raise SchedulerUnreachable(
            f"this machine has no {command}, so no job can be submitted to {system} from here: log in to it, or say in "
            f'reach.toml how it is reached ([systems.{system}] host = "…", folder = "…"); --dry-run prints the script'
        )
