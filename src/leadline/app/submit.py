"""The verb ``submit``: the batch script for a site, or the job itself on this machine."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from leadline.app import settings
from leadline.core.errors import InvalidInput, JobFailed
from leadline.core.estimate import Estimate
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.ports import Catalog
from leadline.core.runs import Run
from leadline.core.systems import Partition
from leadline.execution.local import run_local
from leadline.execution.slurm_script import render
from leadline.history.sqlite import SqliteHistory

LOCAL = "local"
BARE = "slurm"
"""The place that is any Slurm cluster whose rules are not known."""


def batch_script(spec: JobSpec, catalog: Catalog) -> str:
    """Return the script that the site of ``spec`` accepts.

    Raises:
        UnknownName: no such system or partition.
        InvalidInput: the site would refuse the job, or has no batch scheduler that reads such scripts.
    """
    return render(spec, find_partition(spec, catalog))


def find_partition(spec: JobSpec, catalog: Catalog) -> Partition | None:
    """Return the partition that ``spec`` names; ``None`` for a Slurm cluster that the catalog does not know."""
    if spec.system is None or spec.system.casefold() == BARE:
        return None
    system = catalog.system(spec.system)
    if system.scheduler.casefold() != "slurm":
        raise InvalidInput(
            f"{system.name} has no Slurm ({system.scheduler or 'no scheduler'}): there is no batch script for it; "
            "name a Slurm system, or run the command here with --on local"
        )
    if spec.partition is None:
        known = ", ".join(partition.name for partition in system.partitions)
        raise InvalidInput(f"{system.name} has several partitions: write {system.name}:PARTITION, one of {known}")
    return system.partition(spec.partition)


def refuse_remote(spec: JobSpec) -> None:
    """Say why a job for a cluster cannot be sent from here."""
    why = "this machine has no sbatch" if shutil.which("sbatch") is None else "Leadline does not send jobs to Slurm yet"
    raise InvalidInput(
        f"{why}, so the job cannot be submitted to {spec.system}: --dry-run prints the script to submit there with "
        "sbatch, and --on local runs the command here"
    )


def run_here(
    spec: JobSpec,
    *,
    predicted: Estimate | None = None,
    parameters: dict[str, str] | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
    output: int | None = None,
    history: Path | None = None,
) -> Run:
    """Run the job on this machine under the measuring wrapper, and keep the run beside what was predicted.

    Raises:
        InvalidInput: the command cannot be started; nothing enters the history.
    """
    store = SqliteHistory(history or settings.history_path())
    next(iter(store.runs(limit=1)), None)  # a history that cannot be read stops here, not after hours of running
    run = run_local(spec, folder=settings.runs_dir(), on_progress=on_progress, output=output)
    run = replace(run, predicted=predicted, parameters=parameters or {})
    store.add(run)
    return run


def job_spec(
    command: tuple[str, ...],
    place: str,
    *,
    resources: ResourceSpec,
    account: str | None = None,
    name: str = "",
    workdir: str | None = None,
    setup: tuple[str, ...] = (),
) -> JobSpec:
    """Return the job for ``place``: ``local``, ``SYSTEM:PARTITION``, or ``slurm[:PARTITION]`` for an unknown cluster.

    Raises:
        InvalidInput: a resource is not above zero, or there is no command.
    """
    if not command:
        raise InvalidInput("there is no command to run: give it after --, for example -- python train.py")
    for what, value, least in (
        ("--nodes", resources.nodes, 1),
        ("--gpus", resources.gpus_per_node, 0),
        ("--cores", resources.cores_per_task, 1),
        ("--memory", resources.memory_bytes_per_node, 1),
        ("--time", resources.walltime_s, 1),
    ):
        if value is not None and value < least:
            raise InvalidInput(f"{what} {value:g} cannot be asked for: it must be at least {least}")
    system, _, partition = place.partition(":")
    local = system.casefold() == LOCAL
    return JobSpec(
        name or _name_of(command),
        command,
        resources,
        system=None if local else system,
        partition=partition or None,
        account=account,
        workdir=workdir,
        setup=setup,
    )


def check_ended_well(run: Run) -> None:
    """Raise ``JobFailed`` with the reason, unless the run completed."""
    if run.state is JobState.COMPLETED:
        return
    how = run.tags.get("reason") or (f"exit code {run.exit_code}" if run.exit_code is not None else "no exit code")
    raise JobFailed(f"run {run.id} ended {run.state.value} ({how}): leadline history show {run.id} says more")


def _name_of(command: tuple[str, ...]) -> str:
    """Name a job after the script it runs, else after its program."""
    scripts = [word for word in command if word.endswith((".py", ".sh")) and not word.startswith("-")]
    return Path(scripts[0] if scripts else command[0]).stem or "job"
