"""Rows of a result file as Markdown tables for the documentation.

``python -m benchmarks.markdown RESULT.json`` prints its rows.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.results import target_sign

Row = Mapping[str, Any]


def figures_table(rows: Sequence[Row]) -> str:
    """Return one line for each row, its value in bold where it misses the target."""
    heads = ("metric", "value", "target", "baseline", "n", "how")
    return markdown_table(
        heads,
        [[row["name"], value_text(row), target_text(row), _baseline(row), str(row["n"]), row["how"]] for row in rows],
    )


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; bars within cells are escaped."""
    lines = (heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def value_text(row: Row) -> str:
    """Write a row's value, in bold where it misses the target."""
    if row["value"] is None:
        return "not measured"
    text = _with_unit(row["value"], row["unit"])
    return f"**{text}**" if row["met"] is False else text


def target_text(row: Row) -> str:
    """Write a row's target: a bound, or a range."""
    if row["target"] is None:
        return ""
    if row.get("target_high") is not None:
        return f"{row['target']:g} to {row['target_high']:g}"
    return f"{target_sign(row['value'], row['target'], row['met'])}{row['target']:g}"


def _baseline(row: Row) -> str:
    return "" if row["baseline"] is None else _with_unit(row["baseline"], row["unit"])


def _with_unit(number: float, unit: str) -> str:
    digits = f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"
    return f"{digits} {unit}".rstrip()


if __name__ == "__main__":
    sys.stdout.write(figures_table(msgspec.json.decode(Path(sys.argv[1]).read_bytes())["rows"]) + "\n")
