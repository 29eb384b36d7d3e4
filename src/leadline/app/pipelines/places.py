"""Where stages run: the tiers of a pipeline with their targets, and the planner that chooses among them."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import estimate
from leadline.app.jobs.job_request import JobRequest, check_program, read_command
from leadline.app.jobs.journal import open_journal
from leadline.app.jobs.schedulers import check_at_hand, resolve_job_targets
from leadline.app.jobs.staged_copies import staged_copies
from leadline.app.machines.targets import LOCAL
from leadline.app.workloads.read import read_workload
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.estimate import Interval
from leadline.core.jobs import ResourceSpec
from leadline.core.pipelines import HERE, Pipeline, PipelineStage, PipelineTier
from leadline.core.ports import Catalog
from leadline.estimators.adaptive_transfer import PathState, predict_transfer
from leadline.execution.schedulers.local.queue import machine_slots
from leadline.pipelines.placement import PlacedTier

NOTHING_S = Interval(0.0, 0.0, 0.0)


def place_tiers(pipeline: Pipeline, catalog: Catalog, *, at_hand: bool = False) -> dict[str, PlacedTier]:
    """Return the tiers that stages name, with their targets; with ``at_hand``, refuse those out of reach.

    Raises:
        UnknownName: a tier names an unknown system, partition or device.
        InvalidInput: this machine has less than a tier asks for, or a tier has no files of this machine.
        SchedulerUnreachable: the commands of a tier's scheduler are not on this machine.
    """
    names = dict.fromkeys(name for stage in pipeline.stages.values() for name in stage.tiers)
    return {name: _place(pipeline.tiers[name], catalog, at_hand=at_hand) for name in names}


def _place(tier: PipelineTier, catalog: Catalog, *, at_hand: bool) -> PlacedTier:
    target = resolve_job_targets([LOCAL if tier.on == HERE else tier.on], catalog)[0]
    power_w = None if tier.device is None else catalog.device(tier.device).tdp_w
    here = target.kind == LOCAL
    if here:
        request = ResourceSpec(
            cores_per_task=tier.cores, gpus_per_node=tier.gpus, memory_bytes_per_node=tier.memory_bytes
        )
        if lacking := machine_slots().rejection_reason(request):
            raise InvalidInput(f"tier {tier.name!r} does not fit this machine: {lacking}")
    elif at_hand:
        check_at_hand(target)
        if not target.at_hand:
            raise InvalidInput(
                f"tier {tier.name!r} is {tier.on}, which is reached over SSH and has no files of this machine: run the "
                "pipeline there, or name a cluster of this machine"
            )
    transfer_s = partial(_transfer_s, target.place.system) if target.remote.host else lambda _: NOTHING_S
    return PlacedTier(tier, target.place, here, power_w, transfer_s)


def _transfer_s(system: str, size_bytes: float) -> Interval | None:
    """Return the time to copy bytes from this machine to a system that does not see its files."""
    if not size_bytes:
        return NOTHING_S
    with open_journal() as journal:
        copies = staged_copies(journal, LOCAL, system)
    # Without any copy or probe, the estimator would assume a bandwidth. A plan must not rest on that.
    return predict_transfer(size_bytes, copies, PathState()).elapsed_s if copies else None


def resolve_commands(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with the commands of its workload files, each checked.

    Raises:
        InvalidInput: a workload has no command, or a command cannot be run.
    """
    stages = {}
    for name, stage in pipeline.stages.items():
        try:
            subject = stage.command or (str(stage.workload),)
            command = read_command(subject)
            check_program(command, JobRequest(subject, workdir=pipeline.folder), here=True)
        except InvalidInput as error:
            raise InvalidInput(f"stage {name!r}: {error}") from error
        stages[name] = replace(stage, command=command.words)
    return replace(pipeline, stages=stages)


def workload_estimates() -> Callable[[PipelineStage, PlacedTier], Interval | None]:
    """Return a function that estimates the workload of a stage at a tier, once for each."""

    @cache
    def of_file(workload: str, on: str) -> Interval | None:
        try:
            return estimate(read_workload([workload]), toolbox(), on=[on]).estimates[0].elapsed_s
        except LeadlineError:  # the plan shows it as unknown
            return None

    def of_stage(stage: PipelineStage, placed: PlacedTier) -> Interval | None:
        on = placed.tier.device or str(placed.place)
        return None if stage.workload is None else of_file(stage.workload, on)

    return of_stage
