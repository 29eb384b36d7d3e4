"""Plot the errors of a model: predicted against measured, error by size, and the learning curve."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from leadline.core.errors import LeadlineError
from leadline.core.runs import Sample, Scale
from leadline.core.units import format_bytes, format_duration
from leadline.estimators.ports import Array
from leadline.training.cross_validation import log_size
from leadline.training.dataset import TARGETS
from leadline.training.fitting import IntervalPredictions, LearningCurvePoint, TrainedTarget, learning_curve
from leadline.training.model_card import SCALES, ModelCard
from leadline.training.records import Progress

COLOURS = {Scale.SCALED_DOWN: "#0072B2", Scale.FULL_SCALE: "#D55E00"}
"""From the palette of Okabe and Ito, which colour-blind readers can distinguish."""
INK, FAINT = "#333333", "#BBBBBB"
FORMATS = ("png", "svg")


def draw_all(
    card: ModelCard, trained: Sequence[TrainedTarget], folder: Path, *, progress: Progress = lambda *_: None
) -> tuple[Path, ...]:
    """Draw every plot of every target into ``folder``, as PNG and SVG, and return the files.

    Raises:
        LeadlineError: a file cannot be written.
    """
    files: list[Path] = []
    for target in trained:
        name = target.data.dataset.target
        progress(f"{name}: drawing", 1, 1)
        stem = f"{card.application}-{name}"
        files += _save(predicted_against_measured(target, card.application), folder / f"{stem}-predicted")
        files += _save(error_by_size(target, card.application), folder / f"{stem}-error")
        curve = learning_curve(target)
        if len(curve) > 1:
            files += _save(draw_learning_curve(target, curve, card.application), folder / f"{stem}-learning")
    return tuple(files)


def predicted_against_measured(trained: TrainedTarget, application: str) -> Figure:
    """Plot the predictions of held-out runs: those of the test set filled, the out-of-fold ones faint."""
    figure, axes = _figure(6.4, 6.0)
    target, parts = trained.data.dataset.target, _parts(trained)
    values = np.concatenate([np.concatenate([part.predicted.measured, part.predicted.point]) for part, _ in parts])
    low, high = values.min() / 1.3, values.max() * 1.3
    line = np.array([low, high])
    axes.fill_between(line, line / 1.1, line * 1.1, color=FAINT, alpha=0.35, linewidth=0, label="within 10 %")
    axes.plot(line, line, color=INK, linewidth=0.8)
    for part, tested in parts:
        _bars(axes, part, tested=tested)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    label = TARGETS.get(target, target)
    axes.set(xlabel=f"measured {label}", ylabel=f"predicted {label}, with its 90 % interval")
    _set_unit_ticks(axes.xaxis, target, low, high)
    _set_unit_ticks(axes.yaxis, target, low, high)
    errors = {**trained.validated, **trained.tested}
    summary = ", ".join(f"{SCALES[scale]} {metrics.mape:.1f} %" for scale, metrics in errors.items())
    _set_title(axes, f"{application}: {label}", f"{trained.selection.winner.name}; mean error {summary}")
    axes.legend(loc="upper left", frameon=False, fontsize=9)
    return figure


def error_by_size(trained: TrainedTarget, application: str) -> Figure:
    """Plot the signed error over the size of a run."""
    figure, axes = _figure(7.2, 4.4)
    data, parts = trained.data.dataset, _parts(trained)
    label = TARGETS.get(data.target, data.target)
    for predictions, tested in parts:
        for scale, part in predictions.by_scale():
            sizes = _sizes(part.predicted.samples, data.scale_features, part.predicted.measured)
            axes.scatter(
                sizes, _errors(part), s=22 if tested else 14, color=COLOURS[scale], alpha=0.9 if tested else 0.35,
                linewidth=0, label=_label(scale, part, tested=tested),
            )  # fmt: skip
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.axhspan(-10, 10, color=FAINT, alpha=0.35, linewidth=0)
    all_errors = np.concatenate([_errors(part) for part, _ in parts])
    # One run far off would squeeze all others into a line.
    limit = max(15.0, float(np.quantile(np.abs(all_errors), 0.99)) * 1.15)
    names = " × ".join(data.scale_features)
    size = f"size of the run ({names})" if names else f"measured {label}"
    axes.set(xscale="log", xlabel=size, ylim=(-min(limit, 105), limit), ylabel="predicted ÷ measured - 1, %")
    if not names:
        sizes = np.concatenate([part.predicted.measured for part, _ in parts])
        _set_unit_ticks(axes.xaxis, data.target, float(sizes.min()), float(sizes.max()))
    _set_title(axes, f"{application}: error by scale, {label}", "the band is ±10 %")
    axes.legend(loc="best", frameon=False, fontsize=9, ncols=2)
    return figure


def draw_learning_curve(trained: TrainedTarget, curve: Sequence[LearningCurvePoint], application: str) -> Figure:
    """Plot the error on held-out runs over the time that the training runs took."""
    figure, axes = _figure(7.2, 4.4)
    target = trained.data.dataset.target
    full = bool(trained.data.dataset.at(Scale.FULL_SCALE))
    costs, errors = [point.cost_s for point in curve], [point.mape for point in curve]
    colour = COLOURS[Scale.FULL_SCALE if full else Scale.SCALED_DOWN]
    axes.plot(costs, errors, "o-", color=colour, linewidth=1.6, markersize=6)
    for point in curve:
        axes.annotate(
            f"{point.runs} runs", (point.cost_s, point.mape), textcoords="offset points", xytext=(6, 7), fontsize=9,
            color=INK,
        )  # fmt: skip
    ends, heights = (min(costs) / 1.4, max(costs) * 1.9), (min(errors) / 1.5, max(errors) * 1.7)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=heights, xlabel="time that the campaign's runs took")
    _set_unit_ticks(axes.xaxis, "elapsed_s", *ends)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    # The first digits 2 and 5.
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g} %" if f"{value:.0e}"[0] in "25" else ""))
    axes.set_ylabel(f"mean error on held-out {'full-scale ' if full else ''}runs")
    _set_title(axes, f"{application}: learning curve, {TARGETS.get(target, target)}", trained.selection.winner.name)
    return figure


def _parts(trained: TrainedTarget) -> list[tuple[IntervalPredictions, bool]]:
    """Return the held-out predictions, each with True for the test set."""
    return [(trained.validation, False)] + ([(trained.test, True)] if trained.test else [])


def _errors(predictions: IntervalPredictions) -> Array:
    """Return the signed errors in percent."""
    return 100 * (predictions.predicted.point / predictions.predicted.measured - 1)


def _label(scale: Scale, part: IntervalPredictions, *, tested: bool) -> str:
    return f"{SCALES[scale]}, {'test' if tested else 'out of fold'} ({len(part.low)})"


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


def _bars(axes: Any, predictions: IntervalPredictions, *, tested: bool) -> None:  # noqa: ANN401 - untyped library
    for scale, part in predictions.by_scale():
        point = part.predicted.point
        axes.errorbar(
            part.predicted.measured, point, yerr=np.vstack([point - part.low, part.high - point]), fmt="o",
            color=COLOURS[scale], alpha=0.9 if tested else 0.3, markersize=4.5 if tested else 3, elinewidth=0.9,
            markeredgewidth=0, label=_label(scale, part, tested=tested),
        )  # fmt: skip


def _sizes(samples: Sequence[Sample], scale_features: Sequence[str], measured: Array) -> Array:
    if not scale_features:
        return measured
    sizes: Array = np.exp(np.array([log_size(sample, scale_features) for sample in samples]))
    return sizes


def _set_unit_ticks(axis: Any, target: str, low: float, high: float) -> None:  # noqa: ANN401
    """Set ticks at round durations (1, 2, 5 … seconds, minutes and hours) or at powers of two of bytes."""
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
    """Return three to seven multiples of a round number: a power of ``base``, or 2 or 5 times one."""
    step = base ** math.floor(math.log((high - low) / 3, base))
    factors = (5, 2) if base == 10 else ()
    step *= next((factor for factor in factors if (high - low) / (factor * step) >= 3), 1)
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


_SECONDS = [
    *(10**power * digit for power in range(-6, 1) for digit in (1, 2, 5)),
    *(10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 18000, 36000, 86400, 172800, 432000, 864000),
]
_BYTES = [2.0**power for power in range(10, 45)]


def _short(seconds: float) -> str:
    """Return a round duration without zeros: ``5 min``."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s" if seconds >= 1 else format_duration(seconds)


def _set_title(axes: Any, title: str, below: str) -> None:  # noqa: ANN401
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
