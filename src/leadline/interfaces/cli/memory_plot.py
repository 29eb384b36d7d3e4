"""What a device holds over one step, by category: in the terminal, or as a picture in a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

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
"""Category → its name, its letter in the terminal, and its colour, of Okabe and Ito's palette; from the bottom up."""


def plot_in_terminal(answer: FitReport) -> list[Text]:
    """Return the lines of a chart: the step to the right, bytes upwards, each cell by the letter of what fills it."""
    bins = _binned(answer.moments, COLUMNS)
    there = answer.checks[0].there_bytes or 0.0
    top = max(*(one.total_bytes for one in bins), there if there < 2 * max(one.total_bytes for one in bins) else 0)
    lines = [Text("memory over one step", style="bold")]
    for row in range(ROWS, 0, -1):
        level = (row - 0.5) / ROWS * top
        edge = there and row == max(1, round(there / top * ROWS)) and there <= top
        line = Text(f"{format_bytes(row / ROWS * top):>9} {'┤' if edge else '│'}")
        for one in bins:
            line.append(*_cell(one, level, edge=bool(edge)))
        lines.append(line)
    lines.append(Text(" " * 10 + "└" + _stages(bins)))
    used = [name for name in CATEGORIES if any(one.held_bytes.get(name) for one in bins)]
    legend = Text(" " * 11)
    for name in used:
        words, letter, colour = CATEGORIES[name]
        legend.append(letter, style=colour).append(f" {words}  ")
    if there and there <= top:
        legend.append(f"─ {format_bytes(there)} there")
    return [*lines, legend]


def _cell(one: MemorySnapshot, level: float, *, edge: bool) -> tuple[str, str]:
    below = 0.0
    for name, (_, letter, colour) in CATEGORIES.items():
        below += one.held_bytes.get(name, 0)
        if level < below:
            return letter, colour
    return ("─" if edge else " "), ""


def _stages(bins: Sequence[MemorySnapshot]) -> str:
    """Return the axis, with the name of each stage where it begins and there is room for it."""
    axis = ["─"] * len(bins)
    begun = [at for at, one in enumerate(bins) if at == 0 or one.stage != bins[at - 1].stage]
    for at, end in zip(begun, [*begun[1:], len(bins)], strict=True):
        name = f" {bins[at].stage} "
        if len(name) <= end - at:
            axis[at : at + len(name)] = name
    return "".join(axis)


def _binned(moments: Sequence[MemorySnapshot], count: int) -> list[MemorySnapshot]:
    """Return ``count`` moments evenly over a step: the fullest of each part, or what the part before left."""
    parts: list[MemorySnapshot | None] = [None] * count
    for one in moments:
        place = min(int(one.share * count), count - 1)
        held = parts[place]
        if held is None or one.total_bytes > held.total_bytes:
            parts[place] = one
    found: list[MemorySnapshot] = []
    for part in parts:
        found.append(part or found[-1])
    return found


def save_plot(answer: FitReport, path: Path) -> None:
    """Write the picture of a step's memory to an SVG or PNG file.

    Raises:
        InvalidInput: the file's ending is neither.
        MissingExtra: matplotlib is not installed.
        LeadlineError: the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise InvalidInput(f"{path} is no {' or '.join(FORMATS)} file: give --plot such a name")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - only a picture needs it
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtra("leadline fit --plot", "train") from error
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    _drawn(figure.add_subplot(), answer)
    try:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    except OSError as error:
        raise LeadlineError(f"{path} cannot be written ({error.strerror}): name a file elsewhere") from error


def _drawn(axes: Any, answer: FitReport) -> None:  # noqa: ANN401 - matplotlib's own
    moments = answer.moments
    shares = [100 * one.share for one in moments]
    used = [name for name in CATEGORIES if any(one.held_bytes.get(name) for one in moments)]
    rows = [[one.held_bytes.get(name, 0) / GIB for one in moments] for name in used]
    axes.stackplot(
        shares, rows, labels=[CATEGORIES[name][0] for name in used], colors=[CATEGORIES[name][2] for name in used],
        step="post", linewidth=0,
    )  # fmt: skip
    axes.step(shares, [one.reserved_bytes / GIB for one in moments], where="post", color="#333333", linewidth=1,
              label="reserved by the allocator")  # fmt: skip
    check = answer.checks[0]
    if check.there_bytes:
        axes.axhline(check.there_bytes / GIB, color="#C44536", linewidth=1.2)
        axes.annotate(f"{answer.device}: {format_bytes(check.there_bytes)}", (shares[0], check.there_bytes / GIB),
                      xytext=(4, -3), textcoords="offset points", va="top", color="#C44536")  # fmt: skip
    begun = [at for at, one in enumerate(moments) if at and one.stage != moments[at - 1].stage]
    for at in begun:
        axes.axvline(shares[at], color="#BBBBBB", linewidth=0.8, linestyle=":")
        axes.annotate(moments[at].stage, (shares[at], 1.0), xycoords=("data", "axes fraction"), xytext=(3, 2),
                      textcoords="offset points", color="#666666", fontsize=8, annotation_clip=False)  # fmt: skip
    axes.set(ylabel="GiB", xlim=(shares[0], shares[-1]))
    axes.set_xlabel("% of the times that the step takes memory or gives it back")
    axes.set_title(f"Memory over one step on {answer.place}", loc="left", pad=18)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8, reverse=True)
