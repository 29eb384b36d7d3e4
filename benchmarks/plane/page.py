"""The tables of the documentation's page on the Intelligence Plane, made of what ``leadline bench plane`` wrote.

``python -m benchmarks.plane.page RESULT.json [PART.json ...]`` prints them in Markdown; what was measured again,
with ``--only PART``, stands in place of what the whole run had.
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
"""How the first row of each part of the bench begins, and its heading."""
AS_MATRIX = ("A trace replayed", "Waits")


def tables(rows: Sequence[Row]) -> str:
    """Return a heading and a table for each part; of the last two one line for each way of asking or answering."""
    said = []
    for title, part in _parts(rows).items():
        plain = [one for one in part if title not in AS_MATRIX or ": " not in one["name"]]
        shown = [figures_table(plain)] if plain else []
        if title in AS_MATRIX:
            shown.append(_matrix([one for one in part if one not in plain], figure_first=title == AS_MATRIX[0]))
        said.append("\n\n".join([f"## {title}", *shown]))
    return "\n\n".join(said)


def latest(results: Sequence[Sequence[Row]]) -> list[Row]:
    """Return the rows of several results in the order of the first, each as the last that has it tells it."""
    return list({row["name"]: row for rows in results for row in rows}.values())


def _parts(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Cut the rows where a part begins."""
    found: dict[str, list[Row]] = {}
    coming, title = dict(PARTS), ""
    for row in rows:
        for begins in [one for one in coming if row["name"].startswith(one)]:
            title = coming.pop(begins)
        found.setdefault(title, []).append(row)
    return found


def _matrix(rows: Sequence[Row], *, figure_first: bool) -> str:
    """Turn rows named ``FIGURE: WAY`` or ``WAY: FIGURE`` into one line for each way, with the figures as columns."""
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        left, right = row["name"].split(": ", 1) if figure_first else row["name"].rsplit(": ", 1)
        figure, way = (left, right) if figure_first else (right, left)
        cells.setdefault(way, {})[figure] = value_text(row)
    columns = list(dict.fromkeys(figure for each in cells.values() for figure in each))
    return markdown_table(
        ("", *columns), [[way, *(each.get(figure, "") for figure in columns)] for way, each in cells.items()]
    )


if __name__ == "__main__":
    decoded = [msgspec.json.decode(Path(name).read_bytes())["rows"] for name in sys.argv[1:]]
    sys.stdout.write(tables(latest(decoded)) + "\n")
