"""The verb ``estimate``: time, memory and cost of a workload on devices and systems, without running it."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import field
from msgspec.structs import replace

from leadline.app.background import report_step
from leadline.app.estimate.kept_probes import apply_probe, find_probe
from leadline.app.machines.targets import ResolvedTarget, ResolvedTargets, local_device, resolve_targets
from leadline.catalog.billing import compute_charge
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.estimate import Estimate
from leadline.core.frozen import Frozen
from leadline.core.graph import OpGraph, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.ports import Catalog, Estimator, GraphSource
from leadline.core.units import HOUR_S
from leadline.core.workload import ModelKind, Phase, Workload
from leadline.recommendation.requests import request_for_estimate

DEFAULT_RISK = 0.05
"""Default risk at which an estimate's memory becomes a request."""


class Toolbox(Frozen):
    """The adapters that the verbs use; only ``app.composition`` constructs them."""

    catalog: Catalog
    sources: Mapping[ModelKind, GraphSource]
    estimator: Estimator
    compilers: Mapping[ModelKind, Callable[[Workload, Device], TracedJob]] = field(default_factory=dict)


class GraphSummary(Frozen):
    """Size of the step that the estimates are made from."""

    source: str
    ops: int
    parameters: int
    flops_per_step: float
    bytes_per_step: float
    batch: int | None
    steps_per_epoch: int | None
    epochs: float | None
    fallbacks: int = 0


class EstimateAnswer(Frozen):
    """Estimates of one workload on every target, with the notes of the tracer.

    Attributes:
        left_out: a sentence per partition that cannot be estimated.
        assumed: value of each option that was not given, if the model, the script or a default sets it.
    """

    workload: Workload
    graph: GraphSummary
    estimates: tuple[Estimate, ...]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    assumed: dict[str, str] = field(default_factory=dict)


class Tracer:
    """Traces a workload at most once per kernel policy, or compiles it once per device.

    Raises:
        InvalidInput: the workload has no layout yet.
    """

    def __init__(self, tools: Toolbox, workload: Workload) -> None:
        if workload.automatic_layout:
            raise InvalidInput(
                "--layout auto works with leadline estimate only: run that first, then give the layout it chooses "
                "with its own options"
            )
        self.tools, self.workload = tools, workload
        self._jobs: dict[str, TracedJob] = {}

    def job_for(self, device: Device) -> TracedJob:
        """Return the job traced under the policies of ``device``.

        An uncalibrated CPU reuses an existing graph: its interval is wider than the two policies differ.
        """
        if self.workload.compiled:
            if device.name not in self._jobs:
                report_step(f"compiling {self.workload.name} for {device.name}")
                self._jobs[device.name] = self.tools.compilers[self.workload.model.kind](self.workload, device)
            return self._jobs[device.name]
        policy = "cpu" if device.kind is DeviceKind.CPU else "cuda"
        if policy == "cpu" and device.calibration is None and self._jobs:
            return self.first_job
        if policy not in self._jobs:
            report_step(f"tracing {self.workload.name}")
            source = self.tools.sources[self.workload.model.kind]
            self._jobs[policy] = _check_batch(self.workload, source(self.workload, device_type=policy))
        return self._jobs[policy]

    @property
    def first_job(self) -> TracedJob:
        """Return the job that was traced first."""
        return next(iter(self._jobs.values()))

    @property
    def on_script_gpus(self) -> Workload | None:
        """Return the workload on the GPUs for which its script itself starts processes, ``None`` if it has them.

        Only once: their number may follow that of the GPUs.
        """
        workload = self.workload
        if "gpus" not in workload.defaulted or not self._jobs or self.first_job.step.device_type == "cpu":
            return None
        started = self.first_job.loop.world_size
        if started <= workload.gpus:
            return None
        defaulted = tuple(name for name in workload.defaulted if name != "gpus")
        return replace(workload, gpus=started, needs_gpus=True, defaulted=defaulted)


def _check_batch(workload: Workload, job: TracedJob) -> TracedJob:
    """Refuse ``--batch`` if it differs from the batch of a traced script."""
    script_batch, is_script = job.loop.batch, workload.model.kind is ModelKind.COMMAND
    if is_script and script_batch is not None and workload.batch not in (None, script_batch):
        raise InvalidInput(
            f"--batch is {workload.batch}, but the script's own is {script_batch}: set it in the script's "
            "options, as in -- python train.py --batch-size 64"
        )
    return job


def estimate(workload: Workload, tools: Toolbox, *, on: Sequence[str] = ()) -> EstimateAnswer:
    """Estimate ``workload`` on the targets named by ``on``, or on every partition of the catalog.

    Raises:
        InvalidInput: a target is unknown, or the workload cannot be used.
        Untraceable: the model or script could not be traced.
    """
    places = resolve_targets(tools.catalog, on, workload)
    if workload.automatic_layout:
        return _estimate_layouts(workload, tools, places)
    tracer = Tracer(tools, workload)
    estimates = estimate_targets(places.targets, tracer)
    if (started := tracer.on_script_gpus) is not None:
        return estimate(started, tools, on=on)
    estimates, probe_notes = _with_probe(places.targets, estimates, tracer)
    return EstimateAnswer(
        workload=workload,
        graph=_facts(workload, tracer.first_job),
        estimates=tuple(estimates),
        left_out=places.left_out,
        notes=(*tracer.first_job.notes, *probe_notes),
        assumed=_assumed(workload, tracer.first_job),
    )


def _estimate_layouts(workload: Workload, tools: Toolbox, places: ResolvedTargets) -> EstimateAnswer:
    """Estimate ``workload`` on each target with the fastest layout that fits there."""
    from leadline.app.estimate.layouts import choose_layout  # noqa: PLC0415 - numpy loads on use

    estimates, tracers, left_out = [], list[Tracer](), list(places.left_out)
    for place in places.targets:
        try:
            choice = choose_layout(workload, tools.sources[workload.model.kind], place, DEFAULT_RISK)
        except InvalidInput as error:
            left_out.append(f"{place.name}: {error}")
            if len(left_out) == len(places.left_out) + len(places.targets):
                raise
            continue
        tracers.append(Tracer(tools, choice.workload))
        estimate = estimate_targets([place], tracers[-1])[0]
        reasons = (choice.reason, *estimate.basis.reasons)
        estimates.append(replace(estimate, basis=replace(estimate.basis, reasons=reasons)))
    first = tracers[0]
    return EstimateAnswer(
        workload=first.workload,
        graph=_facts(first.workload, first.first_job),
        estimates=tuple(estimates),
        left_out=tuple(left_out),
        notes=first.first_job.notes,
        assumed=_assumed(first.workload, first.first_job),
    )


_TargetKey = tuple[str, int | None, int | None, float | None, int, int | None, float | None, str | None]


def estimate_targets(places: Sequence[ResolvedTarget], tracer: Tracer) -> list[Estimate]:
    """Estimate each distinct device and layout once, and add the cost at each target's own partition."""
    accelerator = next((place.device for place in places if place.device.kind is not DeviceKind.CPU), None)
    if accelerator is not None:
        tracer.job_for(accelerator)  # first, as an uncalibrated CPU reuses its graph
    estimates: dict[_TargetKey, Estimate] = {}
    answers = []
    for number, place in enumerate(places, 1):
        node = place.partition.node if place.partition else None
        key = (
            place.device.name,
            # The device of a CPU node has the cores of all its sockets, so its name is not a key.
            place.device.compute_units,
            place.device.scale_up_gpus,
            place.device.power_limit_w,
            place.target.gpus,
            place.target.nodes if node and (node.gpus or place.device.kind is DeviceKind.CPU) else None,
            node.network_bytes_per_s if node else None,
            node.network_technology if node else None,
        )
        if key not in estimates:
            job = tracer.job_for(place.device)
            if len(places) > 1:
                report_step(f"estimating {place.name} ({number} of {len(places)})")
            estimates[key] = tracer.tools.estimator.estimate(
                tracer.workload,
                job,
                place.device,
                nodes=key[-3],
                network_bytes_per_s=key[-2],
                network_technology=key[-1],
            )
        target = replace(place.target, nodes=estimates[key].target.nodes)
        answers.append(add_cost(replace(estimates[key], target=target), place))
    return answers


def _with_probe(
    places: Sequence[ResolvedTarget], estimates: list[Estimate], tracer: Tracer
) -> tuple[list[Estimate], tuple[str, ...]]:
    """Return the estimates, that of this machine by a probe of the same command if there is one, and notes."""
    try:
        kept = find_probe(tracer.workload)
    except LeadlineError as error:
        return estimates, (f"the probe of this command is not used: {error}",)
    if kept is None:
        return estimates, ()
    local = [place.system is None and place.device.calibration is not None for place in places]
    if not any(local):
        return estimates, (f"{kept.sentence}; --on local uses that",)
    here = local_device(tracer.tools.catalog).name
    pairs = zip(places, estimates, strict=True)
    return [apply_probe(each, kept) if place.device.name == here else each for place, each in pairs], ()


def add_cost(estimate: Estimate, place: ResolvedTarget) -> Estimate:
    """Return ``estimate`` with the cost of its elapsed time at the target, or with the reason why it is unknown."""
    if place.partition is None:
        return _without_cost(estimate, "a bare device has no price: name a system with --on")
    if place.partition.billing is None:
        return _without_cost(estimate, f"the price of {place.name} is unknown")
    if estimate.elapsed_s is None:
        return _without_cost(estimate, "the elapsed time is unknown")
    billing = place.partition.billing
    resources = request_for_estimate(estimate, place.partition, DEFAULT_RISK).resources
    hourly = compute_charge(billing, resources, 1.0, place.partition.node)
    if hourly is None:
        return _without_cost(estimate, f"a rate of {place.name} is unknown")
    return replace(estimate, cost=estimate.elapsed_s.scaled(hourly / HOUR_S), currency=billing.currency)


def _facts(workload: Workload, job: TracedJob) -> GraphSummary:
    return GraphSummary(
        source=job.step.source,
        ops=round(_sum_over_step(job, lambda graph: sum(op.count for op in graph.ops))),
        parameters=job.step.parameters,
        flops_per_step=_sum_over_step(job, lambda graph: graph.flops),
        bytes_per_step=_sum_over_step(job, lambda graph: graph.bytes_moved),
        batch=workload.batch or job.loop.batch,
        steps_per_epoch=job.loop.steps_per_epoch,
        epochs=workload.epochs or job.loop.epochs,
        fallbacks=sum(job.step.fallbacks.values()),
    )


def _sum_over_step(job: TracedJob, value: Callable[[OpGraph], float]) -> float:
    """Return the sum over the step and, where tokens are generated, its decode steps."""
    return value(job.step) + (job.generation.total(value) if job.generation else 0.0)


def _assumed(workload: Workload, job: TracedJob) -> dict[str, str]:
    """Return the known values of the options that were not given, in the order of ``defaulted``."""
    loop, training = job.loop, workload.phase is Phase.TRAINING
    function = workload.model.kind is ModelKind.FUNCTION
    values: dict[str, object] = {
        "phase": workload.phase.value,
        "batch": workload.batch or loop.batch,
        "precision": loop.precision or ("fp32" if function else None),
        "optimizer": (loop.optimizer or ("adamw" if function else None)) if training else None,
        "accumulate": max(workload.accumulation, loop.accumulation) if training else None,
        "workers": workload.dataset.workers or loop.loader_workers,
        "gpus": workload.gpus,
    }
    return {name: str(values[name]) for name in workload.defaulted if values.get(name) is not None}


def _without_cost(estimate: Estimate, reason: str) -> Estimate:
    return replace(estimate, unknown={**estimate.unknown, "cost": reason})
