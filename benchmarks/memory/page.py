"""The tables of the documentation's pages on memory, from result files.

``python -m benchmarks.memory.page RESULT.json ...`` prints them in Markdown, for results of ``bench memory``,
``bench detectors`` and ``bench fine-tunes``.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from benchmarks.markdown import Row, figures_table, markdown_table

TITLES = {"detectors": "Segmenters and detectors", "fine-tunes": "Fine-tunes of language models"}


def tables(document: Row) -> str:
    """Return the metrics in Markdown; for ``bench memory`` also the points by family."""
    if document["bench"] in TITLES:
        return f"## {TITLES[document['bench']]}\n\n{figures_table(document['rows'])}"
    return f"## Metrics\n\n{figures_table(document['rows'])}\n\n## By family\n\n{_families(document['details'])}"


def _families(points: Sequence[Row]) -> str:
    by_family: dict[str, list[Row]] = {}
    for point in points:
        by_family.setdefault(point["family"], []).append(point)
    heads = ("family", "points", "live bytes", "worst", "MemTracker", "process", "worst", "above the bound")
    return markdown_table(heads, [_family(name, by_family[name]) for name in sorted(by_family)])


def _family(name: str, points: Sequence[Row]) -> list[str]:
    live, tracker, process = (
        [abs(error) for point in points if (error := point[f"{kind}_error_percent"]) is not None]
        for kind in ("live", "tracker", "process")
    )
    tracked = f"{fmean(tracker):.1f} %" if tracker else "no answer"
    above = sum(point["process_bytes"] > point["bound_bytes"] for point in points)
    return [
        name, str(len(points)), f"{fmean(live):.1f} %", f"{max(live):.1f} %", tracked,
        f"{fmean(process):.1f} %", f"{max(process):.1f} %", f"{above} of {len(points)}",
    ]  # fmt: skip


if __name__ == "__main__":
    documents = (msgspec.json.decode(Path(name).read_bytes()) for name in sys.argv[1:])
    sys.stdout.write("\n\n".join(map(tables, documents)) + "\n")
