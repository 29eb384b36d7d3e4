"""Draw how far off a model is: predicted against measured, error by scale, and the learning curve."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from leadline.core.errors import LeadlineError
from leadline.core.runs import Scale
from leadline.core.units import format_bytes, format_duration
from leadline.estimators.ports import Array
from leadline.training.candidate_race import Progress
from leadline.training.cross_validation import log_size
from leadline.training.fitting import IntervalPredictions, LearningCurvePoint, TrainedTarget, learning_curve
from leadline.training.model_card import ModelCard

COLOURS = {Scale.SCALED_DOWN: "#0072B2", Scale.FULL_SCALE: "#D55E00"}
"""Of Okabe and Ito's palette, which readers who see few colours tell apart."""
NAMES = {Scale.SCALED_DOWN: "scaled-down", Scale.FULL_SCALE: "full-scale"}
INK, FAINT = "#333333", "#BBBBBB"
FORMATS = ("png", "svg")
WHAT = {"elapsed_s": "walltime", "host_memory_bytes": "peak host memory", "gpu_memory_bytes": "peak GPU memory",
        "unit_s": "time of one unit of work"}  # fmt: skip


def draw_all(
    card: ModelCard,
    trained: Sequence[TrainedTarget],
    folder: Path,
    *,
    progress: Progress = lambda *_: None,
) -> tuple[Path, ...]:
    """Draw every plot of every target into ``folder``, each as PNG and SVG, and return the files.

    Raises:
        LeadlineError: a file cannot be written there.
    """
    made: list[Path] = []
    for one in trained:
        target = one.data.dataset.target
        progress(f"{target}: drawing", 1, 1)
        begun = f"{card.application}-{target}"
        made += _save(predicted_against_measured(one, card.application), folder / f"{begun}-predicted")
        made += _save(error_by_size(one, card.application), folder / f"{begun}-error")
        steps = learning_curve(one, card.seed)
        if len(steps) > 1:
            made += _save(draw_learning_curve(one, steps, card.application), folder / f"{begun}-learning")
    return tuple(made)


def predicted_against_measured(one: TrainedTarget, application: str) -> Figure:
    """Return the plot of runs that were not learned from: the test's, filled, and those out of fold, faint."""
    figure, axes = _figure(6.4, 6.0)
    target = one.data.dataset.target
    shown = [(one.validation, False)] + ([(one.test, True)] if one.test else [])
    values = np.concatenate([np.concatenate([said.predicted.measured, said.predicted.point]) for said, _ in shown])
    low, high = values.min() / 1.3, values.max() * 1.3
    line = np.array([low, high])
    axes.fill_between(line, line / 1.1, line * 1.1, color=FAINT, alpha=0.35, linewidth=0, label="within 10 %")
    axes.plot(line, line, color=INK, linewidth=0.8)
    for said, tested in shown:
        _bars(axes, said, tested=tested)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    what = WHAT.get(target, target)
    axes.set_xlabel(f"measured {what}")
    axes.set_ylabel(f"predicted {what}, with its 90 % interval")
    _units(axes.xaxis, target, low, high)
    _units(axes.yaxis, target, low, high)
    _titled(axes, f"{application}: {what}", f"{one.selection.winner.name}; {_summary(one)}")
    axes.legend(loc="upper left", frameon=False, fontsize=9)
    return figure


def error_by_size(one: TrainedTarget, application: str) -> Figure:
    """Return the plot of the signed error over the size of a run, from the smallest to the largest."""
    figure, axes = _figure(7.2, 4.4)
    data = one.data.dataset
    for said, tested in [(one.validation, False)] + ([(one.test, True)] if one.test else []):
        for scale in Scale:
            mine = np.array([each.scale is scale for each in said.predicted.samples])
            if not mine.any():
                continue
            part = said.predicted.at(mine)
            errors = 100 * (part.point / part.measured - 1)
            axes.scatter(
                _sizes(part.samples, data.scale_features, part.measured), errors, s=22 if tested else 14,
                color=COLOURS[scale], alpha=0.9 if tested else 0.35, linewidth=0,
                label=f"{NAMES[scale]}, {'test' if tested else 'out of fold'} ({int(mine.sum())})",
            )  # fmt: skip
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.axhspan(-10, 10, color=FAINT, alpha=0.35, linewidth=0)
    limit = max(15.0, float(np.quantile(np.abs(_all_errors(one)), 0.99)) * 1.15)
    axes.set_ylim(-min(limit, 105), limit)
    axes.set_xscale("log")
    names = " × ".join(data.scale_features)
    axes.set_xlabel(f"size of the run ({names})" if names else f"measured {WHAT.get(data.target, data.target)}")
    if not names:
        sizes = np.concatenate([said.predicted.measured for said in (one.validation, one.test) if said])
        _units(axes.xaxis, data.target, float(sizes.min()), float(sizes.max()))
    axes.set_ylabel("predicted ÷ measured - 1, %")
    _titled(axes, f"{application}: error by scale, {WHAT.get(data.target, data.target)}", "the band is ±10 %")
    axes.legend(loc="best", frameon=False, fontsize=9, ncols=2)
    return figure


def draw_learning_curve(one: TrainedTarget, steps: Sequence[LearningCurvePoint], application: str) -> Figure:
    """Return the plot of the error on runs held out over what the runs learned from took to make."""
    figure, axes = _figure(7.2, 4.4)
    target = one.data.dataset.target
    full = bool(one.data.dataset.at(Scale.FULL_SCALE))
    costs, errors = [step.cost_s for step in steps], [step.mape for step in steps]
    colour = COLOURS[Scale.FULL_SCALE if full else Scale.SCALED_DOWN]
    axes.plot(costs, errors, "o-", color=colour, linewidth=1.6, markersize=6)
    for step in steps:
        axes.annotate(
            f"{step.runs} runs", (step.cost_s, step.mape), textcoords="offset points", xytext=(6, 7), fontsize=9,
            color=INK,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=(min(costs) / 1.4, max(costs) * 1.9))
    axes.set_ylim(min(errors) / 1.5, max(errors) * 1.7)
    _units(axes.xaxis, "elapsed_s", min(costs) / 1.4, max(costs) * 1.9)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.yaxis.set_minor_formatter(
        FuncFormatter(lambda value, _: f"{value:g} %" if _first_digit(value) in (2, 5) else "")
    )
    axes.set_xlabel("time that the campaign's runs took")
    axes.set_ylabel(f"mean error on {'full-scale ' if full else ''}runs held out")
    _titled(axes, f"{application}: learning curve, {WHAT.get(target, target)}", one.selection.winner.name)
    return figure


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9, which="both", color=FAINT)
    axes.grid(visible=True, color=FAINT, alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _bars(axes: Any, said: IntervalPredictions, *, tested: bool) -> None:  # noqa: ANN401 - matplotlib is untyped here
    for scale in Scale:
        mine = np.array([each.scale is scale for each in said.predicted.samples])
        if not mine.any():
            continue
        part, low, high = said.predicted.at(mine), said.low[mine], said.high[mine]
        axes.errorbar(
            part.measured, part.point, yerr=np.vstack([part.point - low, high - part.point]), fmt="o",
            color=COLOURS[scale], alpha=0.9 if tested else 0.3, markersize=4.5 if tested else 3, elinewidth=0.9,
            markeredgewidth=0, label=f"{NAMES[scale]}, {'test' if tested else 'out of fold'} ({int(mine.sum())})",
        )  # fmt: skip


def _summary(one: TrainedTarget) -> str:
    found = {**one.validated, **one.tested}
    said = ", ".join(f"{NAMES[Scale(scale)]} {each.mape:.1f} %" for scale, each in found.items())
    return f"mean error {said}"


def _all_errors(one: TrainedTarget) -> Array:
    parts = [one.validation] + ([one.test] if one.test else [])
    found: Array = np.concatenate([100 * (said.predicted.point / said.predicted.measured - 1) for said in parts])
    return found


def _sizes(samples: Sequence[Any], scale_features: Sequence[str], measured: Array) -> Array:
    if not scale_features:
        return measured
    found: Array = np.exp(np.array([log_size(one, scale_features) for one in samples]))
    return found


def _units(axis: Any, target: str, low: float, high: float) -> None:  # noqa: ANN401
    """Put ticks where people count: 1, 2, 5, 10 … seconds, minutes and hours, or powers of two of bytes."""
    if not target.endswith(("_bytes", "_s")):
        return
    in_bytes = target.endswith("_bytes")
    ticks = [tick for tick in (_BYTES if in_bytes else _SECONDS) if low <= tick <= high]
    if len(ticks) < 3:
        ticks = _even(low, high, 2.0 if in_bytes else 10.0)
    while len(ticks) > 8:
        ticks = ticks[::2]
    axis.set_ticks(ticks, labels=[format_bytes(tick) if in_bytes else _short(tick) for tick in ticks])
    axis.set_minor_formatter(NullFormatter())


def _even(low: float, high: float, base: float) -> list[float]:
    """Return three to seven multiples of a round number, of a power of ``base`` or 2 or 5 times one."""
    step = base ** math.floor(math.log((high - low) / 3, base))
    for factor in (5, 2) if base == 10 else ():
        if (high - low) / (factor * step) >= 3:
            step *= factor
            break
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


_SECONDS = [
    *(10**power * digit for power in range(-6, 1) for digit in (1, 2, 5)),
    *(10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 18000, 36000, 86400, 172800, 432000, 864000),
]
_BYTES = [2.0**power for power in range(10, 45)]


def _short(seconds: float) -> str:
    """Write a round duration without its zeros: ``5 min``."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s" if seconds >= 1 else format_duration(seconds)


def _first_digit(value: float) -> int:
    return round(value / 10 ** math.floor(math.log10(value))) if value > 0 else 0


def _titled(axes: Any, title: str, below: str) -> None:  # noqa: ANN401
    axes.set_title(f"{title}\n", loc="left", fontsize=12, color=INK, fontweight="bold")
    axes.text(0, 1.02, below, transform=axes.transAxes, fontsize=9, color=INK)


def _save(figure: Figure, stem: Path) -> list[Path]:
    files = [stem.with_name(f"{stem.name}.{form}") for form in FORMATS]
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        for file in files:
            figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    except OSError as error:
        raise LeadlineError(
            f"{stem.parent} cannot be written to ({error.strerror}): name another with --plots"
        ) from error
    return files
