"""The tables of the documentation's pages on memory, made of what the benches wrote.

``python -m benchmarks.memory.page RESULT.json`` prints them in Markdown: of ``leadline bench memory``, or of
``bench detectors`` and ``bench fine-tunes``, one after another.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from benchmarks.markdown import Row, figures_table, markdown_table

TITLES = {"detectors": "Segmenters and detectors", "fine-tunes": "Fine-tunes of language models"}


def tables(document: Row) -> str:
    """Return the bench's figures in Markdown; of ``bench memory`` the points by family, too."""
    if document["bench"] in TITLES:
        return f"## {TITLES[document['bench']]}\n\n{figures_table(document['rows'])}"
    return f"## Figures\n\n{figures_table(document['rows'])}\n\n## By family\n\n{_families(document['details'])}"


def _families(points: Sequence[Row]) -> str:
    named: dict[str, list[Row]] = {}
    for one in points:
        named.setdefault(one["family"], []).append(one)
    heads = ("family", "points", "live bytes", "worst", "MemTracker", "process", "worst", "above the bound")
    return markdown_table(heads, [_family(name, named[name]) for name in sorted(named)])


def _family(name: str, points: Sequence[Row]) -> list[str]:
    live, tracker, process = (
        [abs(error) for one in points if (error := one[f"{kind}_error_percent"]) is not None]
        for kind in ("live", "tracker", "process")
    )
    tracked = f"{fmean(tracker):.1f} %" if tracker else "no answer"
    above = sum(one["process_bytes"] > one["bound_bytes"] for one in points)
    return [
        name, str(len(points)), f"{fmean(live):.1f} %", f"{max(live):.1f} %", tracked,
        f"{fmean(process):.1f} %", f"{max(process):.1f} %", f"{above} of {len(points)}",
    ]  # fmt: skip


if __name__ == "__main__":
    documents = (msgspec.json.decode(Path(name).read_bytes()) for name in sys.argv[1:])
    sys.stdout.write("\n\n".join(map(tables, documents)) + "\n")
