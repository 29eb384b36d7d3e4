"""Accuracy at full scale against the cost of the campaign, for growing campaigns, and its figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harp.contenders import BOOSTING, FIXED, HARP, LEADLINE, Answers, SplitQuestion, pooled_predictions
from benchmarks.histories import MeasuredHistory, cost_s
from leadline.core.runs import Scale
from leadline.uncertainty.metrics import mape

GROWING = (
    (0.15, 0),
    (0.3, 0),
    (0.6, 0),
    (1.0, 0),
    (0.15, 2),
    (0.4, 3),
    (1.0, 3),
    (1.0, 5),
    (1.0, 8),
)
"""Campaigns: share of the scaled-down configurations, number of full-scale ones."""
DRAWS = 2
DRAWN = (LEADLINE, BOOSTING, HARP, FIXED)
COLOURS = {LEADLINE: "#0b6e4f", BOOSTING: "#8a8d91", HARP: "#c44536", FIXED: "#e09f3e"}


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One campaign and the accuracy of its models.

    Attributes:
        cost_s: Time of its runs in seconds.
        cheaper: Cost of as many runs at full scale, divided by that cost.
        mape: Each method's error at full scale in percent.
    """

    name: str
    full_scale: int
    runs: int
    cost_s: float
    cheaper: float
    mape: Mapping[str, float]

    def document(self) -> dict[str, object]:
        """Return the point for the details of the result."""
        return {"campaign": self.name, "full_scale": self.full_scale, "runs": self.runs, "cost_s": self.cost_s,
                "cheaper": self.cheaper, "mape": dict(self.mape)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GrowingCampaign:
    """A campaign of the curve; None scaled-down configurations means all."""

    history: MeasuredHistory
    scaled_down: int | None
    full_scale: int

    def questions(self, contender: str) -> tuple[SplitQuestion, ...]:
        """Return a contender's questions, one for each draw; all scaled-down ones alone are drawn once."""
        draws = DRAWS if self.full_scale or self.scaled_down is not None else 1
        return tuple(
            SplitQuestion(contender, self.history.name, "elapsed_s", self.full_scale, seed, self.scaled_down)
            for seed in range(draws)
        )

    def point(self, answers: Answers, methods: Sequence[str]) -> CurvePoint:
        """Return the point of the curve, the mean of all draws."""
        splits = [question.split(self.history) for question in self.questions(methods[0])]
        errors = {}
        for name in methods:
            predictions = pooled_predictions(answers, self.questions(name))[name]
            errors[name] = mape(predictions.measured.tolist(), predictions.point.tolist())
        scales = [record.scale for record in splits[0].learned]
        small, full = scales.count(Scale.SCALED_DOWN), scales.count(Scale.FULL_SCALE)
        return CurvePoint(
            f"{small} SD" + (f" + {full} FS" if full else ""),
            self.full_scale,
            len(splits[0].learned),
            sum(cost_s(split.learned) for split in splits) / len(splits),
            sum(split.cheaper for split in splits) / len(splits),
            errors,
        )


def growing_campaigns(
    history: MeasuredHistory, growing: Sequence[tuple[float, int]] = GROWING
) -> tuple[GrowingCampaign, ...]:
    """Return the campaigns of a history's curve."""
    down = len({tuple(sorted(record.features.items())) for record in history.at(Scale.SCALED_DOWN)})
    return tuple(GrowingCampaign(history, None if share == 1 else round(share * down), full) for share, full in growing)


def draw_curves(details: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw a panel for each history: MAPE against cost on logarithmic axes; open marks have no full-scale run."""
    from matplotlib import rc_context  # noqa: PLC0415 - heavy, and only to draw
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import LogLocator, NullFormatter  # noqa: PLC0415

    points = [detail for detail in details if detail.get("curve")]
    names = list(dict.fromkeys(str(point["history"]) for point in points))
    with rc_context({"svg.hashsalt": "leadline", "svg.fonttype": "none"}):
        figure = Figure(figsize=(4.2 * len(names), 3.6), layout="constrained")
        axes = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
        for axis, name in zip(axes, names, strict=True):
            panel = [point for point in points if point["history"] == name]
            panel.sort(key=lambda point: float(point["cost_s"]))
            for method in (name for name in DRAWN if name in panel[0]["mape"]):
                _draw_method(axis, panel, method)
            axis.axhline(8, color="black", linewidth=0.8, linestyle=":")
            axis.set(title=name, xlabel="cost of the campaign [s]", xscale="log", yscale="log")
            for each in (axis.xaxis, axis.yaxis):
                each.set_major_locator(LogLocator(subs=(1, 2, 5)))
                each.set_major_formatter("{x:g}")
                each.set_minor_formatter(NullFormatter())
        axes[0].set_ylabel("MAPE at full scale [%]")
        axes[-1].plot(
            [], [], color="black", linestyle="--", marker="o", markerfacecolor="white", label="none at full scale"
        )
        figure.legend(
            *axes[-1].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=1 + len(DRAWN)
        )
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_method(axis: Any, points: Sequence[Mapping[str, Any]], method: str) -> None:  # noqa: ANN401 - matplotlib's
    colour = COLOURS[method]
    for filled in (False, True):
        marks = [point for point in points if bool(point["full_scale"]) is filled]
        axis.plot(
            [point["cost_s"] for point in marks],
            [point["mape"][method] for point in marks],
            marker="o",
            color=colour,
            linestyle="-" if filled else "--",
            markerfacecolor=colour if filled else "white",
            label=method if filled else None,
        )
