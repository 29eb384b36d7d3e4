"""What the pages show of pipelines: the list, and the season of one."""

from collections import defaultdict
from pathlib import Path

from leadline.app.composition import user_catalog
from leadline.app.pipelines.find import find_pipeline, find_pipelines
from leadline.app.pipelines.review import count_waiting, list_figures
from leadline.app.pipelines.runs import PipelineStatus, pipeline_status
from leadline.app.pipelines.season import SeasonRecord, measured_outcome
from leadline.core.errors import LeadlineError
from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.pipelines.journal import JOURNAL, RUNS_READ, Batch, PipelineJournal
from leadline.pipelines.placement import recommended_memory
from leadline.pipelines.replay import SeasonOutcome
from leadline.pipelines.spec import read_pipeline

MOST_RUNS = 1000
"""Latest runs of a season that are reported, and latest values of each metric."""


class PipelineEntry(Frozen):
    """A pipeline of the list; ``status`` is None before its first run, and if the file has an ``error``."""

    name: str
    file: str
    status: PipelineStatus | None
    error: str


class PipelineList(Frozen):
    """The pipelines by name."""

    pipelines: tuple[PipelineEntry, ...]


class PipelineRun(Frozen):
    """A run of a stage, predicted and measured; ``job`` is its key.

    Attributes:
        recommended_bytes: memory that its predecessors recommend to request.
        why: reason for its tier, with the forecast of each tier in ``evidence``.
        reason: of a failure.
    """

    stage: str
    number: int
    tier: str
    state: JobState
    events: int
    started_at: str
    ended_at: str | None
    predicted_s: Interval | None
    elapsed_s: float | None
    recommended_bytes: float | None
    memory_bytes: float | None
    why: str
    evidence: tuple[str, ...]
    reason: str
    job: str


class MetricSeries(Frozen):
    """The values of a metric of a stage, with the ends of the runs that reported them."""

    stage: str
    name: str
    at: tuple[str, ...]
    values: tuple[float, ...]


class PipelineSeason(Frozen):
    """The season of a pipeline so far: status, measured outcome, runs (the newest first), and metrics.

    ``reviews`` has the number of files that wait for review, by stage; ``figures`` names the images in its folder.
    """

    status: PipelineStatus
    outcome: SeasonOutcome
    runs: tuple[PipelineRun, ...]
    metrics: tuple[MetricSeries, ...]
    reviews: dict[str, int]
    figures: tuple[str, ...]


def list_pipelines(folder: Path) -> PipelineList:
    """Return the pipelines in a folder and those that ran."""
    return PipelineList(tuple(_entry(name, file) for name, file in find_pipelines(folder).items()))


def _entry(name: str, file: Path) -> PipelineEntry:
    try:
        pipeline = read_pipeline(file)
        ran = Path(pipeline.folder, JOURNAL).exists()
        return PipelineEntry(name, str(file), pipeline_status(file) if ran else None, "")
    except LeadlineError as error:
        return PipelineEntry(name, str(file), None, str(error))


def pipeline_season(name: str, folder: Path) -> PipelineSeason:
    """Return the season of a pipeline so far.

    Raises:
        UnknownName: there is no pipeline of this name.
        InvalidInput: its file is not valid, or it was never run.
    """
    file = find_pipeline(name, folder)
    pipeline, status, catalog = read_pipeline(file), pipeline_status(file), user_catalog()
    devices = {name: tier.device for name, tier in pipeline.tiers.items()}
    power_w = {name: catalog.device(device).tdp_w if device else None for name, device in devices.items()}
    with PipelineJournal(Path(pipeline.folder)) as journal:
        season = SeasonRecord(pipeline, journal)
        batches = [*season.batches, *journal.open_batches()]
        batches = sorted(batches, key=lambda batch: batch.created_at, reverse=True)[:MOST_RUNS]
        recommended = _recommended(season)
        runs = tuple(_run(batch, recommended.get(batch.label), journal.job_key(batch)) for batch in batches)
    return PipelineSeason(
        status, measured_outcome(pipeline, season, power_w), runs, _metrics(season), count_waiting(pipeline),
        list_figures(pipeline),
    )  # fmt: skip


def _recommended(season: SeasonRecord) -> dict[str, float]:
    """Return run → the memory that the completed runs before it recommended."""
    recommended, before = {}, defaultdict[str, list[Batch]](list)
    for batch in season.batches:
        past = before[batch.stage]
        if (memory := recommended_memory(past[-RUNS_READ:])) is not None:
            recommended[batch.label] = float(memory)
        if batch.state is JobState.COMPLETED:
            past.append(batch)
    return recommended


def _run(batch: Batch, recommended_bytes: float | None, job: str) -> PipelineRun:
    return PipelineRun(
        batch.stage, batch.number, batch.tier, batch.state, batch.events, batch.created_at, batch.ended_at,
        batch.predicted_s, batch.elapsed_s, recommended_bytes, batch.memory_bytes, batch.why, batch.evidence,
        batch.reason, job,
    )  # fmt: skip


def _metrics(season: SeasonRecord) -> tuple[MetricSeries, ...]:
    ends = {(batch.stage, batch.number): batch.ended_at for batch in season.batches}
    series: dict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)
    for stage, name, batch, value in season.metrics:
        if (at := ends.get((stage, batch))) is not None:
            series[stage, name].append((at, value))
    return tuple(
        MetricSeries(stage, name, tuple(at for at, _ in rows[-MOST_RUNS:]), tuple(v for _, v in rows[-MOST_RUNS:]))
        for (stage, name), rows in series.items()
    )
