"""Where a run of a stage goes: the forecast of each of its tiers, and the choice between them."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.pipelines import Pipeline, PipelineStage, PipelineTier
from leadline.core.plane import Place
from leadline.core.units import HOUR_S, format_duration, pluralize
from leadline.estimators.student_t import student_90
from leadline.execution.transport.port import Transport
from leadline.pipelines.journal import Batch, PipelineEvent

SLOPE, SLOPE_SD = 0.5, 0.35
"""Prior of the growth of the log time with the log work: between 0, only start-up, and 1, only work."""
NOISE, NOISE_RUNS = 0.15, 4
"""Prior of the relative scatter of repeated runs, and the number of runs that it counts as."""
HALF_LIFE = 10
"""A run counts half as much as one that came so many runs later, since machines and data drift."""
MEMORY_MARGIN = 1.3
"""Requested memory as a multiple of the largest measured peak."""


class TierForecast(Frozen):
    """What a run of a stage would take at one tier; ``None`` is unknown.

    Attributes:
        elapsed_s: time of the run.
        basis: what that rests on.
        transfer_s: time to copy what it reads to the tier; 0 if the tier has it.
        cost_usd: cost at the tier's price; ``None`` without a price.
        energy_j: energy at the rated power of the tier's device.
    """

    tier: str
    elapsed_s: Interval | None
    basis: str
    transfer_s: Interval | None
    cost_usd: float | None
    energy_j: float | None

    @property
    def total_s(self) -> Interval | None:
        """Time from the start of the copies to the end of the run."""
        if self.elapsed_s is None or self.transfer_s is None:
            return None
        return self.elapsed_s.plus(self.transfer_s)

    def __str__(self) -> str:
        if self.elapsed_s is None:
            return f"{self.tier}: its time is unknown"
        bounds = f"{format_duration(self.elapsed_s.low)} – {format_duration(self.elapsed_s.high)}"
        copies = "" if self.transfer_s and not self.transfer_s.high else ", copies of unknown time"
        if self.transfer_s and self.transfer_s.high:
            copies = f", copies {format_duration(self.transfer_s.point)}"
        cost = "" if self.cost_usd is None else f", ${self.cost_usd:.4g}"
        return f"{self.tier}: {format_duration(self.elapsed_s.point)} ({bounds}) from {self.basis}{copies}{cost}"


class Placement(Frozen):
    """The chosen tier, the reason in a sentence, and the forecasts of all tiers in the order of preference."""

    tier: str
    reason: str
    forecasts: tuple[TierForecast, ...]

    @property
    def forecast(self) -> TierForecast:
        """Forecast of the chosen tier."""
        return next(forecast for forecast in self.forecasts if forecast.tier == self.tier)


class PlacedTier(Frozen):
    """A tier with its place.

    Attributes:
        transfer_s: returns the time of a copy from its bytes and the number of other copies, if known.
        transport: connection to a system without this machine's files.
    """

    tier: PipelineTier
    place: Place
    here: bool  # True on this machine, whose queue enforces the tier's limits
    power_w: float | None = None
    transfer_s: Callable[[float, int], Interval | None] = lambda *_: Interval(0.0, 0.0, 0.0)
    transport: Transport | None = None


def predict_elapsed_s(runs: Sequence[Batch], work: float) -> Interval | None:
    """Return the 90 % interval of the time of a run with so much work, from past runs, the newest first.

    The log time is linear in the log work (Bayesian linear regression, with a prior on slope and scatter), so the first
    run already predicts a second one with more data. ``None`` without runs.
    """
    measured = [(run.work, run.elapsed_s) for run in runs if run.elapsed_s is not None and run.elapsed_s > 0]
    if not measured:
        return None
    weights = [0.5 ** (age / HALF_LIFE) for age in range(len(measured))]
    total = sum(weights)
    x = [math.log(max(work, 1.0)) for work, _ in measured]
    y = [math.log(elapsed_s) for _, elapsed_s in measured]
    x_mean, y_mean = (sum(w * v for w, v in zip(weights, values, strict=True)) / total for values in (x, y))
    sxx = sum(w * (v - x_mean) ** 2 for w, v in zip(weights, x, strict=True))
    sxy = sum(w * (v - x_mean) * (u - y_mean) for w, v, u in zip(weights, x, y, strict=True))
    slope, variance, slope_variance = SLOPE, NOISE**2, 0.0
    for _ in range(3):  # the scatter depends on the slope, and the slope on the scatter
        slope_variance = 1 / (SLOPE_SD**-2 + sxx / variance)
        slope = slope_variance * (SLOPE * SLOPE_SD**-2 + sxy / variance)
        residuals = (u - y_mean - slope * (v - x_mean) for v, u in zip(x, y, strict=True))
        squares = sum(w * residual**2 for w, residual in zip(weights, residuals, strict=True))
        variance = (NOISE_RUNS * NOISE**2 + squares) / (NOISE_RUNS + total - 1)
    distance = math.log(max(work, 1.0)) - x_mean
    spread = math.sqrt(variance * (1 + 1 / total) + slope_variance * distance**2)
    width = math.exp(student_90(NOISE_RUNS + len(measured) - 1) * spread)
    point = math.exp(y_mean + slope * distance)
    return Interval(point, point / width, point * width)


def forecast_tier(
    tier: PipelineTier, *, elapsed_s: Interval | None, basis: str, transfer_s: Interval | None, power_w: float | None
) -> TierForecast:
    """Return the forecast of a tier with its cost, transfer included, and its energy."""
    point = None if elapsed_s is None else elapsed_s.point
    moved = 0.0 if transfer_s is None else transfer_s.point
    cost = None if point is None or tier.usd_per_h is None else tier.usd_per_h * (point + moved) / HOUR_S
    energy = None if point is None or power_w is None else power_w * point
    return TierForecast(tier.name, elapsed_s, basis, transfer_s, cost, energy)


def choose_tier(stage: PipelineStage, forecasts: Sequence[TierForecast]) -> Placement:
    """Return the cheapest tier that meets deadline and budget; without either, the first one.

    A tier without a price costs nothing here. If none is predicted to meet them, an unmeasured tier is tried, and after
    that the fastest is taken.
    """
    limits = [f"the deadline of {format_duration(stage.deadline_s)}"] if stage.deadline_s is not None else []
    limits += [f"the budget of ${stage.budget_usd:.2f}"] if stage.budget_usd is not None else []
    wanted = " and ".join(limits)
    known = [forecast for forecast in forecasts if forecast.total_s is not None]
    meeting = [forecast for forecast in known if _meets(stage, forecast)]
    if len(forecasts) == 1:
        chosen, reason = forecasts[0], "the only tier of the stage"
        if wanted and known and not meeting:
            reason += f", but predicted to miss {wanted}"
    elif not wanted:
        chosen, reason = forecasts[0], "first in order, since no deadline or budget is given"
    elif meeting:
        chosen = min(meeting, key=lambda forecast: forecast.cost_usd or 0.0)
        reason = f"the cheapest that meets {wanted}"
    elif len(known) < len(forecasts):
        chosen = next(forecast for forecast in forecasts if forecast.total_s is None)
        reason = "first in order whose time is unknown"
    else:
        chosen = min(known, key=_high_s)
        reason = f"none is predicted to meet {wanted}: the fastest"
    return Placement(chosen.tier, reason, tuple(forecasts))


def _meets(stage: PipelineStage, forecast: TierForecast) -> bool:
    """Return whether a tier meets the deadline even at the upper bound, and the budget on average."""
    in_time = stage.deadline_s is None or _high_s(forecast) <= stage.deadline_s
    return in_time and (stage.budget_usd is None or (forecast.cost_usd or 0.0) <= stage.budget_usd)


def _high_s(forecast: TierForecast) -> float:
    return math.inf if forecast.total_s is None else forecast.total_s.high


def recommended_memory(runs: Sequence[Batch]) -> int | None:
    """Return the memory to request, from the peaks of past runs; ``None`` without any."""
    peaks = [run.memory_bytes for run in runs if run.memory_bytes]
    return math.ceil(MEMORY_MARGIN * max(peaks)) if peaks else None


@dataclass(kw_only=True)
class StagePlanner:
    """Forecasts runs of stages at the tiers, and chooses among these."""

    pipeline: Pipeline
    tiers: Mapping[str, PlacedTier]
    past_runs: Callable[[str], Sequence[Batch]]  # returns the completed runs of a stage, the newest first
    estimate_s: Callable[[PipelineStage, PlacedTier], Interval | None] = lambda *_: None  # from the stage's workload
    copies_to: Callable[[str], int] = lambda _: 0  # returns the copies under way to and from a system

    def work(self, stage: PipelineStage, events: int) -> float:
        """Return what a run has to work through: bytes of the folders that it reads, or its number of events."""
        return self.input_bytes(stage) if stage.reads else float(events)

    def input_bytes(self, stage: PipelineStage) -> float:
        """Return the bytes in the folders that a stage reads."""
        return sum(folder_bytes(Path(self.pipeline.folder, folder)) for folder in stage.reads)

    def event_bytes(self, stage: PipelineStage, events: Iterable[PipelineEvent]) -> float:
        """Return the bytes in the files of events that a copy to a tier of the stage adds to what it reads."""
        if all(self.tiers[name].transport is None for name in stage.tiers):
            return 0.0
        total, folder = 0.0, Path(self.pipeline.folder)
        for file in (PurePath(event.file) for event in events if event.file):
            if not any(file.is_relative_to(name) for name in stage.reads):
                with suppress(FileNotFoundError):
                    total += (folder / file).stat().st_size
        return total

    def place(self, stage: PipelineStage, work: float, event_bytes: float = 0.0) -> Placement:
        """Return the placement of a run with so much work, and with so many bytes in the files of its events."""
        runs = self.past_runs(stage.name)
        moved_bytes = event_bytes + (work if stage.reads else 0.0)
        forecasts = []
        for placed in (self.tiers[name] for name in stage.tiers):
            here = [run for run in runs if run.tier == placed.tier.name]
            elapsed_s, basis = predict_elapsed_s(here, work), pluralize(len(here), "past run")
            if elapsed_s is None:
                elapsed_s = self.estimate_s(stage, placed)
                basis = "unknown" if elapsed_s is None else "its workload"
            forecasts.append(
                forecast_tier(
                    placed.tier, elapsed_s=elapsed_s, basis=basis, power_w=placed.power_w,
                    transfer_s=placed.transfer_s(moved_bytes, self.copies_to(placed.place.system)),
                )
            )  # fmt: skip
        return choose_tier(stage, forecasts)


def no_runs(_stage: str) -> tuple[Batch, ...]:
    """Return the past runs of a stage of a pipeline that never ran."""
    return ()


def folder_bytes(folder: Path) -> float:
    """Return the bytes of all files in a folder; runs may remove some meanwhile."""
    total = 0.0
    for place, _, files in os.walk(folder):
        for file in files:
            with suppress(FileNotFoundError):
                total += Path(place, file).stat().st_size
    return total
