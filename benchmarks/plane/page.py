"""The tables of the documentation's page on the Intelligence Plane, from result files of ``bench plane``.

``python -m benchmarks.plane.page RESULT.json [PART.json ...]`` prints them in Markdown. A part in a later file, such
as one of ``--only PART``, replaces that in an earlier one.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.markdown import Row, figures_table, markdown_table, value_text

PARTS = {
    "jobs handed over": "Rates and the plane's own cost",
    "faults injected": "Faults",
    "loop: ": "The closed loop",
    "finish time": "Finish time and memory of what runs",
    "replay of": "A trace replayed",
    "real waits": "Waits",
}
"""Beginning of the first row's name of each part, and its heading."""
AS_MATRIX = ("A trace replayed", "Waits")


def tables(results: Sequence[Sequence[Row]]) -> str:
    """Return a heading and a table for each part, from the last result that has it.

    Those of the last two parts have one line for each method.
    """
    parts: dict[str, list[Row]] = {}
    for rows in results:
        parts |= _parts(rows)
    sections = []
    for title, part in parts.items():
        plain = [row for row in part if title not in AS_MATRIX or ": " not in row["name"]]
        shown = [figures_table(plain)] if plain else []
        if title in AS_MATRIX:
            shown.append(_matrix([row for row in part if row not in plain], metric_first=title == AS_MATRIX[0]))
        sections.append("\n\n".join([f"## {title}", *shown]))
    return "\n\n".join(sections)


def _parts(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Split the rows where a part begins."""
    parts: dict[str, list[Row]] = {}
    coming, title = dict(PARTS), ""
    for row in rows:
        for begins in [prefix for prefix in coming if row["name"].startswith(prefix)]:
            title = coming.pop(begins)
        parts.setdefault(title, []).append(row)
    return parts


def _matrix(rows: Sequence[Row], *, metric_first: bool) -> str:
    """Turn rows named ``METRIC: METHOD`` or ``METHOD: METRIC`` into one line for each method, metrics as columns."""
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        parts = row["name"].split(": ", 1) if metric_first else row["name"].rsplit(": ", 1)
        metric, method = parts if metric_first else parts[::-1]
        cells.setdefault(method, {})[metric] = value_text(row)
    columns = list(dict.fromkeys(metric for line in cells.values() for metric in line))
    return markdown_table(
        ("", *columns), [[method, *(line.get(metric, "") for metric in columns)] for method, line in cells.items()]
    )


if __name__ == "__main__":
    decoded = [msgspec.json.decode(Path(name).read_bytes())["rows"] for name in sys.argv[1:]]
    sys.stdout.write(tables(decoded) + "\n")
