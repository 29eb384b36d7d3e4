"""The figure and the tables of the documentation's page on ``leadline bench harp``, made of what it wrote.

``python -m benchmarks.harp.page RESULT.json FIGURE.svg`` draws the learning curve and prints the tables.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harp.campaign_curve import DRAWN, draw_curves
from benchmarks.harp.contenders import BOOSTING, HARP, LEADLINE
from benchmarks.harp.run import MEMORY, WALLTIME
from benchmarks.markdown import markdown_table

SHORT = "under-predicted at 5 % risk"

Details = Sequence[Mapping[str, Any]]


def tables(details: Details) -> str:
    """Return three tables in Markdown: the errors, what would be asked for, and the campaigns of the curve."""
    return "\n\n".join((_errors(details), _requests(details), _campaigns(details)))


def _errors(details: Details) -> str:
    heads = ("history", "learned", LEADLINE, "HARP as released", "HARP, its best way", "plain boosting", "coverage")
    rows = []
    for (history, learned), each in _compared(details, WALLTIME).items():
        best = min(one["MAPE"] for name, one in each.items() if name.startswith(HARP))
        said = (each[LEADLINE]["MAPE"], each[HARP]["MAPE"], best, each[BOOSTING]["MAPE"], each[LEADLINE]["coverage"])
        rows.append((history, learned, f"{said[0]:.1f} %", *(f"{one:.0f} %" for one in said[1:])))
    return markdown_table(heads, rows)


def _requests(details: Details) -> str:
    heads = ("history", "asked for", "too short", "median request ÷ need", "boosting: too short", "request ÷ need")
    rows = []
    for target, name in ((WALLTIME, "walltime"), (MEMORY, "memory")):
        for (history, learned), each in _compared(details, target).items():
            if "FS" in learned:
                rows.append((history, name, *_asked(each[LEADLINE]), *_asked(each[BOOSTING])))
    return markdown_table(heads, rows)


def _asked(figures: Mapping[str, Any]) -> tuple[str, str]:
    return f"{figures[SHORT]:.1f} %", f"{figures['over-request']:.2f}"


def _campaigns(details: Details) -> str:
    heads = ("history", "campaign", "cost", "times cheaper", *DRAWN)
    return markdown_table(heads, [
        (one["history"], one["campaign"], f"{one['cost_s']:,.0f} s", f"{one['cheaper']:.1f}",
         *(f"{one['mape'][name]:.1f} %" for name in DRAWN))
        for one in details if one.get("curve")
    ])  # fmt: skip


def _compared(details: Details, target: str) -> dict[tuple[str, str], dict[str, Mapping[str, Any]]]:
    """Return (history, learned) → method → its figures, of a target."""
    found: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for one in details:
        if one.get("target") == target:
            found.setdefault((one["history"], one["learned"]), {})[one["method"]] = one
    return found


if __name__ == "__main__":
    written = msgspec.json.decode(Path(sys.argv[1]).read_bytes())["details"]
    draw_curves(written, Path(sys.argv[2]))
    sys.stdout.write(f"{tables(written)}\n")
