"""The verb ``pipeline simulate``: a season with other numbers of events, tiers or links, without running anything."""

import math
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import fmean, linear_regression, median

from msgspec import field

from leadline.app.composition import user_catalog
from leadline.app.pipelines.places import place_tiers, workload_estimates
from leadline.app.pipelines.season import SeasonRecord, measured_outcome, read_season
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.pipelines import CountSource, MetricSource, Pipeline, PipelineStage
from leadline.core.units import DAY_S, parse_bytes, parse_duration_s
from leadline.execution.schedulers.local.queue import machine_slots
from leadline.pipelines.journal import Batch
from leadline.pipelines.placement import PlacedTier, StagePlanner
from leadline.pipelines.replay import Bound, SeasonOutcome, SeasonReplay
from leadline.pipelines.spec import read_pipeline

MOST_ARRIVALS = 2_000_000
BOUNDS: dict[str, Bound] = {"likely": lambda s: s.point, "fast": lambda s: s.low, "slow": lambda s: s.high}


class SeasonChanges(Frozen):
    """The changes of a what-if.

    Attributes:
        events: event -> ``10x`` times as many as recorded, or a rate such as ``100/min``.
        without: tiers that are gone.
        bandwidth: tier -> bytes per second of every copy to it, such as ``1MB/s``.
        like: tier -> the tier whose measured times hold for it, too.
        length: of a season of stated rates.
    """

    events: dict[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    bandwidth: dict[str, str] = field(default_factory=dict)
    like: dict[str, str] = field(default_factory=dict)
    length: str | None = None


class SeasonRange(Frozen):
    """A replay in which every run takes its most likely time, and two in which it takes its lower or upper bound.

    The errors of the times have a common cause, so they do not cancel over a season.
    """

    likely: SeasonOutcome
    fast: SeasonOutcome
    slow: SeasonOutcome


class PipelineSimulation(Frozen):
    """A what-if: the season as measured and as replayed without changes (``None`` without a journal), and with them.

    ``notes`` has what is unknown, with the fix.
    """

    name: str
    changes: SeasonChanges
    measured: SeasonOutcome | None
    replayed: SeasonRange | None
    changed: SeasonRange
    notes: tuple[str, ...]
    simulated_in_s: float


def simulate_pipeline(file: Path, changes: SeasonChanges) -> PipelineSimulation:
    """Replay the season in a pipeline's journal with changes; without a journal, a season of stated rates.

    Raises:
        InvalidInput: the file is not a valid pipeline, or a change cannot be made.
        UnknownName: a change names no event or tier of the pipeline.
    """
    began_s = time.monotonic()
    pipeline = read_pipeline(file)
    _check_names(pipeline, changes)
    tiers = place_tiers(pipeline, user_catalog())
    season = read_season(pipeline)
    if not (season.arrivals or changes.events):
        raise InvalidInput(
            f"pipeline {pipeline.name!r} has no events yet: state a rate such as --events "
            f"{next(iter(pipeline.events))}=100/min, or run it first"
        )
    simulator = _Simulator(pipeline, tiers, season)
    measured = measured_outcome(pipeline, season, {name: tier.power_w for name, tier in tiers.items()})
    notes: dict[str, None] = {}
    as_it_was = simulator.replay(SeasonChanges(), notes) if season.arrivals else None
    changed = simulator.replay(changes, notes)
    elapsed_s = time.monotonic() - began_s
    return PipelineSimulation(
        pipeline.name, changes, measured if season.arrivals else None, as_it_was, changed, tuple(notes), elapsed_s
    )


class _Simulator(Frozen):
    """Replays of one season of a pipeline."""

    pipeline: Pipeline
    tiers: dict[str, PlacedTier]
    season: SeasonRecord

    def replay(self, changes: SeasonChanges, notes: dict[str, None]) -> SeasonRange:
        """Return the season with changes; add a note for each run whose time is unknown."""
        pipeline = _without(self.pipeline, changes.without)
        arrivals, ratios = self._arrivals(changes)
        planner = StagePlanner(
            pipeline=pipeline, tiers=self._linked(changes), past_runs=partial(self._past_runs, like=changes.like),
            estimate_s=workload_estimates(),
        )  # fmt: skip
        work = {name: self._work(planner, stage) for name, stage in pipeline.stages.items()}
        waits_s = self._waits_s(changes.like)
        outcomes = {}
        for name, bound in BOUNDS.items():
            season = SeasonReplay(
                planner=planner, arrivals=arrivals, triggers=self._triggers(ratios), metric_rates=self._metric_rates(),
                work=lambda stage, events, arrived: _work_of(work[stage.name], stage, events, arrived),
                waits_s=waits_s, cores=len(machine_slots().cores), bound=bound,
            )  # fmt: skip
            outcomes[name] = season.run()
            notes |= dict.fromkeys(_why_unknown(stage, tier) for stage, tier in sorted(season.unknown))
        for name, source in pipeline.events.items():
            if isinstance(source, MetricSource) and name not in self.season.counts and name not in changes.events:
                notes[f"{name} was never recorded, so it starts nothing: state a rate, as in --events {name}=2/d"] = (
                    None
                )
        return SeasonRange(**outcomes)

    def _arrivals(self, changes: SeasonChanges) -> tuple[list[tuple[float, str]], dict[str, float]]:
        """Return the events from outside, and for each how many times as many as recorded they are."""
        season = self.season
        by_name: dict[str, list[float]] = defaultdict(list)
        for at_s, name in season.arrivals:
            by_name[name].append(at_s)
        begin_s = season.arrivals[0][0] if season.arrivals else 0.0
        length_s = season.arrivals[-1][0] - begin_s if season.arrivals else DAY_S
        length_s = length_s if changes.length is None else parse_duration_s(changes.length)
        ratios = {}
        for name, text in changes.events.items():
            recorded = by_name.get(name, [])
            by_name[name] = _changed(name, text, recorded, begin_s, length_s)
            ratios[name] = len(by_name[name]) / len(recorded) if recorded else 1.0
        arrivals = sorted((at_s, name) for name, times in by_name.items() for at_s in times)
        return arrivals, ratios

    def _triggers(self, ratios: Mapping[str, float]) -> dict[str, list[tuple[float, str]]]:
        """Return the metric events of each stage by its processed events, stretched as the events that start it are."""
        triggers: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for stage, after, name in self.season.fired:
            counts = [(self.season.counts.get(source, 0), ratios.get(source, 1.0))
                      for source in self.pipeline.stages[stage].on]  # fmt: skip
            total = sum(number for number, _ in counts)
            stretch = sum(number * ratio for number, ratio in counts) / total if total else 1.0
            if name not in ratios:  # a stated rate takes the place of the recorded ones
                triggers[stage].append((after * stretch, name))
        return {stage: sorted(rows) for stage, rows in triggers.items()}

    def _metric_rates(self) -> dict[tuple[str, str], float]:
        """Return the sum of each counted metric per processed event."""
        rates = {}
        for source in self.pipeline.events.values():
            if isinstance(source, CountSource) and source.metric:
                events = sum(batch.events for batch in self.season.completed(source.of))
                total = sum(value for stage, name, _, value in self.season.metrics
                            if (stage, name) == (source.of, source.metric))  # fmt: skip
                rates[source.of, source.metric] = total / events if events else 0.0
        return rates

    def _past_runs(self, stage: str, like: Mapping[str, str]) -> Sequence[Batch]:
        runs = self.season.past_runs.get(stage, ())
        borrowed = [replace(run, tier=tier) for tier, other in like.items() for run in runs if run.tier == other]
        return [*runs, *borrowed]

    def _waits_s(self, like: Mapping[str, str]) -> dict[tuple[str, str], float]:
        """Return the median time of runs beyond their work: in queues, and until their end was noticed."""
        rows: dict[tuple[str, str], list[float]] = defaultdict(list)
        for name in self.pipeline.stages:
            for batch in self._past_runs(name, like):
                if (times := self.season.times_s(batch)) and batch.elapsed_s is not None:
                    rows[name, batch.tier].append(max(times[1] - times[0] - batch.elapsed_s, 0.0))
        return {key: median(waits) for key, waits in rows.items()}

    def _work(self, planner: StagePlanner, stage: PipelineStage) -> tuple[float, float]:
        """Return work of a run before any event, and its growth per event from outside (least squares)."""
        runs = self.season.completed(stage.name) if stage.reads else []
        if not runs:
            return planner.input_bytes(stage), 0.0
        numbers = self.season.arrival_numbers
        x = [float(bisect_right(numbers, batch.upto)) for batch in runs]
        y = [batch.work for batch in runs]
        slope = max(linear_regression(x, y).slope, 0.0) if len({*x}) > 1 else 0.0
        return max(fmean(y) - slope * fmean(x), 0.0), slope

    def _linked(self, changes: SeasonChanges) -> dict[str, PlacedTier]:
        """Return the tiers, with the stated bandwidths."""
        tiers = dict(self.tiers)
        for name, text in changes.bandwidth.items():
            size, _, unit = text.partition("/")
            if unit.strip() != "s":
                raise InvalidInput(f"--bandwidth {name}={text} is no bandwidth: write for example {name}=1MB/s")
            rate = parse_bytes(size)
            if rate <= 0:
                raise InvalidInput(f"--bandwidth {name}={text} is 0: to leave a tier out, write --without {name}")
            tiers[name] = replace(tiers[name], transfer_s=partial(_at_rate, rate))
        return tiers


def _why_unknown(stage: str, tier: str) -> str:
    return (
        f"the time of {stage} at {tier} is unknown, and so is all that follows from it: run it there once, give the "
        f"stage a workload, or take the measured times of another tier, as in --like {tier}=OTHER"
    )


def _at_rate(bytes_per_s: float, size: float, _competing: int = 0) -> Interval:
    return Interval(size / bytes_per_s, size / bytes_per_s, size / bytes_per_s)


def _work_of(model: tuple[float, float], stage: PipelineStage, events: int, arrived: int) -> float:
    return model[0] + model[1] * arrived if stage.reads else float(events)


def _without(pipeline: Pipeline, tiers: Sequence[str]) -> Pipeline:
    stages = {}
    for name, stage in pipeline.stages.items():
        left = tuple(tier for tier in stage.tiers if tier not in tiers)
        if not left:
            raise InvalidInput(
                f"stage {name!r} may run at {', '.join(stage.tiers)} only: name another tier in its tier"
            )
        stages[name] = replace(stage, tiers=left)
    return replace(pipeline, stages=stages)


def _changed(name: str, text: str, recorded: Sequence[float], begin_s: float, length_s: float) -> list[float]:
    """Return the times of an event: a multiple of the recorded ones, or evenly at a rate."""
    amount, slash, unit = text.partition("/")
    try:
        value = float(amount.strip().removesuffix("x"))
        unit_s = parse_duration_s(f"1{unit.strip()}") if slash else 0.0
    except (ValueError, InvalidInput):
        value, unit_s = math.nan, 0.0
    if not 0 <= value < math.inf or not (slash or amount.strip().endswith("x")):
        raise InvalidInput(f"--events {name}={text} is no number of events: write for example {name}=10x, or 100/min")
    number = value * length_s / unit_s if slash else value * len(recorded)
    if number > MOST_ARRIVALS:
        raise InvalidInput(
            f"--events {name}={text} makes {number:,.0f} events: at most {MOST_ARRIVALS:,} are simulated"
        )
    if slash:
        return [begin_s + index * unit_s / value for index in range(int(number))] if value else []
    if not recorded:
        raise InvalidInput(f"{name} has no recorded events from outside: state a rate, as in --events {name}=100/min")
    totals = [int(total + 1e-9) for total in accumulate([value] * len(recorded))]
    copies = (after - before for before, after in zip([0, *totals], totals, strict=False))
    return [at_s for at_s, count in zip(recorded, copies, strict=True) for _ in range(count)]


def _check_names(pipeline: Pipeline, changes: SeasonChanges) -> None:
    tiers = {name for stage in pipeline.stages.values() for name in stage.tiers}
    for name in changes.events:
        if name not in pipeline.events:
            raise UnknownName("event of --events:", name, pipeline.events)
    for option, names in (
        ("--without", changes.without), ("--bandwidth", [*changes.bandwidth]),
        ("--like", [*changes.like, *changes.like.values()]),
    ):  # fmt: skip
        for name in names:
            if name not in tiers:
                raise UnknownName(f"tier of {option}:", name, tiers)
