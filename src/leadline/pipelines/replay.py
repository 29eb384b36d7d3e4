"""Replay a season of a pipeline as discrete events: arrivals, and runs at the tiers that the placement chooses.

No run starts. A run takes its predicted time, its copies, and the usual wait at its tier. Runs of one machine share its
cores. Events from outside arrive as given. A stage fires its metric events after as many processed events as it did in
the recorded season.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from statistics import fmean

from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.pipelines import CountSource, Pipeline, PipelineStage, PipelineTier
from leadline.core.units import HOUR_S
from leadline.pipelines.placement import StagePlanner

Bound = Callable[[Interval], float]
"""Picks the time of every run from the interval of its prediction."""


class StageOutcome(Frozen):
    """A stage over a season; ``None`` is unknown.

    Attributes:
        most_waiting: largest number of events that waited at once, those at a paused source included.
        mean_delay_s: mean time from the arrival of an event to the end of its run.
        longest_delay_s: its maximum.
    """

    runs: int
    events: int
    most_waiting: int
    mean_delay_s: float | None
    longest_delay_s: float | None


class TierOutcome(Frozen):
    """A tier over a season: its runs, their time, and the cost and energy of that; ``None`` is unknown."""

    runs: int
    busy_s: float | None
    cost_usd: float | None
    energy_j: float | None


class SeasonOutcome(Frozen):
    """A season: the time from its first event to its last end, and its stages and tiers by name."""

    elapsed_s: float | None
    stages: dict[str, StageOutcome]
    tiers: dict[str, TierOutcome]


@dataclass(slots=True)
class StageRecord:
    """A stage as a season goes: time from arrival to end of each event, its runs, and the most that waited."""

    delays_s: list[float] = field(default_factory=list)
    runs: int = 0
    most_waiting: int = 0

    def outcome(self, *, known: bool = True) -> StageOutcome:
        """Return the record's numbers; without ``known``, times are unknown."""
        shown = self.delays_s if known else []
        mean, longest = (fmean(shown), max(shown)) if shown else (None, None)
        return StageOutcome(self.runs, len(self.delays_s), self.most_waiting, mean, longest)


def tier_outcome(
    tier: PipelineTier, times_s: Sequence[float | None], power_w: float | None, moved_s: float = 0.0
) -> TierOutcome:
    """Return time, cost and energy of a tier's runs; copies cost the tier's price, but no energy of its device."""
    busy_s = None if None in times_s else sum(time_s for time_s in times_s if time_s is not None)
    cost = None if busy_s is None or tier.usd_per_h is None else tier.usd_per_h * (busy_s + moved_s) / HOUR_S
    energy = None if busy_s is None or power_w is None else power_w * busy_s
    return TierOutcome(len(times_s), busy_s, cost, energy)


class _Run(Frozen):
    """A run that ends at its place in the queue, with the arrivals of its events."""

    arrived_s: tuple[float, ...] = ()
    cores: int = 0


_NO_RUN = _Run()  # of an arrival, and of a time


@dataclass(kw_only=True)
class SeasonReplay:
    """One replay of a season; times are in seconds.

    Attributes:
        arrivals: (time, event) from outside.
        triggers: stage -> (its processed events, metric event that it then fires), in order.
        metric_rates: (stage, metric) -> its sum per processed event, for counts.
        work: returns the work of a run from its stage, its events, and the events that have arrived from outside.
        waits_s: (stage, tier) -> usual time of a run besides its copies and its work.
        cores: of this machine.
        bound: picks the time of every run from its interval.
    """

    planner: StagePlanner
    arrivals: Sequence[tuple[float, str]]
    triggers: Mapping[str, Sequence[tuple[float, str]]]
    metric_rates: Mapping[tuple[str, str], float]
    work: Callable[[PipelineStage, int, int], float]
    waits_s: Mapping[tuple[str, str], float]
    cores: int
    bound: Bound
    unknown: set[tuple[str, str]] = field(default_factory=set, init=False)  # stage and tier without a prediction

    def __post_init__(self) -> None:
        """Set up an empty season."""
        self._pipeline = self.planner.pipeline
        self._fed = {name: self._pipeline.fed_by(name) for name in [*self._pipeline.events, *self._pipeline.stages]}
        self._counts = [(name, source) for name, source in self._pipeline.events.items()
                        if isinstance(source, CountSource)]  # fmt: skip
        self._place = cache(self.planner.place)
        self._order = count()
        self._queue = [(at_s, next(self._order), name, _NO_RUN) for at_s, name in self.arrivals]
        heapq.heapify(self._queue)
        self._waiting: dict[str, deque[float]] = defaultdict(deque)
        self._running: Counter[str] = Counter()
        self._records = {name: StageRecord() for name in self._pipeline.stages}
        self._times_s: dict[str, list[float | None]] = defaultdict(list)
        self._moved_s: dict[str, float] = defaultdict(float)
        self._totals: dict[tuple[str, str | None], float] = defaultdict(float)
        self._timers: dict[str, float] = {}  # stage -> time by which it waits no longer
        self._fired: Counter[str] = Counter()
        self._arrived, self._used_cores, self._at_s = 0, 0, 0.0

    def run(self) -> SeasonOutcome:
        """Replay the whole season."""
        began_s = min((at_s for at_s, _ in self.arrivals), default=0.0)
        ended_s = began_s
        while self._queue:
            self._at_s = self._queue[0][0]
            while self._queue and self._queue[0][0] <= self._at_s:
                _, _, name, run = heapq.heappop(self._queue)
                if run is not _NO_RUN:
                    self._end(name, run)
                    ended_s = self._at_s
                elif name:  # no name: a stage waits no longer for further events
                    self._arrived += 1
                    self._deliver(name)
            self._start_runs()
        affected = _downstream(self._pipeline, {stage for stage, _ in self.unknown})
        stages = {name: record.outcome(known=name not in affected) for name, record in self._records.items()}
        tiers = {
            name: tier_outcome(placed.tier, self._times_s[name], placed.power_w, self._moved_s[name])
            for name, placed in self.planner.tiers.items()
        }
        return SeasonOutcome(None if self.unknown else ended_s - began_s, stages, tiers)

    def _deliver(self, name: str) -> None:
        """Give an event to the stages that it starts, and count it."""
        for stage in self._fed[name]:
            self._waiting[stage.name].append(self._at_s)
        self._add(name, None, 1.0)

    def _add(self, of: str, metric: str | None, amount: float) -> None:
        before = self._totals[of, metric]
        self._totals[of, metric] = after = before + amount
        for name, source in self._counts:
            if (source.of, source.metric) == (of, metric):
                for _ in range(int(after // source.reaches - before // source.reaches)):
                    self._deliver(name)

    def _start_runs(self) -> None:
        for stage in self._pipeline.stages.values():
            waiting = self._waiting[stage.name]
            while waiting and self._running[stage.name] < stage.running and self._start_run(stage, waiting):
                pass
            record = self._records[stage.name]
            record.most_waiting = max(record.most_waiting, len(waiting))

    def _start_run(self, stage: PipelineStage, waiting: deque[float]) -> bool:
        """Start a run with the first events; False if it waits for events or cores."""
        full_s = waiting[0] + stage.wait_s
        if len(waiting) < stage.most and self._at_s < full_s:
            if self._timers.get(stage.name) != full_s:
                self._timers[stage.name] = full_s
                heapq.heappush(self._queue, (full_s, next(self._order), "", _NO_RUN))
            return False
        events = min(len(waiting), stage.most)
        placement = self._place(stage, self.work(stage, events, self._arrived))
        placed = self.planner.tiers[placement.tier]
        cores = (placed.tier.cores or 0) if placed.here else 0
        if cores and self._used_cores + cores > max(self.cores, cores):
            return False
        forecast = placement.forecast
        elapsed_s = None if forecast.elapsed_s is None else self.bound(forecast.elapsed_s)
        moved_s = None if forecast.transfer_s is None else self.bound(forecast.transfer_s)
        if elapsed_s is None or moved_s is None:
            self.unknown.add((stage.name, placement.tier))
        self._times_s[placement.tier].append(None if moved_s is None else elapsed_s)
        self._moved_s[placement.tier] += moved_s or 0.0
        wait_s = self.waits_s.get((stage.name, placement.tier), 0.0)
        run = _Run(tuple(waiting.popleft() for _ in range(events)), cores)
        self._running[stage.name] += 1
        self._used_cores += cores
        end_s = self._at_s + (elapsed_s or 0.0) + (moved_s or 0.0) + wait_s
        heapq.heappush(self._queue, (end_s, next(self._order), stage.name, run))
        return True

    def _end(self, name: str, run: _Run) -> None:
        record = self._records[name]
        record.runs += 1
        record.delays_s += [self._at_s - arrived_s for arrived_s in run.arrived_s]
        self._running[name] -= 1
        self._used_cores -= run.cores
        self._deliver(name)
        for stage, metric in self.metric_rates:
            if stage == name:
                self._add(stage, metric, len(run.arrived_s) * self.metric_rates[stage, metric])
        fired = self.triggers.get(name, ())
        while self._fired[name] < len(fired) and fired[self._fired[name]][0] <= len(record.delays_s) + 0.5:
            self._fired[name] += 1
            self._deliver(fired[self._fired[name] - 1][1])


def _downstream(pipeline: Pipeline, names: set[str]) -> set[str]:
    """Return stages and events together with all that follow from them."""
    everything = [*pipeline.events, *pipeline.stages]
    while more := {name for name in everything if name not in names and names & {*pipeline.upstream(name)}}:
        names = names | more
    return names
