"""Accuracy at full scale against the cost of the campaign, for campaigns that grow; its drawing and its tables.

``python -m leadline.bench.curve RESULT.json FIGURE.svg`` draws it from what ``leadline bench harp --json`` wrote, and
prints the tables of its page in the documentation.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from leadline.bench.asking import Answers, Question, pooled
from leadline.bench.histories import History, cost_s
from leadline.bench.predictors import HARP, OURS, PLAIN
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
"""Campaigns: the share of the scaled-down configurations, and how many full-scale ones."""
DRAWS = 2
DRAWN = (OURS, PLAIN, HARP)
COLOURS = {OURS: "#0b6e4f", PLAIN: "#8a8d91", HARP: "#c44536"}


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


@dataclass(frozen=True, slots=True)
class Growing:
    """A campaign of the curve: so many scaled-down configurations (``None``: all), and so many full-scale ones."""

    history: History
    scaled_down: int | None
    full_scale: int

    def questions(self, contender: str) -> tuple[Question, ...]:
        """Return what a contender is asked, once for each draw; there is one draw of all without a full-scale one."""
        draws = DRAWS if self.full_scale or self.scaled_down is not None else 1
        return tuple(
            Question(contender, self.history.name, "elapsed_s", self.full_scale, seed, self.scaled_down)
            for seed in range(draws)
        )

    def point(self, answers: Answers, methods: Sequence[str]) -> Point:
        """Return the point of the curve, the mean of all draws."""
        splits = [one.split(self.history) for one in self.questions(methods[0])]
        errors = {}
        for name in methods:
            said = pooled(answers, self.questions(name))[name]
            errors[name] = mape(said.measured.tolist(), said.point.tolist())
        small = len(splits[0].learned) - self.full_scale if self.scaled_down is None else self.scaled_down
        return Point(
            f"{small} SD" + (f" + {self.full_scale} FS" if self.full_scale else ""),
            self.full_scale,
            len(splits[0].learned),
            sum(cost_s(one.learned) for one in splits) / len(splits),
            sum(one.cheaper for one in splits) / len(splits),
            errors,
        )


def campaigns(history: History, growing: Sequence[tuple[float, int]] = GROWING) -> tuple[Growing, ...]:
    """Return the campaigns of the curve of a history."""
    down = len({tuple(sorted(record.features.items())) for record in history.at(Scale.SCALED_DOWN)})
    return tuple(Growing(history, None if share == 1 else round(share * down), full) for share, full in growing)


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


FIGURES = ("MAPE", "MAE", "UPP", "OV_MAPE", "coverage", "under-predicted at 5 % risk", "over-request")


def tables(details: Sequence[Mapping[str, Any]]) -> str:
    """Return every method's figures, and the campaigns of the curve, as two tables in Markdown."""
    compared = [one for one in details if not one.get("curve")]
    points = [one for one in details if one.get("curve")]
    first = _table(
        ("history", "learned", "target", "method", *FIGURES),
        [
            (one["history"], one["learned"], one["target"], one["method"], *(_number(one[name]) for name in FIGURES))
            for one in compared
        ],
    )
    second = _table(
        ("history", "campaign", "cost [s]", "times cheaper", *DRAWN),
        [
            (one["history"], one["campaign"], _number(one["cost_s"]), _number(one["cheaper"]),
             *(_number(one["mape"][name]) for name in DRAWN))
            for one in points
        ],
    )  # fmt: skip
    return f"{first}\n\n{second}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, ["---"] * len(heads), *rows))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


if __name__ == "__main__":
    said = msgspec.json.decode(Path(sys.argv[1]).read_bytes())["details"]
    draw(said, Path(sys.argv[2]))
    sys.stdout.write(f"{tables(said)}\n")
