"""Where stages run: the tiers of a pipeline with their targets, and the planner that chooses among them."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import estimate
from leadline.app.jobs.job_request import JobRequest, check_program, read_command
from leadline.app.jobs.journal import open_journal
from leadline.app.jobs.schedulers import check_at_hand, resolve_job_targets, transport_to
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
MOST_TIMES_LARGER = 100.0
"""Size of a copy ÷ that of the smallest one that its prediction rests on, if there are such."""


def place_tiers(pipeline: Pipeline, catalog: Catalog, *, at_hand: bool = False) -> dict[str, PlacedTier]:
    """Return the tiers that stages name, with their targets; with ``at_hand``, refuse those out of reach.

    Raises:
        UnknownName: a tier names an unknown system, partition or device.
        InvalidInput: this machine has less than a tier asks for, a tier behind SSH needs data in a folder of
            their own, or another one has a folder.
        SchedulerUnreachable: the commands of a tier's scheduler are not on this machine.
    """
    names = dict.fromkeys(name for stage in pipeline.stages.values() for name in stage.tiers)
    placed = {name: _place(pipeline.tiers[name], catalog, at_hand=at_hand) for name in names}
    for name, tier in placed.items():
        if tier.transport is not None and Path(pipeline.home).resolve().is_relative_to(pipeline.folder):
            raise InvalidInput(
                f"tier {name!r} is reached over SSH, which needs programs and data in separate folders: name a folder "
                'for the data, as in folder = "data" under [pipeline]'
            )
        if tier.transport is None and tier.tier.folder is not None:
            raise InvalidInput(f"tier {name!r} sees the files of this machine: remove its folder")
    return placed


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
    if target.remote.host is None:
        return PlacedTier(tier, target.place, here, power_w)
    transfer_s = partial(_transfer_s, target.place.system)
    return PlacedTier(tier, target.place, here, power_w, transfer_s, transport_to(target.remote))


def _transfer_s(system: str, size_bytes: float, competing: int = 0) -> Interval | None:
    """Return the time to copy bytes to a system that does not see this machine's files, while others run."""
    if not size_bytes:
        return NOTHING_S
    with open_journal() as journal:
        copies = staged_copies(journal, LOCAL, system)
    # Without any copy or probe, the estimator would assume a bandwidth. A plan must not rest on that.
    # A much smaller copy took the time to start and to compare files, which does not grow with the size.
    alike = [copy for copy in copies if copy.moved_bytes >= size_bytes / MOST_TIMES_LARGER] or copies
    path = PathState((math.inf,) * competing)
    return predict_transfer(size_bytes, alike, path).elapsed_s if alike else None


def resolve_commands(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with the commands of its workload files, each checked.

    Raises:
        InvalidInput: a workload has no command, or a command cannot be run.
    """
    stages = {}
    for name, stage in pipeline.stages.items():
        try:
            subject = stage.command_in(pipeline.home) or (str(stage.workload),)
            command = read_command(subject)
            check_program(command, JobRequest(subject, workdir=pipeline.folder), here=True)
        except InvalidInput as error:
            raise InvalidInput(f"stage {name!r}: {error}") from error
        stages[name] = stage if command.words == subject else replace(stage, command=command.words)
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
