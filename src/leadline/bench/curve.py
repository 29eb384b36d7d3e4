"""Accuracy at full scale against the cost of the campaign, for campaigns that grow; and its drawing.

``python -m leadline.bench.curve RESULT.json FIGURE.svg`` draws it from what ``leadline bench harp --json`` wrote.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from leadline.bench.histories import History, cost_s, split
from leadline.bench.predictors import HARP, METHODS, Answered
from leadline.core.runs import Scale
from leadline.uncertainty.metrics import mape

GROWING = (
    (0.15, 0),
    (0.3, 0),
    (0.5, 0),
    (1.0, 0),
    (0.15, 2),
    (0.3, 2),
    (0.5, 3),
    (1.0, 2),
    (1.0, 3),
    (1.0, 5),
    (1.0, 8),
)
"""Campaigns: the share of the scaled-down configurations, and how many full-scale ones."""
DRAWS = 2
DRAWN = ("Leadline", "boosting", HARP)
COLOURS = {"Leadline": "#0b6e4f", "boosting": "#8a8d91", HARP: "#c44536"}


@dataclass(frozen=True, slots=True)
class Point:
    """One campaign: its runs, what it cost, how much more as many runs at full scale cost, and each method's MAPE."""

    name: str
    full_scale: int
    runs: int
    cost_s: float
    cheaper: float
    mape: Mapping[str, float]

    def document(self) -> dict[str, object]:
        """Return the point for a bench's details."""
        return {"campaign": self.name, "full_scale": self.full_scale, "runs": self.runs, "cost_s": self.cost_s,
                "cheaper": self.cheaper, "mape": dict(self.mape)}  # fmt: skip


def learning_curve(
    history: History,
    *,
    growing: Sequence[tuple[float, int]] = GROWING,
    methods: Sequence[str] = DRAWN,
    draws: int = DRAWS,
) -> tuple[Point, ...]:
    """Return the points of growing campaigns, each the mean of several draws."""
    down = len({tuple(sorted(record.features.items())) for record in history.at(Scale.SCALED_DOWN)})
    return tuple(_point(history, round(share * down), full, methods, draws) for share, full in growing)


def _point(history: History, down: int, full: int, methods: Sequence[str], draws: int) -> Point:
    splits = [split(history, full, seed, scaled_down=down) for seed in range(draws)]
    errors = {}
    for name in methods:
        answers = Answered.pooled([METHODS[name](one, "elapsed_s", seed) for seed, one in enumerate(splits)])
        errors[name] = mape(answers.measured.tolist(), answers.point.tolist())
    return Point(
        f"{down} SD" + (f" + {full} FS" if full else ""),
        full,
        len(splits[0].learned),
        sum(cost_s(one.learned) for one in splits) / draws,
        sum(one.cheaper for one in splits) / draws,
        errors,
    )


def draw(details: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw a panel for each history: MAPE against cost, both logarithmic; open marks have no full-scale run."""
    from matplotlib import rc_context  # noqa: PLC0415 - heavy, and only to draw
    from matplotlib.figure import Figure  # noqa: PLC0415

    points = [one for one in details if one.get("curve")]
    names = list(dict.fromkeys(str(one["history"]) for one in points))
    with rc_context({"svg.hashsalt": "leadline", "svg.fonttype": "none"}):
        figure = Figure(figsize=(4.2 * len(names), 3.6), layout="constrained")
        axes = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
        for axis, name in zip(axes, names, strict=True):
            mine = sorted((one for one in points if one["history"] == name), key=lambda one: float(one["cost_s"]))
            for method in (name for name in DRAWN if name in mine[0]["mape"]):
                _draw_method(axis, mine, method)
            axis.axhline(8, color="black", linewidth=0.8, linestyle=":")
            axis.set(title=name, xlabel="cost of the campaign [s]", xscale="log", yscale="log")
        axes[0].set_ylabel("MAPE at full scale [%]")
        axes[-1].legend(frameon=False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_method(axis: Any, points: Sequence[Mapping[str, Any]], method: str) -> None:  # noqa: ANN401 - matplotlib's
    colour = COLOURS[method]
    for filled in (False, True):
        some = [one for one in points if bool(one["full_scale"]) is filled]
        axis.plot(
            [one["cost_s"] for one in some],
            [one["mape"][method] for one in some],
            marker="o",
            color=colour,
            linestyle="-" if filled else "--",
            markerfacecolor=colour if filled else "white",
            label=method if filled else None,
        )


if __name__ == "__main__":
    draw(msgspec.json.decode(Path(sys.argv[1]).read_bytes())["details"], Path(sys.argv[2]))
