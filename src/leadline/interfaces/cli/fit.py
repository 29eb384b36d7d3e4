"""``leadline fit``: check whether a job fits into memory, and which change would make it fit; plot the memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from leadline.app.background import hear_steps
from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import DEFAULT_RISK
from leadline.app.estimate.fit import fit as fit_verb
from leadline.core.errors import InvalidInput, LeadlineError, MissingExtra, NothingFits
from leadline.core.fit import ChangeCost, FitChange, FitReport, MemorySnapshot, format_probability
from leadline.core.units import GIB, format_bytes, format_duration
from leadline.core.workload import Workload
from leadline.interfaces.cli.command import FILE, command, flag, json_option, option
from leadline.interfaces.cli.output import print_json, print_note, print_reasons, print_table, status
from leadline.interfaces.cli.workload_options import takes_workload
from leadline.interfaces.documents import fit_document
from leadline.interfaces.tables import FIT_VERDICTS

ASKS = {ChangeCost.NOTHING: "", ChangeCost.HARDWARE: "hardware", ChangeCost.RESULTS: "other results"}
WIDTH = 40
"""Columns of a memory bar."""
SHOWN = 10
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


@command("fit")
@option("--on", "PLACE", "Where: SYSTEM, SYSTEM:PARTITION, a DEVICE, or local; repeatable.", multiple=True)
@option("--risk", "SHARE", "Accepted probability of running out of memory.", type=float, default=DEFAULT_RISK)
@flag("--no-changes", "Only check whether it fits.")
@flag("--timeline", "Plot device memory over one step in the terminal.")
@option("--plot", "FILE", "Save that plot to an .svg or .png file.", "none", type=FILE)
@json_option
@takes_workload
def fit(
    work: Workload, *, on: tuple[str, ...], risk: float, no_changes: bool, timeline: bool, plot: Path | None, json: bool
) -> None:
    """Check whether a job fits into device and host memory, and find changes that would make it fit."""
    if not on:
        raise InvalidInput("no target given: name a device or a system with --on")
    if plot is not None and plot.suffix.lower() not in FORMATS:
        raise InvalidInput(f"--plot is {plot}, but it must end in {' or '.join(FORMATS)}")
    with status(f"estimating {work.name}", quiet=json) as update, hear_steps(update):
        answers = fit_verb(
            work, toolbox(), on=on, risk=risk, changes=not no_changes, picture=timeline or plot is not None
        )
    if json:
        print_json(fit_document(answers))
    else:
        _show_all(answers, timeline=timeline)
    if plot is not None:
        _draw(answers, plot)
    unfit = [answer for answer in answers if answer.fits is False]
    if unfit and not any(answer.fits for answer in answers):
        raise NothingFits(_nothing(unfit))


def _draw(answers: list[FitReport], path: Path) -> None:
    """Plot the first target that has a timeline."""
    drawn = next((answer for answer in answers if answer.moments), None)
    if drawn is None:
        raise InvalidInput(f"no timeline for {answers[0].place}: name a GPU with --on")
    save_plot(drawn, path)
    print_note(f"saved to {path}")


def _nothing(answers: list[FitReport]) -> str:
    places = " or ".join(answer.place for answer in answers)
    best = next((change for answer in answers for change in answer.changes if change.fits), None)
    if best is None:
        return f"does not fit on {places}"
    return f"does not fit on {places}; it would with {' '.join(best.options) or best.what}"


def _show_all(answers: list[FitReport], *, timeline: bool) -> None:
    for number, answer in enumerate(answers):
        if number:
            click.echo()
        _show(answer)
        if timeline and answer.moments:
            for line in plot_in_terminal(answer):
                click.echo(line)


def _show(answer: FitReport) -> None:
    click.secho(f"{answer.place}: {FIT_VERDICTS[answer.fits]}", bold=True)
    for check in answer.checks:
        click.echo(f"  {check.summary}")
    if answer.checks[0].kind == "GPU":
        _print_parts(answer)
    if answer.host_parts_bytes:
        click.echo(f"  on the host{', per device' if answer.checks[0].kind == 'GPU' else ''}:")
        # The parts of one process at its peak, scaled to their sum.
        _bars(_by_size(answer.host_parts_bytes), sum(answer.host_parts_bytes.values()))
    if answer.largest_batch is not None:
        risk = format_probability(answer.accepted_risk)
        largest = f"largest batch that fits at {risk} risk: {answer.largest_batch}"
        click.echo(f"  {largest if answer.largest_batch else 'not even a batch of 1 fits'}")
    if answer.serving is not None:
        click.echo(f"  {answer.serving.summary}")
    why = (f"no other batch was tried: {answer.why_no_batch}",) if answer.why_no_batch else ()
    print_reasons((*why, *answer.notes))
    if answer.changes:
        _print_changes(answer.changes)


def _print_parts(answer: FitReport) -> None:
    """Draw the parts of device memory at the peak, scaled to the need or the capacity, whichever is larger."""
    check, parts = answer.checks[0], answer.estimate.basis.memory_breakdown_bytes
    remainder = max(check.needed_bytes - sum(parts.values()), 0.0)
    scale = max(check.needed_bytes, check.there_bytes or 0.0)
    _bars([*_by_size(parts), ("allocator, context and margin", remainder)], scale)


def _by_size(parts: dict[str, float]) -> list[tuple[str, float]]:
    return sorted((part for part in parts.items() if part[1]), key=lambda part: -part[1])


def _bars(rows: list[tuple[str, float]], whole: float) -> None:
    cells = [(name.replace("-", " ").replace("_", " "), format_bytes(size)) for name, size in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for (name, text), (_, size) in zip(cells, rows, strict=True):
        bar = "█" * round(WIDTH * size / whole)
        click.echo(f"  {name:<{widths[0]}}  {text:>{widths[1]}}  {bar}".rstrip())


def _print_changes(changes: tuple[FitChange, ...]) -> None:
    rows = []
    for change in changes[:SHOWN]:
        needed = format_bytes(change.check.needed_bytes)
        options = " ".join(change.options)
        rows.append((
            f"{change.what}: {options}" if options else change.what,
            needed if change.fits else click.style(f"{needed} !", fg="red"),
            format_probability(change.check.risk) if change.check.risk is not None else "",
            format_duration(change.step_s.point) if change.step_s else "unknown", _times(change.slower),
            _times(change.dearer), ASKS[change.asks],
        ))  # fmt: skip
    print_table(("change", "memory", "risk", "step", "time", "cost", "needs"), rows, words=("change", "needs"))


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"× {ratio:.2f}"


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
    _draw_timeline(figure.add_subplot(), answer)
    try:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    except OSError as error:
        raise LeadlineError(f"cannot write {path} ({error.strerror})") from error


def _draw_timeline(axes: Any, answer: FitReport) -> None:  # noqa: ANN401 - matplotlib's own
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
