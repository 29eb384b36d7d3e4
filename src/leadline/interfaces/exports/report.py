"""A report of an estimate or a recommendation as one HTML file, which can be mailed."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from leadline import __version__
from leadline.core.errors import InvalidInput
from leadline.core.units import format_duration
from leadline.files.atomic import write_atomically
from leadline.interfaces import documents
from leadline.interfaces.page_text import FILTERS
from leadline.interfaces.tables import format_place

MOST_ROWS = 40
LEFT, RIGHT = 300.0, 800.0
"""Ends of the scale of the plot, in its own units."""


def write_report(document: Mapping[str, Any], file: Path, *, command: str = "") -> None:
    """Write the report.

    Args:
        document: Document of an estimate, of estimates, or of a recommendation.
        file: The HTML file.
        command: The command line that gave the document.

    Raises:
        InvalidInput: the document is another one, or has no rows.
    """
    rows = _rows(document)
    if not rows:
        raise InvalidInput("there is nothing to report: no place can run this")
    templates = Environment(loader=PackageLoader("leadline.interfaces.web"), autoescape=True, undefined=StrictUndefined)
    templates.filters |= FILTERS
    shown = rows[:MOST_ROWS]
    bars, scale = _bars(shown)
    html = templates.get_template("report.html").render(
        title=document.get("workload", {}).get("name") or "Recommendation", version=__version__,
        date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"), command=command, rows=shown, found=len(rows),
        bars=bars, scale=scale, requests="resources" in rows[0],
        notes=[*document.get("notes", ()), *document.get("trace_notes", ())],
    )  # fmt: skip
    write_atomically(file, html)


def _rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    schema = document.get("schema")
    if schema == documents.RECOMMENDATION:
        return [
            {**option, "place": format_place(option["system"], option["partition"])} for option in document["options"]
        ]
    if schema not in (documents.ESTIMATE, documents.ESTIMATES):
        raise InvalidInput(f"a report shows an estimate or a recommendation, and this is {schema}")
    estimates = [document] if schema == documents.ESTIMATE else document["estimates"]
    return [
        {"estimate": estimate, "place": format_place(estimate["target"]["system"], estimate["target"]["partition"])}
        for estimate in estimates
    ]


def _bars(rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the bars of the times on a logarithmic scale, and the texts of its ends."""
    times = [(row["place"] or row["estimate"]["target"]["device"], row["estimate"]["elapsed_s"]) for row in rows]
    known = [(name, time) for name, time in times if time and time["low"] > 0 and math.isfinite(time["high"])]
    if not known:
        return [], {}
    low, high = min(time["low"] for _, time in known), max(time["high"] for _, time in known)
    span = math.log(high / low) or 1.0

    def at(value: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * math.log(value / low) / span, 1)

    bars = [{"name": name[:40], "low": at(time["low"]), "point": at(time["point"]),
             "width": round(at(time["high"]) - at(time["low"]), 1)} for name, time in known]  # fmt: skip
    return bars, {"low": format_duration(low), "high": format_duration(high)}
