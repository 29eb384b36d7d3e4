"""Tables as plain text, for terminals, pipes and notebooks, and the cells that all interfaces write alike."""

import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from unicodedata import combining, east_asian_width

from leadline.core.estimate import Estimate, Interval
from leadline.core.jobs import ResourceSpec
from leadline.core.runs import Value
from leadline.core.units import HOUR_S, format_bytes, format_clock, format_duration

GAP = "  "
"""Between two columns."""
LEAST_WORDS = 12
"""Width that a column of words keeps when the table is too wide."""
STYLE = re.compile("\x1b\\[[0-9;]*m")
"""Colour and weight, as terminals read them."""
FIT_VERDICTS = {True: "fits", False: "does not fit", None: "unknown"}


def table_lines(
    titles: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, words: Collection[str] = (),
    style_title: Callable[[str], str] = str,
) -> list[str]:  # fmt: skip
    """Return the lines of a table; a column without a title and without text is left out.

    Columns of words are aligned left, and wrap if the table is too wide. All others are aligned right and never break:
    where they do not fit, each row takes several lines.
    """
    kept = [at for at in range(len(titles)) if titles[at] or any(row[at] for row in rows)]
    columns = [[style_title(titles[at]), *(row[at] for row in rows)] for at in kept]
    is_text = [titles[at] in words for at in kept]
    full = [max(map(cell_width, column)) for column in columns]
    widths = list(full)
    over = sum(widths) + len(GAP) * (len(widths) - 1) - width
    for at in sorted((at for at, text in enumerate(is_text) if text), key=lambda at: -full[at]):
        widths[at] -= max(0, min(over, full[at] - LEAST_WORDS))
        over -= full[at] - widths[at]
    if over > 0:  # narrow columns of words do not help: keep them whole
        widths = [min(column, width) if text else column for column, text in zip(full, is_text, strict=True)]
    return [
        line
        for number in range(len(rows) + 1)
        for line in _row_lines([column[number] for column in columns], widths, is_text, width)
    ]


def _row_lines(cells: Sequence[str], widths: Sequence[int], is_text: Sequence[bool], width: int) -> list[str]:
    """Return the lines of one row: columns beyond the width go to the next line, indented."""
    bands: list[list[int]] = [[]]
    used = 0
    for at, column in enumerate(widths):
        if bands[-1] and used + column > width:
            bands.append([])
            used = 0
        used += column + len(GAP)
        bands[-1].append(at)
    lines = []
    for band in bands:
        wrapped = [_wrapped(cells[at], widths[at]) if is_text[at] else [cells[at]] for at in band]
        for number in range(max(map(len, wrapped))):
            parts = [texts[number] if number < len(texts) else "" for texts in wrapped]
            fills = [" " * (widths[at] - cell_width(part)) for at, part in zip(band, parts, strict=True)]
            line = GAP.join(
                part + fill if is_text[at] else fill + part for at, part, fill in zip(band, parts, fills, strict=True)
            )
            lines.append((GAP * (band is not bands[0]) + line).rstrip())
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    return [text] if cell_width(text) <= width else textwrap.wrap(text, width, break_on_hyphens=False)


def cell_width(text: str) -> int:
    """Return the columns of a terminal that a text takes, without its style."""
    text = STYLE.sub("", text)
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text if not combining(letter))


def expected_s(estimate: Estimate) -> float:
    """Return the most likely seconds of a job, or of a step where the length of the job is unknown."""
    interval = estimate.elapsed_s or estimate.step_s
    return interval.point if interval else float("inf")


def varying_names(parameters: Sequence[Mapping[str, Value]]) -> list[str]:
    """Return the names of parameters with different values."""
    names = dict.fromkeys(name for parameter in parameters for name in parameter)
    return [name for name in names if len({parameter.get(name) for parameter in parameters}) > 1]


def format_place(system: str | None, partition: str | None) -> str:
    """Return a target as it is written after ``--on``."""
    return f"{system}:{partition}" if system and partition else system or ""


def format_device(device: str, gpus: int) -> str:
    """Return a device, with how many of them if there are several."""
    return device if gpus <= 1 else f"{gpus} × {device}"


def format_limits(request: ResourceSpec) -> tuple[str, str]:
    """Return the walltime and the memory of a node of a request; empty if the site chooses them."""
    walltime = format_clock(request.walltime_s) if request.walltime_s else ""
    return walltime, format_bytes(request.memory_bytes_per_node) if request.memory_bytes_per_node else ""


def format_time(interval: Interval | None) -> str:
    """Return the most likely time."""
    return format_duration(interval.point) if interval else "unknown"


def format_size(interval: Interval | None) -> str:
    """Return the most likely number of bytes."""
    return format_bytes(interval.point) if interval else "unknown"


def format_figures(value: float, figures: int = 4) -> str:
    """Return a number with some figures, never with an exponent for a large one: ``12.3``, ``12,346``."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.{figures}g}"


def format_currency(amount: float, currency: str | None) -> str:
    """Return an amount of money, or of a site's units: ``$12.34``, ``2.39 SU``."""
    return (
        f"${format_figures(amount)}" if currency == "USD" else f"{format_figures(amount, 3)} {currency or ''}".rstrip()
    )


def format_range(interval: Interval | None) -> str:
    """Return the bounds of a time; empty if it is unknown."""
    return f"{format_duration(interval.low)} – {format_duration(interval.high)}" if interval else ""


def format_energy(energy_j: float) -> str:
    """Return an energy in watt-hours, or in joules if it is small."""
    return (
        f"{format_figures(energy_j / HOUR_S, 3)} Wh" if energy_j >= HOUR_S / 100 else f"{format_figures(energy_j, 3)} J"
    )
