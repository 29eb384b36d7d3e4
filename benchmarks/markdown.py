"""Figures of a bench in Markdown, as the documentation's pages show them: made of the rows that it wrote."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.results import target_sign

Row = Mapping[str, Any]


def figures_table(rows: Sequence[Row]) -> str:
    """Return one line for each row: its value, bold where it misses its target, and what stands beside it."""
    heads = ("figure", "value", "target", "beside", "n", "how")
    return markdown_table(
        heads,
        [[one["name"], value_text(one), target_text(one), _beside(one), str(one["n"]), one["how"]] for one in rows],
    )


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; a bar in a cell stays one."""
    lines = (heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def value_text(row: Row) -> str:
    """Write a figure, bold where it misses its target."""
    if row["value"] is None:
        return "not measured"
    said = _figure(row["value"], row["unit"])
    return f"**{said}**" if row["met"] is False else said


def target_text(row: Row) -> str:
    """Write a row's target: a bound, or a range."""
    if row["target"] is None:
        return ""
    if row.get("target_high") is not None:
        return f"{row['target']:g} to {row['target_high']:g}"
    return f"{target_sign(row['value'], row['target'], row['met'])}{row['target']:g}"


def _beside(row: Row) -> str:
    """Write what the method beside it reached, which ``how`` names."""
    return "" if row["baseline"] is None else _figure(row["baseline"], row["unit"])


def _figure(number: float, unit: str) -> str:
    said = f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"
    return f"{said} {unit}".rstrip()
