"""The verb ``pipeline plan``: the graph, and where each stage would go."""

from contextlib import nullcontext
from pathlib import Path

from leadline.app.composition import user_catalog
from leadline.app.pipelines.places import place_tiers, resolve_commands, workload_estimates
from leadline.core.frozen import Frozen
from leadline.pipelines.journal import JOURNAL, PipelineJournal
from leadline.pipelines.placement import StagePlanner, TierForecast, folder_bytes, no_runs
from leadline.pipelines.spec import read_pipeline


class PlannedEvent(Frozen):
    """An event: where it comes from, and the stages that it starts."""

    name: str
    source: str
    starts: tuple[str, ...]


class PlannedStage(Frozen):
    """A stage: what starts it, the chosen tier with the reason and its forecast, and the forecasts of all tiers.

    Attributes:
        events: events of the next run.
        reads_bytes: size of the folders that it reads.
    """

    name: str
    on: tuple[str, ...]
    tier: str
    reason: str
    forecast: TierForecast
    forecasts: tuple[TierForecast, ...]
    events: int
    reads_bytes: float


class PipelinePlan(Frozen):
    """Graph and placements of a pipeline; stages in an order in which causes come first."""

    name: str
    folder: str
    events: tuple[PlannedEvent, ...]
    stages: tuple[PlannedStage, ...]
    stored_bytes: float  # of all files in the folder


def plan_pipeline(file: Path) -> PipelinePlan:
    """Return the plan of a pipeline; nothing is started or written.

    Raises:
        InvalidInput: the file is not a valid pipeline, or names what does not exist.
    """
    pipeline = resolve_commands(read_pipeline(file))
    folder = Path(pipeline.folder)
    tiers = place_tiers(pipeline, user_catalog())
    with PipelineJournal(folder) if (folder / JOURNAL).exists() else nullcontext() as journal:
        past_runs = journal.past_runs if journal else no_runs
        planner = StagePlanner(pipeline=pipeline, tiers=tiers, past_runs=past_runs, estimate_s=workload_estimates())
        stages = []
        for stage in pipeline.stages.values():
            past = past_runs(stage.name)
            events = past[0].events if past else stage.most
            waiting = journal.next_events(stage.name, stage.on, stage.most) if journal else ()
            last = journal.events_of(past[0]) if journal and past else ()
            placement = planner.place(stage, planner.work(stage, events), planner.event_bytes(stage, waiting or last))
            chosen = (placement.tier, placement.reason, placement.forecast, placement.forecasts)
            stages.append(PlannedStage(stage.name, stage.on, *chosen, events, planner.input_bytes(stage)))
    events_planned = tuple(
        PlannedEvent(name, str(source), tuple(stage.name for stage in pipeline.fed_by(name)))
        for name, source in pipeline.events.items()
    )
    return PipelinePlan(pipeline.name, pipeline.folder, events_planned, tuple(stages), folder_bytes(folder))
