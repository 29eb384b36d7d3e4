"""The figure and the tables of the documentation's page on ``bench harp``, from its result file.

``python -m benchmarks.harp.page RESULT.json FIGURE.svg`` draws the learning curve and prints the tables.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harp.campaign_curve import DRAWN, draw_curves
from benchmarks.harp.contenders import BOOSTING, FIXED, HARP, LEADLINE
from benchmarks.harp.run import MEMORY, WALLTIME
from benchmarks.markdown import markdown_table

SHORT = "under-predicted at 5 % risk"

Details = Sequence[Mapping[str, Any]]


def tables(details: Details) -> str:
    """Return three tables in Markdown: the errors, the requests, and the campaigns of the curve."""
    return "\n\n".join((_errors(details), _requests(details), _campaigns(details)))


def _errors(details: Details) -> str:
    heads = (
        "history",
        "learned",
        LEADLINE,
        FIXED,
        "its best mode",
        HARP,
        "its best mode",
        "plain boosting",
        "coverage",
    )
    rows = []
    for (history, learned), methods in _by_setting(details, WALLTIME).items():
        fixed, released = (
            (methods[harp]["MAPE"], min(metrics["MAPE"] for name, metrics in methods.items() if name.startswith(harp)))
            for harp in (FIXED, HARP)
        )
        leadline = methods[LEADLINE]
        percents = (*fixed, *released, methods[BOOSTING]["MAPE"], leadline["coverage"])
        rows.append((history, learned, f"{leadline['MAPE']:.1f} %", *(f"{percent:.0f} %" for percent in percents)))
    return markdown_table(heads, rows)


def _requests(details: Details) -> str:
    heads = ("history", "request", "too short", "median request ÷ need", "boosting: too short", "request ÷ need")
    rows = []
    for target, name in ((WALLTIME, "walltime"), (MEMORY, "memory")):
        for (history, learned), methods in _by_setting(details, target).items():
            if "FS" in learned:
                rows.append((history, name, *_request(methods[LEADLINE]), *_request(methods[BOOSTING])))
    return markdown_table(heads, rows)


def _request(metrics: Mapping[str, Any]) -> tuple[str, str]:
    return f"{metrics[SHORT]:.1f} %", f"{metrics['over-request']:.2f}"


def _campaigns(details: Details) -> str:
    heads = ("history", "campaign", "cost", "as many full-scale runs ÷ it", *DRAWN)
    return markdown_table(heads, [
        (point["history"], point["campaign"], f"{point['cost_s']:,.0f} s", f"{point['cheaper']:.1f}",
         *(f"{point['mape'][name]:.1f} %" for name in DRAWN))
        for point in details if point.get("curve")
    ])  # fmt: skip


def _by_setting(details: Details, target: str) -> dict[tuple[str, str], dict[str, Mapping[str, Any]]]:
    """Return (history, learned) → method → its metrics, for a target."""
    settings: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for detail in details:
        if detail.get("target") == target:
            settings.setdefault((detail["history"], detail["learned"]), {})[detail["method"]] = detail
    return settings


if __name__ == "__main__":
    written = msgspec.json.decode(Path(sys.argv[1]).read_bytes())["details"]
    draw_curves(written, Path(sys.argv[2]))
    sys.stdout.write(f"{tables(written)}\n")
