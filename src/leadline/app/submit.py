"""The verb ``submit``: the batch script for a site, or the job itself on this machine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from leadline.app import settings
from leadline.app.estimate import Toolbox, estimate
from leadline.app.learn import corrected
from leadline.app.places import LOCAL
from leadline.app.workload_options import WorkloadOptions
from leadline.app.workloads import read_workload
from leadline.core.errors import InvalidInput, JobFailed, LeadlineError, UnknownName
from leadline.core.estimate import Estimate
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.ports import Catalog
from leadline.core.runs import Run
from leadline.core.systems import Partition, System
from leadline.execution.local import run_local
from leadline.execution.slurm.script import render
from leadline.history.sqlite import SqliteHistory

BARE = "slurm"
"""The place that is any Slurm cluster whose rules are not known."""


def batch_script(spec: JobSpec, catalog: Catalog | None = None) -> str:
    """Return the script that the site of ``spec`` accepts.

    Raises:
        UnknownName: no such system or partition.
        InvalidInput: the site would refuse the job, or has no batch scheduler that reads such scripts.
    """
    return render(spec, find_partition(spec, catalog))


def find_partition(spec: JobSpec, catalog: Catalog | None) -> Partition | None:
    """Return the partition that ``spec`` names; ``None`` for a Slurm cluster that the catalog does not know."""
    if spec.system is None:
        raise InvalidInput("a batch script is for a cluster: name it with --on SYSTEM:PARTITION, or --on slurm")
    if spec.system.casefold() == BARE:
        return None
    if catalog is None:
        raise UnknownName("system", spec.system, [LOCAL, BARE], fix="without a catalog only local and slurm are known")
    system = find_system(spec.system, catalog)
    if system.scheduler.casefold() != "slurm":
        raise InvalidInput(
            f"{system.name} has no Slurm ({system.scheduler or 'no scheduler'}): there is no batch script for it; "
            "name a Slurm system, or run the command here with --on local"
        )
    if spec.partition is None:
        known = ", ".join(partition.name for partition in system.partitions)
        raise InvalidInput(f"{system.name} has several partitions: write {system.name}:PARTITION, one of {known}")
    return system.partition(spec.partition)


def find_system(name: str, catalog: Catalog) -> System:
    """Return the system; where there is none, ``local`` and ``slurm`` are among the near names too."""
    try:
        return catalog.system(name)
    except UnknownName as error:
        known = [LOCAL, BARE, *(one.name for one in catalog.systems())]
        fix = "leadline systems list shows the known ones, and slurm[:PARTITION] is a cluster that is not among them"
        raise UnknownName("system", name, known, fix=fix) from error


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is predicted for a job, or why nothing is; its run is to carry ``tags``, which tell how it was corrected."""

    estimate: Estimate | None = None
    why_not: str = ""
    tags: dict[str, str] = field(default_factory=dict)


def predict_at(
    place: str, subject: Sequence[str], tools: Toolbox, *, gpus: int | None = None, name: str = ""
) -> Predicted:
    """Return what is predicted for a job at ``place`` (here: ``local``), as its own earlier runs correct it.

    ``name`` is what the user calls the job, by which its runs are found.
    """
    if len(subject) == 1 and not subject[0].endswith(".toml"):
        return Predicted(
            why_not=f"{subject[0]!r} is no Python command, and nothing else can be read without running it"
        )
    try:
        found = estimate(read_workload(subject, WorkloadOptions(gpus=gpus)), tools, on=[place]).estimates[0]
        called = name or _command_of(subject)[1]
    except LeadlineError as error:
        return Predicted(why_not=str(error))
    try:
        better, tags = corrected(found, called)
    except LeadlineError as error:
        return Predicted(replace(found, notes=(*found.notes, f"it is not corrected by earlier runs: {error}")))
    return Predicted(better, tags=tags)


def run_here(
    spec: JobSpec,
    *,
    predicted: Estimate | None = None,
    parameters: dict[str, int | float | str] | None = None,
    tags: dict[str, str] | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
    output: int | None = None,
    history: Path | None = None,
) -> Run:
    """Run the job on this machine under the measuring wrapper, and keep the run beside what was predicted.

    Raises:
        InvalidInput: the command cannot be started; nothing enters the history.
        LeadlineError: the history cannot be read or written; said before the job runs.
    """
    store = SqliteHistory(history or settings.history_path())
    next(iter(store.runs(limit=1)), None)  # a history that cannot be read stops here, not after hours of running
    settings.require_writable(settings.runs_dir())
    run = run_local(spec, folder=settings.runs_dir(), on_progress=on_progress, output=output)
    run = replace(run, predicted=predicted, parameters=parameters or {}, tags={**run.tags, **(tags or {})})
    store.add(run)
    return run


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asks for; ``None`` is left to ``fill_in``, then to the site. ``gpus`` counts the whole job's."""

    account: str | None = None
    nodes: int | None = None
    gpus: int | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    walltime_s: float | None = None
    least_walltime_s: float | None = None
    name: str = ""
    workdir: str | None = None
    setup: tuple[str, ...] = ()


def job_spec(subject: Sequence[str], place: str, request: Request) -> JobSpec:
    """Return the job of a workload file or a command, for ``place``.

    ``place`` is ``local``, ``SYSTEM:PARTITION``, or ``slurm[:PARTITION]`` for a cluster that the catalog lacks.

    Raises:
        InvalidInput: there is no command, or a resource is not above zero or not divisible by the nodes.
    """
    _check_request(request)
    command, name, gpus = _command_of(subject)
    gpus = request.gpus if request.gpus is not None else gpus
    system, _, partition = place.partition(":")
    local = system.casefold() == LOCAL
    nodes = request.nodes or 1
    resources = ResourceSpec(
        nodes=nodes,
        cores_per_task=request.cores,
        gpus_per_node=gpus // nodes,
        memory_bytes_per_node=request.memory_bytes,
        walltime_s=request.walltime_s,
        least_walltime_s=request.least_walltime_s,
    )
    if gpus % nodes:
        raise InvalidInput(f"{gpus} GPUs cannot be spread evenly over {nodes} nodes: change --gpus or --nodes")
    return JobSpec(
        request.name or name,
        command,
        resources,
        system=None if local else system,
        partition=partition or None,
        account=request.account,
        workdir=request.workdir,
        setup=request.setup,
    )


def _check_request(request: Request) -> None:
    for option, value, least in (
        ("--nodes", request.nodes, 1),
        ("--gpus", request.gpus, 0),
        ("--cores", request.cores, 1),
        ("--memory", request.memory_bytes, 1),
        ("--time", request.walltime_s, 1),
        ("--time-min", request.least_walltime_s, 1),
    ):
        if value is not None and value < least:
            raise InvalidInput(f"{option} {value:g} cannot be asked for: it must be at least {least}")


def _command_of(subject: Sequence[str]) -> tuple[tuple[str, ...], str, int]:
    """Return the command, its name and the GPUs its workload file asks for (0 if it does not say)."""
    if not subject:
        raise InvalidInput("there is no command to run: give it after --, for example -- python train.py")
    if len(subject) > 1 or not subject[0].endswith(".toml"):
        return tuple(subject), _name_of(subject), 0
    workload = read_workload(subject)
    if not workload.model.argv:
        raise InvalidInput(
            f"{subject[0]} names a model ({workload.model.reference}) and no command, so there is nothing to run: "
            'add command = "python train.py" in place of model'
        )
    asked = 0 if "gpus" in workload.defaulted else workload.gpus
    return workload.model.argv, workload.name or _name_of(workload.model.argv), asked


def check_ended_well(run: Run) -> None:
    """Raise ``JobFailed`` with the reason, unless the run completed."""
    if run.state is JobState.COMPLETED:
        return
    how = run.tags.get("reason") or (f"exit code {run.exit_code}" if run.exit_code is not None else "no exit code")
    raise JobFailed(f"run {run.id} ended {run.state.value} ({how}): leadline history show {run.id} says more")


def _name_of(command: Sequence[str]) -> str:
    """Name a job after the script it runs, else after its program."""
    scripts = [word for word in command if word.endswith((".py", ".sh")) and not word.startswith("-")]
    return Path(scripts[0] if scripts else command[0]).stem or "job"
