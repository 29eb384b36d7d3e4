"""Plot device memory over one step by category, in the terminal or to a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from leadline.core.errors import InvalidInput, LeadlineError, MissingExtra
from leadline.core.fit import FitReport, MemorySnapshot
from leadline.core.units import GIB, format_bytes

COLUMNS, ROWS = 72, 12
FORMATS = (".svg", ".png")
CATEGORIES = {
    "parameter": ("weights", "W", "#0072B2"), "optimizer-state": ("optimizer state", "O", "#56B4E9"),
    "gradient": ("gradients", "G", "#009E73"), "kv-cache": ("KV cache", "K", "#CC79A7"),
    "input": ("inputs", "I", "#999999"), "activation": ("activations", "A", "#D55E00"),
    "temporary": ("temporaries", "T", "#E69F00"), "workspace": ("workspaces", "S", "#F0E442"),
    "other": ("other", "·", "#BBBBBB"),
}  # fmt: skip
"""Category → (name, letter, colour of Okabe and Ito's palette), from the bottom up."""


def plot_in_terminal(answer: FitReport) -> list[str]:
    """Return a chart: the step on the x-axis, bytes on the y-axis, each cell with the letter of its category."""
    bins = _bin_moments(answer.moments, COLUMNS)
    capacity, peak = answer.checks[0].there_bytes or 0.0, max(part.total_bytes for part in bins)
    top = max(peak, capacity) if capacity < 2 * peak else peak
    lines = [click.style("memory over one step", bold=True)]
    for row in range(ROWS, 0, -1):
        level = (row - 0.5) / ROWS * top
        edge = capacity and row == max(1, round(capacity / top * ROWS)) and capacity <= top
        cells = "".join(_cell(part, level, edge=bool(edge)) for part in bins)
        lines.append(f"{format_bytes(row / ROWS * top):>9} {'┤' if edge else '│'}{cells}")
    lines.append(" " * 10 + "└" + _stages(bins))
    used = [name for name in CATEGORIES if any(part.held_bytes.get(name) for part in bins)]
    legend = " " * 11
    for name in used:
        words, letter, colour = CATEGORIES[name]
        legend += f"{_coloured(letter, colour)} {words}  "
    if capacity and capacity <= top:
        legend += f"─ {format_bytes(capacity)} capacity"
    return [*lines, legend]


def _cell(moment: MemorySnapshot, level: float, *, edge: bool) -> str:
    below = 0.0
    for name, (_, letter, colour) in CATEGORIES.items():
        below += moment.held_bytes.get(name, 0)
        if level < below:
            return _coloured(letter, colour)
    return "─" if edge else " "


def _coloured(letter: str, colour: str) -> str:
    red, green, blue = bytes.fromhex(colour[1:])
    return click.style(letter, fg=(red, green, blue))


def _stages(bins: Sequence[MemorySnapshot]) -> str:
    """Return the axis, with the name of each stage where it fits."""
    axis = ["─"] * len(bins)
    starts = [at for at, moment in enumerate(bins) if at == 0 or moment.stage != bins[at - 1].stage]
    for at, end in zip(starts, [*starts[1:], len(bins)], strict=True):
        name = f" {bins[at].stage} "
        if len(name) <= end - at:
            axis[at : at + len(name)] = name
    return "".join(axis)


def _bin_moments(moments: Sequence[MemorySnapshot], count: int) -> list[MemorySnapshot]:
    """Return ``count`` evenly spaced moments: the peak of each interval, or the previous one if it is empty."""
    parts: dict[int, MemorySnapshot] = {}
    for moment in moments:
        index = min(int(moment.share * count), count - 1)
        parts[index] = max(parts.get(index, moment), moment, key=lambda part: part.total_bytes)
    filled: list[MemorySnapshot] = []
    for index in range(count):
        filled.append(parts[index] if index in parts else filled[-1])
    return filled


def save_plot(answer: FitReport, path: Path) -> None:
    """Write the plot to an SVG or PNG file.

    Raises:
        InvalidInput: another file type.
        MissingExtra: matplotlib is not installed.
        LeadlineError: the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise InvalidInput(f"{path} is not a {' or '.join(FORMATS)} file")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - matplotlib loads on use
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtra("leadline fit --plot", "train") from error
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    _draw(figure.add_subplot(), answer)
    try:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    except OSError as error:
        raise LeadlineError(f"cannot write {path} ({error.strerror})") from error


def _draw(axes: Any, answer: FitReport) -> None:  # noqa: ANN401 - matplotlib's own
    moments = answer.moments
    shares = [100 * moment.share for moment in moments]
    used = [name for name in CATEGORIES if any(moment.held_bytes.get(name) for moment in moments)]
    rows = [[moment.held_bytes.get(name, 0) / GIB for moment in moments] for name in used]
    axes.stackplot(
        shares, rows, labels=[CATEGORIES[name][0] for name in used], colors=[CATEGORIES[name][2] for name in used],
        step="post", linewidth=0,
    )  # fmt: skip
    axes.step(shares, [moment.reserved_bytes / GIB for moment in moments], where="post", color="#333333", linewidth=1,
              label="reserved by the allocator")  # fmt: skip
    check = answer.checks[0]
    if check.there_bytes:
        axes.axhline(check.there_bytes / GIB, color="#C44536", linewidth=1.2)
        axes.annotate(f"{answer.device}: {format_bytes(check.there_bytes)}", (shares[0], check.there_bytes / GIB),
                      xytext=(4, -3), textcoords="offset points", va="top", color="#C44536")  # fmt: skip
    starts = [at for at, moment in enumerate(moments) if at and moment.stage != moments[at - 1].stage]
    for at in starts:
        axes.axvline(shares[at], color="#BBBBBB", linewidth=0.8, linestyle=":")
        axes.annotate(moments[at].stage, (shares[at], 1.0), xycoords=("data", "axes fraction"), xytext=(3, 2),
                      textcoords="offset points", color="#666666", fontsize=8, annotation_clip=False)  # fmt: skip
    axes.set(ylabel="GiB", xlim=(shares[0], shares[-1]))
    axes.set_xlabel("% of the step's memory events")
    axes.set_title(f"Memory over one step on {answer.place}", loc="left", pad=18)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8, reverse=True)
