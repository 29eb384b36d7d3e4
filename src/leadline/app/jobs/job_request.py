"""A job request, and its resolution: the command, the targets, and the resources that the user left open."""

import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import field

from leadline.app.estimate.estimate import Toolbox, estimate
from leadline.app.jobs.journal import JobSubmission
from leadline.app.jobs.plane_options import PlaneOptions, build_policy, parse_array_indices
from leadline.app.jobs.schedulers import JobTarget, check_at_hand, resolve_job_targets
from leadline.app.machines.targets import ANY_SLURM, LOCAL
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import MODEL_SUFFIXES, count_launched_processes, read_workload
from leadline.core.errors import InvalidInput, LeadlineError, excerpt
from leadline.core.estimate import Estimate
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.plane import DependencyKind, Place
from leadline.core.systems import Partition
from leadline.core.units import format_bytes, format_clock
from leadline.execution.schedulers.slurm.script import directives
from leadline.files.read import exists, is_file
from leadline.recommendation.requests import request_for_estimate

LOCAL_PLACE = Place(LOCAL)


class JobRequest(Frozen):
    """The user's request; ``None`` is inferred, or left to the site."""

    subject: tuple[str, ...] = ()  # a command, or a workload file with one
    on: tuple[str, ...] = (LOCAL,)
    """Targets, the preferred one first: ``local``, ``SYSTEM:PARTITION``, or ``slurm[:PARTITION]`` for a cluster that
    the catalog does not know."""
    account: str | None = None
    nodes: int | None = None
    gpus: int | None = None  # of the whole job
    cores: int | None = None
    memory_bytes: int | None = None
    walltime_s: float | None = None
    least_walltime_s: float | None = None
    name: str = ""
    workdir: str | None = None
    setup: tuple[str, ...] = ()
    options: PlaneOptions = field(default_factory=PlaneOptions)


class JobCommand(Frozen):
    """The command of a request, its name, and the GPUs of its workload file (0 without)."""

    words: tuple[str, ...]
    name: str
    gpus: int = 0


class JobPrediction(Frozen):
    """A job's estimate, or the reason why there is none; ``tags`` of its run record how it was corrected."""

    estimate: Estimate | None = None
    reason: str = ""
    tags: dict[str, str] = field(default_factory=dict)


class InferredRequest(Frozen):
    """A request with its open resources inferred, a sentence for each, and the prediction behind them."""

    request: JobRequest
    notes: tuple[str, ...] = ()
    prediction: JobPrediction = field(default_factory=JobPrediction)


def resolve_request(request: JobRequest, tools: Toolbox, *, at_hand: bool = False) -> JobSubmission:
    """Return the job, the policy and the targets of a request, with open resources inferred for the first target.

    A dry run and a submission both take the result, so they cannot differ. With ``at_hand``, a target that this
    machine cannot submit to is refused, without contacting it.

    Raises:
        UnknownName: unknown system or partition.
        InvalidInput: there is no command, a site would refuse the job, or an option is out of range.
        SchedulerUnreachable: the commands of a target are not on this machine.
    """
    targets, options = resolve_job_targets(request.on, tools.catalog), request.options
    if at_hand:
        for target in targets:
            check_at_hand(target)
    policy = build_policy(tuple(target.place for target in targets), options)
    indices = parse_array_indices(options.array) if options.array is not None else ()
    if options.after and options.after_any:
        raise InvalidInput("--after and --after-any exclude each other")
    command = read_command(request.subject)
    check_program(command, request, here=all(target.at_hand for target in targets))
    inferred = infer_request(request, command, targets[0], tools)
    # The plane may run in another folder, so the current one is kept if a target has this machine's files.
    workdir = request.workdir or (str(Path.cwd()) if any(target.at_hand for target in targets) else None)
    spec = build_job_spec(replace(inferred.request, workdir=workdir), targets[0].place, command)
    spec = replace(spec, watched=policy.measured)
    for target in targets:
        if target.kind == ANY_SLURM:
            directives(replace(spec, system=target.place.system, partition=target.place.partition), target.partition)
    return JobSubmission(
        spec,
        policy,
        indices,
        options.after_any or options.after,
        DependencyKind.ANY if options.after_any else DependencyKind.OK,
        inferred.prediction.estimate,
        tags=inferred.prediction.tags,
        targets=targets,
        notes=inferred.notes,
    )


def read_command(subject: Sequence[str]) -> JobCommand:
    """Return the command of a request, or of its workload file.

    Raises:
        InvalidInput: there is none.
    """
    if not subject:
        raise InvalidInput("no command given: put it after --, as in -- python train.py")
    if not _is_workload_file(subject):
        return JobCommand(tuple(subject), _name_of(subject))
    workload = read_workload(subject)
    if not workload.model.argv:
        raise InvalidInput(
            f"{subject[0]} has a model ({workload.model.reference}) but no command to run: replace "
            'model with command = "python train.py"'
        )
    gpus = 0 if "gpus" in workload.defaulted else workload.gpus
    return JobCommand(workload.model.argv, workload.name or _name_of(workload.model.argv), gpus)


def check_program(command: JobCommand, request: JobRequest, *, here: bool) -> None:
    """Refuse a file that cannot be run as the program of a command; ``here`` if the job has this machine's files.

    Raises:
        InvalidInput: the program describes a model, or is a folder or a file without the right to run it.
    """
    program = command.words[0]
    suffix = Path(program).suffix
    if suffix in MODEL_SUFFIXES or ".py:" in program:
        raise InvalidInput(
            f"{program} is not a command: write leadline estimate {program}, or name the command to run, as in "
            "-- python train.py"
        )
    if shutil.which(program):
        return
    path = Path(request.workdir or ".", program)
    is_runnable = os.sep in program and is_file(path) and os.access(path, os.X_OK)
    # Setup lines may define the program or change the folder.
    if not here or request.setup or not exists(path) or is_runnable:
        return
    if path.is_dir():
        raise InvalidInput(f"{program} is a folder: name the command to run, as in -- python train.py")
    fix = f"make it executable and write ./{program.removeprefix('./')}"
    if interpreter := {".py": "python", ".sh": "bash"}.get(suffix):
        fix = f"name its interpreter, as in -- {interpreter} {program}"
    raise InvalidInput(f"{program} is a file that cannot be run as a command: {fix}")


def build_job_spec(request: JobRequest, place: Place = LOCAL_PLACE, command: JobCommand | None = None) -> JobSpec:
    """Return the job of a request at a place.

    Raises:
        InvalidInput: there is no command, or a resource is out of range or not divisible by the nodes.
    """
    for option, value, least in (
        ("--nodes", request.nodes, 1), ("--gpus", request.gpus, 0), ("--cores", request.cores, 1),
        ("--memory", request.memory_bytes, 1), ("--time", request.walltime_s, 1),
        ("--time-min", request.least_walltime_s, 1),
    ):  # fmt: skip
        if value is not None and value < least:
            raise InvalidInput(f"{option} is {value:g}, but it must be at least {least}")
    if command is None:
        command = read_command(request.subject)
        check_program(command, request, here=True)
    # 0 GPUs is a valid request, so None is the only missing value.
    gpus, nodes = command.gpus if request.gpus is None else request.gpus, request.nodes or 1
    if gpus % nodes:
        raise InvalidInput(f"{gpus} GPUs do not divide evenly over {nodes} nodes: change --gpus or --nodes")
    resources = ResourceSpec(
        nodes=nodes,
        cores_per_task=request.cores,
        gpus_per_node=gpus // nodes,
        memory_bytes_per_node=request.memory_bytes,
        walltime_s=request.walltime_s,
        least_walltime_s=request.least_walltime_s,
    )
    return JobSpec(
        request.name or command.name,
        command.words,
        resources,
        system=None if place == LOCAL_PLACE else place.system,
        partition=place.partition,
        account=request.account,
        workdir=request.workdir,
        setup=request.setup,
    )


def predict_job(
    place: Place, subject: Sequence[str], tools: Toolbox, *, name: str, gpus: int | None = None
) -> JobPrediction:
    """Return the prediction for a job at a place, corrected by its earlier runs, which ``name`` identifies."""
    if len(subject) == 1 and not _is_workload_file(subject):
        return JobPrediction(reason=f"{excerpt(subject[0])!r} is not a Python command, and only those can be predicted")
    try:
        prediction = estimate(read_workload(subject, WorkloadOptions(gpus=gpus)), tools, on=[str(place)]).estimates[0]
    except LeadlineError as error:
        return JobPrediction(reason=str(error))
    from leadline.app.models.retrain import correct_estimate  # noqa: PLC0415 - numpy loads on use

    try:
        corrected_estimate, tags = correct_estimate(prediction, name)
    except LeadlineError as error:
        return JobPrediction(replace(prediction, notes=(*prediction.notes, f"not corrected by earlier runs: {error}")))
    return JobPrediction(corrected_estimate, tags=tags)


def infer_request(request: JobRequest, command: JobCommand, target: JobTarget, tools: Toolbox) -> InferredRequest:
    """Return ``request`` with GPUs, nodes, cores, memory and walltime inferred for a target.

    GPUs come from the workload file, else from the number of processes that the launcher or the script itself starts;
    at least one on a partition with GPUs, and all of a node that is given whole. Cores, memory and walltime are those
    of ``recommend`` at the user's risk. The user's own values stay. Below the user's walltime, Slurm may grant the
    predicted one. On this machine, and on a cluster whose rules are unknown, nothing is inferred.
    """
    partition, name = target.partition, request.name or command.name
    if partition is None and target.kind != LOCAL:
        return InferredRequest(request)
    if partition is None:
        prediction = predict_job(target.place, request.subject, tools, name=name, gpus=request.gpus)
        why_none = () if prediction.estimate else (f"no prediction for this job: {prediction.reason}",)
        return InferredRequest(request, why_none, prediction)
    used_gpus, nodes, why = (request.gpus, 0, "") if request.gpus is not None else _gpus_of(command, target, partition)
    is_open = bool(why) and used_gpus == 1
    prediction = predict_job(
        target.place, request.subject, tools, name=name, gpus=None if is_open else used_gpus or None
    )
    if is_open and prediction.estimate is not None and prediction.estimate.target.gpus > 1:
        used_gpus, why = prediction.estimate.target.gpus, "one per process that the script starts"
    per_node = partition.node.gpus if partition.node.device else 0
    nodes = request.nodes or nodes or (max(1, math.ceil(used_gpus / per_node)) if per_node else 1)
    gpus = max(used_gpus, per_node * nodes) if why and partition.rules.whole_nodes else used_gpus
    with_gpus = replace(request, gpus=gpus, nodes=nodes)
    notes: tuple[str, ...] = ()
    if why and gpus:
        notes = (f"requesting {gpus} GPU{'s' if gpus > 1 else ''} ({why}); change it with --gpus",)
    inferred = _infer_from_prediction(with_gpus, prediction, partition)
    return replace(inferred, notes=(*notes, *inferred.notes))


def _gpus_of(command: JobCommand, target: JobTarget, partition: Partition) -> tuple[int, int, str]:
    """Return (GPUs, nodes, reason) of a job without requested GPUs; 0 nodes are as many as the GPUs need.

    The reason is empty if the workload file sets the GPUs, or the partition has none.
    """
    if command.gpus or not partition.node.device:
        return command.gpus, 0, ""
    processes, nodes, _ = count_launched_processes(command.words)
    if processes > 1:
        return processes, nodes, "one per process of the command"
    has = "gives whole nodes with GPUs" if partition.rules.whole_nodes else "has GPUs"
    return 1, 0, f"{target.place.system}:{partition.name} {has}, and the job does not say how many it uses"


def _infer_from_prediction(request: JobRequest, prediction: JobPrediction, partition: Partition) -> InferredRequest:
    """Infer cores, memory and walltime from the prediction, with notes."""
    predicted, risk = prediction.estimate, request.options.risk
    if predicted is None:
        is_open = None in (request.cores, request.memory_bytes, request.walltime_s)
        why = f"no prediction, so unset resources are left to the site: {prediction.reason}"
        return InferredRequest(request, (why,) if is_open else (), prediction)
    inferred = request_for_estimate(predicted, partition, risk).resources
    cores, memory, enough_s = inferred.cores_per_task, inferred.memory_bytes_per_node, inferred.walltime_s
    changes = [
        ("cores", request.cores, cores, "--cores", f"{cores} cores" if cores else None),
        ("memory_bytes", request.memory_bytes, memory, "--memory",
         f"{format_bytes(memory)} of memory per node" if memory else None),
        ("walltime_s", request.walltime_s, enough_s, "--time",
         f"{format_clock(enough_s)} of walltime" if enough_s else None),
    ]  # fmt: skip
    open_changes = [change for change in changes if change[1] is None]
    filled = replace(request, **{name: value for name, _, value, _, _ in open_changes})  # type: ignore[arg-type]
    words = ", ".join(f"{text or 'the default of the site'} ({option})" for _, _, _, option, text in open_changes)
    notes = [f"requesting, at {100 * risk:g}% risk: {words}"] if words else []
    if enough_s is not None and _may_grant_less(request, partition, enough_s):
        filled = replace(filled, least_walltime_s=enough_s)
        limit = format_clock(enough_s)
        notes.append(f"the scheduler may set a limit of {limit} to start the job sooner; change it with --time-min")
    needed, capacity = predicted.gpu_memory_bytes, predicted.device_memory_bytes
    if needed and capacity and needed.point > capacity:
        notes.append(
            f"the job needs about {format_bytes(needed.point)} of GPU memory, but a {predicted.target.device} has "
            f"{format_bytes(capacity)}: leadline recommend shows where it fits"
        )
    return InferredRequest(filled, tuple(notes), prediction)


def _may_grant_less(request: JobRequest, partition: Partition, enough_s: float) -> bool:
    """True if Slurm may grant the predicted limit in place of the user's longer one."""
    is_left_open = request.least_walltime_s is None and request.options.resizes
    return is_left_open and enough_s < (request.walltime_s or 0.0) and "--time-min" not in partition.rules.rejects


def _is_workload_file(subject: Sequence[str]) -> bool:
    return len(subject) == 1 and subject[0].endswith(".toml")


def _name_of(command: Sequence[str]) -> str:
    """Name a job after its script, else after its program."""
    scripts = [word for word in command if word.endswith((".py", ".sh")) and not word.startswith("-")]
    return Path(scripts[0] if scripts else command[0]).stem or "job"
