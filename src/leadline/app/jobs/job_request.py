"""A job request: its batch script, its prediction, and the resources that the user left open."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from leadline.app import settings
from leadline.app.estimate.estimate import DEFAULT_RISK, Toolbox, estimate
from leadline.app.machines.targets import ANY_SLURM, LOCAL
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
from leadline.recommendation.requests import request_for_estimate


def render_batch_script(spec: JobSpec, catalog: Catalog | None = None) -> str:
    """Return the batch script that the site of ``spec`` accepts.

    Raises:
        UnknownName: unknown system or partition.
        InvalidInput: the site would refuse the job, or does not use Slurm.
    """
    return render_script(spec, find_partition(spec, catalog))


def find_partition(spec: JobSpec, catalog: Catalog | None) -> Partition | None:
    """Return the partition that ``spec`` names; ``None`` for a Slurm cluster that the catalog does not know."""
    if spec.system is None:
        raise InvalidInput("no cluster given: add --on SYSTEM:PARTITION, or --on slurm")
    if spec.system.casefold() == ANY_SLURM:
        return None
    if catalog is None:
        raise UnknownName(
            "system", spec.system, [LOCAL, ANY_SLURM], fix="without a catalog, only local and slurm are known"
        )
    system = find_system(spec.system, catalog)
    if system.scheduler.casefold() != "slurm":
        raise InvalidInput(
            f"{system.name} does not use Slurm (scheduler: {system.scheduler or 'none'}), so there is "
            "no batch script: name a Slurm system, or run here with --on local"
        )
    if spec.partition is None:
        names = ", ".join(partition.name for partition in system.partitions)
        raise InvalidInput(f"{system.name} has several partitions: write {system.name}:PARTITION, one of {names}")
    return system.partition(spec.partition)


def find_system(name: str, catalog: Catalog) -> System:
    """Return the system; the error for an unknown one also suggests ``local`` and ``slurm``."""
    try:
        return catalog.system(name)
    except UnknownName as error:
        names = [LOCAL, ANY_SLURM, *(system.name for system in catalog.systems())]
        fix = "leadline systems list shows the systems; slurm[:PARTITION] is any other Slurm cluster"
        raise UnknownName("system", name, names, fix=fix) from error


@dataclass(frozen=True, slots=True)
class JobPrediction:
    """A job's estimate, or the reason why there is none; ``tags`` of its run record how it was corrected."""

    estimate: Estimate | None = None
    reason: str = ""
    tags: dict[str, str] = field(default_factory=dict)


def predict_job(
    place: str, subject: Sequence[str], tools: Toolbox, *, gpus: int | None = None, name: str = ""
) -> JobPrediction:
    """Return the prediction for a job at ``place`` (this machine: ``local``), corrected by its earlier runs.

    ``name`` is the user's name of the job, which identifies its runs.
    """
    if len(subject) == 1 and not subject[0].endswith(".toml"):
        return JobPrediction(reason=f"{subject[0]!r} is not a Python command, and only those can be predicted")
    try:
        prediction = estimate(read_workload(subject, WorkloadOptions(gpus=gpus)), tools, on=[place]).estimates[0]
        job_name = name or _command_of(subject)[1]
    except LeadlineError as error:
        return JobPrediction(reason=str(error))
    from leadline.app.models.retrain import correct_estimate  # noqa: PLC0415 - numpy loads on use

    try:
        corrected_estimate, tags = correct_estimate(prediction, job_name)
    except LeadlineError as error:
        return JobPrediction(replace(prediction, notes=(*prediction.notes, f"not corrected by earlier runs: {error}")))
    return JobPrediction(corrected_estimate, tags=tags)


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
    """Run the job on this machine under the measuring wrapper, and add the run with its prediction to the history.

    Raises:
        InvalidInput: the command cannot be started; nothing is added to the history.
        LeadlineError: the history cannot be read or written; raised before the job runs.
    """
    store = SqliteHistory(history or settings.history_path())
    # An unreadable history must fail now, and not after hours of running.
    next(iter(store.runs(limit=1)), None)
    settings.require_writable(settings.runs_dir())
    run = run_local(spec, folder=settings.runs_dir(), on_progress=on_progress, output=output)
    run = replace(run, predicted=predicted, parameters=parameters or {}, tags={**run.tags, **(tags or {})})
    store.add(run)
    return run


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The user's request; ``None`` is inferred, or left to the site. ``gpus`` counts the whole job."""

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

    ``place`` is ``local``, ``SYSTEM:PARTITION``, or ``slurm[:PARTITION]`` for a cluster that the catalog does not
    know.

    Raises:
        InvalidInput: there is no command, or a resource is out of range or not divisible by the nodes.
    """
    _check_request(request)
    command, name, gpus = _command_of(subject)
    # 0 GPUs is a valid request, so None is the only missing value.
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
        raise InvalidInput(f"{gpus} GPUs do not divide evenly over {nodes} nodes: change --gpus or --nodes")
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
            raise InvalidInput(f"{option} is {value:g}, but it must be at least {least}")


def _command_of(subject: Sequence[str]) -> tuple[tuple[str, ...], str, int]:
    """Return the command, its name and the GPUs of its workload file (0 if it has none)."""
    if not subject:
        raise InvalidInput("no command given: put it after --, as in -- python train.py")
    if len(subject) > 1 or not subject[0].endswith(".toml"):
        return tuple(subject), _name_of(subject), 0
    workload = read_workload(subject)
    if not workload.model.argv:
        raise InvalidInput(
            f"{subject[0]} has a model ({workload.model.reference}) but no command to run: replace "
            'model with command = "python train.py"'
        )
    gpus = 0 if "gpus" in workload.defaulted else workload.gpus
    return workload.model.argv, workload.name or _name_of(workload.model.argv), gpus


def raise_if_failed(run: Run) -> None:
    """Raise ``JobFailed`` with the reason, unless the run completed."""
    if run.state is JobState.COMPLETED:
        return
    how = run.tags.get("reason") or (f"exit code {run.exit_code}" if run.exit_code is not None else "no exit code")
    raise JobFailed(f"run {run.id} ended {run.state.value} ({how}); details: leadline history show {run.id}")


def _name_of(command: Sequence[str]) -> str:
    """Name a job after its script, else after its program."""
    scripts = [word for word in command if word.endswith((".py", ".sh")) and not word.startswith("-")]
    return Path(scripts[0] if scripts else command[0]).stem or "job"


@dataclass(frozen=True, slots=True)
class InferredRequest:
    """A request with its open resources inferred.

    Attributes:
        notes: a sentence per inferred resource.
        predicted: the estimate behind the request, if one was needed.
        tags: tags for the job's runs.
    """

    request: JobRequest
    notes: tuple[str, ...] = ()
    predicted: Estimate | None = None
    tags: dict[str, str] = field(default_factory=dict)


def infer_request(request: JobRequest, subject: Sequence[str], place: str, tools: Toolbox) -> InferredRequest:
    """Return ``request`` for ``place`` with GPUs, nodes, cores, memory and walltime inferred.

    GPUs come from the workload file, else from the number of processes that the launcher starts; at least one on a
    partition with GPUs, and all of a node that is given whole. Cores, memory and walltime are those of ``recommend``.
    The user's own values stay. On a cluster that the catalog does not know, nothing is inferred.

    Raises:
        UnknownName: unknown system or partition.
        InvalidInput: the system has no batch scheduler, or there is no command.
    """
    spec = build_job_spec(subject, place, replace(request, nodes=1))
    partition = find_partition(spec, tools.catalog)
    if partition is None:
        return InferredRequest(request)
    used_gpus, nodes, why = (
        (spec.resources.gpus_per_node, 0, "") if request.gpus is not None else _gpus_of(spec, partition)
    )
    per_node = partition.node.gpus if partition.node.device else 0
    nodes = request.nodes or nodes or (max(1, math.ceil(used_gpus / per_node)) if per_node else 1)
    gpus = max(used_gpus, per_node * nodes) if why and partition.rules.whole_nodes else used_gpus
    with_gpus = replace(request, gpus=gpus, nodes=nodes)
    notes = []
    if why and gpus:
        notes.append(f"requesting {gpus} GPU{'s' if gpus > 1 else ''} ({why}); change it with --gpus")
    if None in (request.cores, request.memory_bytes, request.walltime_s):
        inferred = _infer_from_prediction(with_gpus, subject, place, partition, tools, used_gpus)
        return replace(inferred, notes=(*notes, *inferred.notes))
    return InferredRequest(with_gpus, tuple(notes))


def _gpus_of(spec: JobSpec, partition: Partition) -> tuple[int, int, str]:
    """Return (GPUs, nodes, reason) of a job without requested GPUs; 0 nodes are as many as the GPUs need.

    The reason is empty if the workload file sets the GPUs, or the partition has none.
    """
    if gpus := spec.resources.gpus_per_node:
        return gpus, 0, ""
    if not partition.node.device:
        return 0, 0, ""
    processes, nodes = count_launched_processes(spec.command)
    if processes > 1:
        return processes, nodes, "one per process of the command"
    has = "gives whole nodes with GPUs" if partition.rules.whole_nodes else "has GPUs"
    return 1, 0, f"{spec.system}:{partition.name} {has}, and the job does not say how many it uses"


def _infer_from_prediction(
    request: JobRequest, subject: Sequence[str], place: str, partition: Partition, tools: Toolbox, gpus: int
) -> InferredRequest:
    """Infer cores, memory and walltime from the prediction at ``place`` on ``gpus``, with notes."""
    prediction = predict_job(place, subject, tools, gpus=gpus or None, name=request.name)
    predicted = prediction.estimate
    if predicted is None:
        why = f"no prediction, so unset resources are left to the site: {prediction.reason}"
        return InferredRequest(request, (why,))
    inferred = request_for_estimate(predicted, partition, DEFAULT_RISK).resources
    filled = replace(
        request,
        cores=inferred.cores_per_task if request.cores is None else request.cores,
        memory_bytes=inferred.memory_bytes_per_node if request.memory_bytes is None else request.memory_bytes,
        walltime_s=inferred.walltime_s if request.walltime_s is None else request.walltime_s,
    )
    filled, sooner = _with_min_walltime(filled, request, inferred.walltime_s)
    filled_in = _describe_inferred(request, inferred)
    notes = [f"requesting, at {DEFAULT_RISK:.0%} risk: {filled_in}"] if filled_in else []
    notes += sooner
    needed, capacity = predicted.gpu_memory_bytes, predicted.device_memory_bytes
    if needed and capacity and needed.point > capacity:
        notes.append(
            f"the job needs about {format_bytes(needed.point)} of GPU memory, but a "
            f"{predicted.target.device} has {format_bytes(capacity)}: leadline recommend shows where it "
            "fits"
        )
    return InferredRequest(filled, tuple(notes), predicted, prediction.tags)


def _with_min_walltime(filled: JobRequest, request: JobRequest, enough_s: float | None) -> tuple[JobRequest, list[str]]:
    """Add a minimum walltime if a shorter limit than the user's is expected to be enough."""
    asked_s = request.walltime_s
    if asked_s is None or enough_s is None or request.least_walltime_s is not None or enough_s >= asked_s:
        return filled, []
    note = (
        f"the scheduler may set a limit of {format_clock(enough_s)} to start the job sooner; change it with --time-min"
    )
    return replace(filled, least_walltime_s=enough_s), [note]


def _describe_inferred(request: JobRequest, inferred: ResourceSpec) -> str:
    """List the inferred resources, each with the option that changes it."""
    cores, memory, walltime = inferred.cores_per_task, inferred.memory_bytes_per_node, inferred.walltime_s
    options = [
        ("--cores", request.cores, f"{cores} cores" if cores else None),
        ("--memory", request.memory_bytes, f"{format_bytes(memory)} of memory per node" if memory else None),
        ("--time", request.walltime_s, f"{format_clock(walltime)} of walltime" if walltime else None),
    ]
    return ", ".join(
        f"{words or 'the default of the site'} ({option})" for option, value, words in options if value is None
    )
