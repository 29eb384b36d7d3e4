"""Extrapolate watched loops to the whole job: ``start-up + warm-up + units × unit time + between``."""

import math
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, variance

from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.progress import LoopProgress, ProbeForecast, Progress
from leadline.estimators.student_t import student_90

LEVEL = 0.9
ENOUGH = 8  # so many finished iterations of an outer loop say more than the units within them
# The first iterations are warm-up as long as they take this many times the median.
WARM = 1.5
FEWEST = 4
# Standard deviation of one run's speed against another's; repeated training runs measured 0.8 % (median) to 3 %.
DRIFT = 0.02
STARTUP_DRIFT = 0.1  # the same for the start-up, which depends on the machine's caches
UNSURE = 2.0  # interval factor where too few units were measured for a spread


class SteadyTime(Frozen):
    """Steady time of one iteration: mean, its standard error, and the long-run variance of one."""

    mean_s: float
    warmup_s: float
    error_s: float | None
    variance: float
    quantile: float
    count: int


def extrapolate_loops(progress: Progress | None, *, units: int | None = None) -> ProbeForecast:
    """Return the time of the whole job; ``units`` is the total number of units if declared."""
    # The interval holds the spread of the units (Student's t over means of consecutive batches, so that neighbours may
    # be correlated) and a drift between runs. `assumptions` lists all else it rests on.
    if progress is None or not progress.levels:
        text = "no time-consuming loop was found: report steps" if progress else "the job showed no steps: report them"
        return ProbeForecast(unknown={"elapsed_s": f"{text} (LEADLINE_PROGRESS), or run the whole job"})
    levels = _known_levels(progress.levels)
    base = next((at for at, level in enumerate(levels) if level.count >= ENOUGH), len(levels) - 1)
    level, steady = levels[base], steady_time(levels[base])
    if steady is None or progress.startup_s is None:
        text = f"no iteration of `{level.name}` finished: give the probe more time, such as --time 60s"
        return ProbeForecast(startup_s=progress.startup_s, unit=level.name, unknown={"elapsed_s": text})
    inner = math.prod(loop.length or 1 for loop in levels[base + 1 :])
    declared = units if units is not None else progress.total
    total, passes = _counts(levels[: base + 1], declared, inner)
    between_s, assumptions = _between_iterations_s(levels[: base + 1])
    unit_s = _interval(steady.mean_s, (steady.error_s or 0.0) ** 2 + (DRIFT * steady.mean_s) ** 2, steady)
    partial = ProbeForecast(
        startup_s=progress.startup_s,
        unit=level.name,
        unit_s=unit_s,
        warmup_s=steady.warmup_s,
        pass_s=_pass_s(levels[: base + 1], steady, between_s),
        between_s=sum(between_s) if base else None,
        units=None if total is None else round(total),
        passes=None if passes is None or not base else round(passes[0]),
    )
    if total is None or passes is None:
        name = next(loop.name for loop in levels[: base + 1] if loop.length is None)
        text = f"the number of iterations of `{name}` is unknown: give the number of units with --steps-total N"
        return replace(partial, unknown={"elapsed_s": text}, assumptions=assumptions)
    outside_s = sum(count * one_s for count, one_s in zip(passes, between_s, strict=True))
    assumptions = (*_list_assumptions(steady, declared, levels[: base + 1]), *assumptions)
    return replace(partial, elapsed_s=_elapsed(progress, steady, total, outside_s), assumptions=assumptions)


def steady_time(level: LoopProgress) -> SteadyTime | None:
    """Return the steady time of a loop's iterations without warm-up; ``None`` before the first."""
    if not level.count or not level.sampled_s:
        return None
    middle = level.median_s or 0.0
    warm = 0
    while warm < min(len(level.first_s), level.count - 1) and level.first_s[warm] > WARM * middle:
        warm += 1
    if not warm and level.count >= FEWEST:
        warm = 1
    first_s = sum(level.first_s[:warm])
    count = level.count - warm
    mean_s = max(level.total_s - first_s, 0.0) / count
    steady = level.sampled_s[warm:] if len(level.sampled_s) >= level.count else level.sampled_s[1:]
    warmup_s = max(first_s - warm * mean_s, 0.0)
    if len(steady) < FEWEST:
        return SteadyTime(mean_s, warmup_s, None, 0.0, UNSURE, count)
    batches = max(2, min(10, len(steady) // 2))
    size = len(steady) // batches
    means = [fmean(steady[at * size : (at + 1) * size]) for at in range(batches)]
    spread = variance(means)
    represented = count / batches
    return SteadyTime(
        mean_s, warmup_s, math.sqrt(spread / batches), spread * represented, student_90(batches - 1), count
    )


def _known_levels(levels: tuple[LoopProgress, ...]) -> list[LoopProgress]:
    """Return the levels down to the first of unknown length inside a completed one."""
    kept = [levels[0]]
    for level in levels[1:]:
        if level.length is None and kept[-1].count:
            break
        kept.append(level)
    return kept


def _counts(levels: list[LoopProgress], units: int | None, inner: int) -> tuple[float | None, list[float] | None]:
    """Return how often the last level runs in the whole job, and each level above; ``None`` if unknown.

    ``units`` counts the innermost units, of which one iteration of the last level has ``inner``.
    """
    lengths = [level.length for level in levels]
    if units is not None:
        passes: list[float] = []
        total = count = units / inner
        for length in reversed(lengths[1:]):
            if length is None:
                return total, [0.0] * (len(levels) - 1)
            count /= max(length, 1)
            passes.insert(0, count)
        return total, passes
    counts: list[float] = []
    for length in lengths:
        if length is None:
            return None, None
        counts.append((counts[-1] if counts else 1) * length)
    return counts[-1], counts[:-1]


def _between_iterations_s(levels: list[LoopProgress]) -> tuple[list[float], tuple[str, ...]]:
    """Return the time of each outer iteration outside the level within it; 0 if none completed."""
    between_s: list[float] = []
    unseen: list[str] = []
    for level, within in pairwise(levels):
        if not level.count or within.length is None or not within.count:
            unseen.append(level.name)
            between_s.append(0.0)
        else:
            between_s.append(max(level.total_s / level.count - within.length * within.total_s / within.count, 0.0))
    assumptions = [
        f"no iteration of `{name}` completed: its other work (evaluation, checkpoints) is left out" for name in unseen
    ]
    return between_s, tuple(assumptions)


def _pass_s(levels: list[LoopProgress], steady: SteadyTime, between_s: list[float]) -> float | None:
    """Return the time of one iteration of the outermost level, if it contains another."""
    if len(levels) < 2:
        return None
    time_s = steady.mean_s
    for level, besides_s in zip(reversed(levels[1:]), reversed(between_s), strict=True):
        if level.length is None:
            return None
        time_s = level.length * time_s + besides_s
    return time_s


def _elapsed(progress: Progress, steady: SteadyTime, total: float, outside_s: float) -> Interval:
    startup_s = progress.startup_s or 0.0
    loop_s = total * steady.mean_s + outside_s
    point = startup_s + steady.warmup_s + loop_s
    remaining = max(total - steady.count, 0.0)
    spread = (remaining * (steady.error_s or 0.0)) ** 2 + remaining * steady.variance
    spread += (DRIFT * loop_s) ** 2 + (STARTUP_DRIFT * startup_s) ** 2
    if steady.error_s is None:
        return Interval(point, startup_s + loop_s / UNSURE, point + loop_s * (UNSURE - 1), LEVEL)
    return _interval(point, spread, steady)


def _interval(point: float, spread: float, steady: SteadyTime) -> Interval:
    """Return the Student's t interval of a normal quantity of variance ``spread``, at least zero."""
    if steady.error_s is None:
        return Interval(point, point / UNSURE, point * UNSURE, LEVEL)
    half = steady.quantile * math.sqrt(spread)
    return Interval(point, max(point - half, 0.0), point + half, LEVEL)


def _list_assumptions(steady: SteadyTime, declared: int | None, levels: list[LoopProgress]) -> tuple[str, ...]:
    ends = "the job has the declared number of units" if declared is not None else "no loop ends early"
    assumptions = [
        f"{ends}, later units take as long as the {steady.count} measured, and nothing long follows the loop",
        f"one run differs from another by {DRIFT:.0%} (standard deviation), its start-up by {STARTUP_DRIFT:.0%}",
    ]
    if steady.error_s is None:
        assumptions.append(f"only {steady.count} units were measured: their spread is unknown, the interval a guess")
    if 0 < levels[0].count < 2 and len(levels) > 1:
        assumptions.append(f"one iteration of `{levels[0].name}` completed: assuming the same for the others")
    return tuple(assumptions)
