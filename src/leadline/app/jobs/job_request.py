"""The verb ``submit``: the batch script for a site, or the job itself on this machine."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from leadline.app import settings
from leadline.app.estimate.estimate import DEFAULT_RISK, Toolbox, estimate
from leadline.app.machines.targets import LOCAL
from leadline.app.models.retrain import correct_estimate
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import count_launched_processes, read_workload
from leadline.core.errors import InvalidInput, JobFailed, LeadlineError, UnknownName
from leadline.core.estimate import Estimate
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.ports import Catalog
from leadline.core.runs import Run
from leadline.core.systems import Partition, System
from leadline.core.units import format_bytes, format_clock
from leadline.execution.launch import run_local
from leadline.execution.schedulers.slurm.script import render_script
from leadline.history.sqlite import SqliteHistory
from leadline.recommendation.requests import resources_for_estimate

ANY_SLURM = "slurm"
"""The place that is any Slurm cluster whose rules are not known."""


def render_batch_script(spec: JobSpec, catalog: Catalog | None = None) -> str:
    """Return the script that the site of ``spec`` accepts.

    Raises:
        UnknownName: no such system or partition.
        InvalidInput: the site would refuse the job, or has no batch scheduler that reads such scripts.
    """
    return render_script(spec, find_partition(spec, catalog))


def find_partition(spec: JobSpec, catalog: Catalog | None) -> Partition | None:
    """Return the partition that ``spec`` names; ``None`` for a Slurm cluster that the catalog does not know."""
    if spec.system is None:
        raise InvalidInput("a batch script is for a cluster: name it with --on SYSTEM:PARTITION, or --on slurm")
    if spec.system.casefold() == ANY_SLURM:
        return None
    if catalog is None:
        raise UnknownName(
            "system", spec.system, [LOCAL, ANY_SLURM], fix="without a catalog only local and slurm are known"
        )
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
        known = [LOCAL, ANY_SLURM, *(one.name for one in catalog.systems())]
        fix = "leadline systems list shows the known ones, and slurm[:PARTITION] is a cluster that is not among them"
        raise UnknownName("system", name, known, fix=fix) from error


@dataclass(frozen=True, slots=True)
class JobPrediction:
    """What is predicted for a job, or why nothing is; its run is to carry ``tags``, which tell how it was corrected."""

    estimate: Estimate | None = None
    reason: str = ""
    tags: dict[str, str] = field(default_factory=dict)


def predict_job(
    place: str, subject: Sequence[str], tools: Toolbox, *, gpus: int | None = None, name: str = ""
) -> JobPrediction:
    """Return what is predicted for a job at ``place`` (here: ``local``), as its own earlier runs correct it.

    ``name`` is what the user calls the job, by which its runs are found.
    """
    if len(subject) == 1 and not subject[0].endswith(".toml"):
        return JobPrediction(
            reason=f"{subject[0]!r} is no Python command, and nothing else can be read without running it"
        )
    try:
        found = estimate(read_workload(subject, WorkloadOptions(gpus=gpus)), tools, on=[place]).estimates[0]
        called = name or _command_of(subject)[1]
    except LeadlineError as error:
        return JobPrediction(reason=str(error))
    try:
        better, tags = correct_estimate(found, called)
    except LeadlineError as error:
        return JobPrediction(replace(found, notes=(*found.notes, f"it is not corrected by earlier runs: {error}")))
    return JobPrediction(better, tags=tags)


def run_locally(
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
class JobRequest:
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


def build_job_spec(subject: Sequence[str], place: str, request: JobRequest) -> JobSpec:
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


def _check_request(request: JobRequest) -> None:
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


def raise_if_failed(run: Run) -> None:
    """Raise ``JobFailed`` with the reason, unless the run completed."""
    if run.state is JobState.COMPLETED:
        return
    how = run.tags.get("reason") or (f"exit code {run.exit_code}" if run.exit_code is not None else "no exit code")
    raise JobFailed(f"run {run.id} ended {run.state.value} ({how}): leadline history show {run.id} says more")


def _name_of(command: Sequence[str]) -> str:
    """Name a job after the script it runs, else after its program."""
    scripts = [word for word in command if word.endswith((".py", ".sh")) and not word.startswith("-")]
    return Path(scripts[0] if scripts else command[0]).stem or "job"


@dataclass(frozen=True, slots=True)
class InferredRequest:
    """A request with nothing left open that could be known, and a sentence for each thing that was filled in.

    ``predicted`` is what it rests on, where something was left open that a prediction tells; the job's runs carry
    ``tags``.
    """

    request: JobRequest
    notes: tuple[str, ...] = ()
    predicted: Estimate | None = None
    tags: dict[str, str] = field(default_factory=dict)


def infer_request(request: JobRequest, subject: Sequence[str], place: str, tools: Toolbox) -> InferredRequest:
    """Return ``request`` for ``place`` with its GPUs, nodes, cores, memory and walltime filled in.

    GPUs are the workload's: its file's, else as many as its launcher starts processes, and at least one where the
    partition has them (all of a node that is given whole). Cores, memory and walltime are those that ``recommend``
    asks for there. What the user asked for stays, and on a cluster that the catalog does not know so does the rest.

    Raises:
        UnknownName: no such system or partition.
        InvalidInput: the place has no batch scheduler, or there is no command.
    """
    spec = build_job_spec(subject, place, replace(request, nodes=1))
    partition = find_partition(spec, tools.catalog)
    if partition is None:
        return InferredRequest(request)
    used, nodes, why = (spec.resources.gpus_per_node, 0, "") if request.gpus is not None else _used(spec, partition)
    per_node = partition.node.gpus if partition.node.device else 0
    nodes = request.nodes or nodes or (max(1, math.ceil(used / per_node)) if per_node else 1)
    asked = max(used, per_node * nodes) if why and partition.rules.whole_nodes else used
    filled = replace(request, gpus=asked, nodes=nodes)
    notes = []
    if why and asked:
        notes.append(f"{asked} GPU{'s are' if asked > 1 else ' is'} asked for, {why}: --gpus changes it")
    if None in (request.cores, request.memory_bytes, request.walltime_s):
        found = _predicted(filled, subject, place, partition, tools, used)
        return replace(found, notes=(*notes, *found.notes))
    return InferredRequest(filled, tuple(notes))


def _used(spec: JobSpec, partition: Partition) -> tuple[int, int, str]:
    """Return how many GPUs a job uses whose owner asked for none, on how many nodes, and why.

    0 nodes are as many as the GPUs take. There is no reason to give where the job's own file says it, nor where there
    are no GPUs.
    """
    if said := spec.resources.gpus_per_node:
        return said, 0, ""
    if not partition.node.device:
        return 0, 0, ""
    processes, nodes = count_launched_processes(spec.command)
    if processes > 1:
        return processes, nodes, "one for each process that the command starts"
    has = "gives whole nodes with GPUs" if partition.rules.whole_nodes else "has GPUs"
    return 1, 0, f"as {spec.system}:{partition.name} {has} and nothing says how many the job uses"


def _predicted(
    request: JobRequest, subject: Sequence[str], place: str, partition: Partition, tools: Toolbox, gpus: int
) -> InferredRequest:
    """Fill cores, memory and walltime in from what is predicted at ``place`` on ``gpus``; say so, or why not."""
    found = predict_job(place, subject, tools, gpus=gpus or None, name=request.name)
    predicted = found.estimate
    if predicted is None:
        why = f"what is not asked for is left to the site, as nothing could be predicted: {found.reason}"
        return InferredRequest(request, (why,))
    asked = resources_for_estimate(predicted, partition, DEFAULT_RISK)
    filled = replace(
        request,
        cores=asked.cores_per_task if request.cores is None else request.cores,
        memory_bytes=asked.memory_bytes_per_node if request.memory_bytes is None else request.memory_bytes,
        walltime_s=asked.walltime_s if request.walltime_s is None else request.walltime_s,
    )
    filled, sooner = _sooner(filled, request, asked.walltime_s)
    filled_in = _words(request, asked)
    notes = [f"asked for as predicted there, at a risk of {DEFAULT_RISK:.0%}: {filled_in}"] if filled_in else []
    notes += sooner
    needed, there = predicted.gpu_memory_bytes, predicted.device_memory_bytes
    if needed and there and needed.point > there:
        notes.append(
            f"the job needs about {format_bytes(needed.point)} of GPU memory and a {predicted.target.device} has "
            f"{format_bytes(there)}: leadline recommend shows where it fits"
        )
    return InferredRequest(filled, tuple(notes), predicted, found.tags)


def _sooner(filled: JobRequest, request: JobRequest, enough_s: float | None) -> tuple[JobRequest, list[str]]:
    """Let the scheduler give a shorter limit than the user asks for, if so much is enough as far as is known."""
    asked_s = request.walltime_s
    if asked_s is None or enough_s is None or request.least_walltime_s is not None or enough_s >= asked_s:
        return filled, []
    said = f"a limit of {format_clock(enough_s)} may be given it, if it then starts sooner: --time-min changes that"
    return replace(filled, least_walltime_s=enough_s), [said]


def _words(request: JobRequest, asked: ResourceSpec) -> str:
    """Name what was filled in, each with the option that changes it."""
    cores, memory, walltime = asked.cores_per_task, asked.memory_bytes_per_node, asked.walltime_s
    found = [
        ("--cores", request.cores, f"{cores} cores" if cores else None),
        ("--memory", request.memory_bytes, f"{format_bytes(memory)} of memory a node" if memory else None),
        ("--time", request.walltime_s, f"{format_clock(walltime)} of walltime" if walltime else None),
    ]
    return ", ".join(f"{words or 'what the site gives'} ({option})" for option, said, words in found if said is None)
