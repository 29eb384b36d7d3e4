"""A pipeline's season so far, from its journal: its events, its runs, and what they took."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from math import inf
from pathlib import Path

from leadline.core.jobs import JobState
from leadline.core.pipelines import CountSource, MetricSource, Pipeline
from leadline.execution.clock import epoch_s
from leadline.pipelines.journal import JOURNAL, Batch, PipelineJournal
from leadline.pipelines.replay import SeasonOutcome, StageRecord, TierOutcome, tier_outcome


class SeasonRecord:
    """What a journal has of a season; times are in seconds since the epoch.

    Attributes:
        events: number, time and source of all events, in order.
        batches: all that have ended.
        past_runs: stage -> the completed runs that a prediction rests on, the newest first.
        metrics: stage, name, batch and value of all metrics.
        fired: (stage, events that it had processed, metric event) of each metric event.
    """

    def __init__(self, pipeline: Pipeline, journal: PipelineJournal | None) -> None:
        stages, sources = pipeline.stages, pipeline.events
        rows = journal.event_times() if journal else []
        self.events = [(number, epoch_s(at), name) for number, name, at in rows]
        self.batches = [batch for batch in (journal.ended_batches() if journal else ()) if batch.stage in stages]
        self.past_runs = {name: journal.past_runs(name) if journal else () for name in stages}
        self.metrics = journal.metric_values() if journal else []
        outside = {name for name, source in sources.items() if not isinstance(source, MetricSource | CountSource)}
        self.arrivals = [(at_s, name) for _, at_s, name in self.events if name in outside]
        self.arrival_numbers = [number for number, _, name in self.events if name in outside]
        self.fired: list[tuple[str, int, str]] = []
        for name, source in sources.items():
            if journal and isinstance(source, MetricSource):
                for event in journal.events_from(name):
                    upto = int(event.payload.get("batch") or 0)
                    done = sum(batch.events for batch in self.completed(source.stage) if batch.number <= upto)
                    self.fired.append((source.stage, done, name))

    @cached_property
    def counts(self) -> dict[str, int]:
        """Source -> number of its events."""
        counts: dict[str, int] = defaultdict(int)
        for _, _, name in self.events:
            counts[name] += 1
        return dict(counts)

    def completed(self, stage: str) -> list[Batch]:
        """Return the completed batches of a stage."""
        return [batch for batch in self.batches if batch.stage == stage and batch.state is JobState.COMPLETED]

    @staticmethod
    def times_s(batch: Batch) -> tuple[float, float] | None:
        """Return begin and end of a batch; ``None`` before its end."""
        return None if batch.ended_at is None else (epoch_s(batch.created_at), epoch_s(batch.ended_at))


def read_season(pipeline: Pipeline) -> SeasonRecord:
    """Return a pipeline's season so far; an empty one before its first run."""
    folder = Path(pipeline.folder)
    if not (folder / JOURNAL).exists():
        return SeasonRecord(pipeline, None)
    with PipelineJournal(folder) as journal:
        return SeasonRecord(pipeline, journal)


def measured_outcome(pipeline: Pipeline, season: SeasonRecord, power_w: Mapping[str, float | None]) -> SeasonOutcome:
    """Return what was measured in a season; ``power_w`` is of each tier that stages name."""
    times_s: dict[str, list[float | None]] = {name: [] for name in power_w}
    records = {name: StageRecord() for name in pipeline.stages}
    arrived_s = {name: [(number, at_s) for number, at_s, source in season.events if source in stage.on]
                 for name, stage in pipeline.stages.items()}  # fmt: skip
    steps: dict[str, list[tuple[float, int]]] = {
        name: [(at_s, 1) for _, at_s in rows] for name, rows in arrived_s.items()
    }
    last_s = None
    for batch in season.batches:
        times_s.setdefault(batch.tier, []).append(batch.elapsed_s)
        begin_s, end_s = season.times_s(batch) or (0.0, 0.0)
        record, rows = records[batch.stage], arrived_s[batch.stage]
        own = rows[bisect_right(rows, (batch.after, inf)) : bisect_right(rows, (batch.upto, inf))]
        record.runs += 1
        record.delays_s += [end_s - at_s for _, at_s in own]
        steps[batch.stage].append((begin_s, -batch.events))
        last_s = max(end_s, last_s or end_s)
    for name, changes in steps.items():
        waiting = 0
        for _, change in sorted(changes):
            waiting += change
            records[name].most_waiting = max(records[name].most_waiting, waiting)
    elapsed_s = last_s - season.arrivals[0][0] if last_s and season.arrivals else None
    stages = {name: record.outcome() for name, record in records.items()}
    tiers: dict[str, TierOutcome] = {
        name: tier_outcome(pipeline.tiers[name], times, power_w.get(name))
        for name, times in times_s.items() if name in pipeline.tiers
    }  # fmt: skip
    return SeasonOutcome(elapsed_s, stages, tiers)
