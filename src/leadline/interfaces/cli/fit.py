"""``leadline fit``: does a job fit into memory, how surely, and what would make it fit."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import DEFAULT_RISK
from leadline.app.estimate.fit import fit as fit_verb
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput, NothingFits
from leadline.core.fit import ChangeCost, FitChange, FitReport, format_probability
from leadline.core.units import format_bytes, format_duration
from leadline.core.workload import Workload
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.memory_plot import FORMATS, plot_in_terminal, save_plot
from leadline.interfaces.cli.output import Json, err, out, print_json
from leadline.interfaces.cli.workload_options import takes_workload

app = CommandApp()

EXAMPLES = """\
Examples:
  leadline fit config.json --batch 16 --seq 4096 --on "A100 SXM4 40GB"
  leadline fit train.py:build --input 64x3x224x224 --on T4 --risk 0.01
  leadline fit --on Pitzer -- python train.py --batch-size 64"""

ASKS = {ChangeCost.NOTHING: "", ChangeCost.HARDWARE: "hardware", ChangeCost.RESULTS: "other results"}
WIDTH = 40
"""Columns of the bar of what memory holds."""
SHOWN = 10


@app.command(epilog=EXAMPLES)
@takes_workload
def fit(
    work: Workload,
    *,
    on: Annotated[
        list[str] | None,
        typer.Option(metavar="PLACE", help="Where: SYSTEM, SYSTEM:PARTITION, a DEVICE, or local; repeat for more."),
    ] = None,
    risk: Annotated[float, typer.Option(metavar="SHARE", help="Accepted probability of running out.")] = DEFAULT_RISK,
    no_changes: Annotated[
        bool, typer.Option("--no-changes", help="Only say whether it fits; ask about nothing else.")
    ] = False,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Draw what the device holds over one step, here in the terminal.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw it into an .svg or .png file.", show_default="none"),
    ] = None,
    json: Json = False,
) -> None:
    """Say whether a job fits into memory, of the device and of the host, and what would make it fit."""
    if not on:
        raise InvalidInput("leadline fit needs a place: name a device or a system with --on")
    if plot is not None and plot.suffix.lower() not in FORMATS:
        raise InvalidInput(f"--plot is {plot}, but only {' and '.join(FORMATS)} files can be drawn: give such a name")
    with err().status("estimating") as status:
        answers = fit_verb(
            work, toolbox(), on=on, risk=risk, changes=not no_changes, picture=timeline or plot is not None,
            progress=lambda what: status.update(f"asking about {what}"),
        )  # fmt: skip
    if json:
        each = [{**to_document(one, "leadline.fit/1"), "fits": one.fits} for one in answers]
        print_json(each[0] if len(each) == 1 else {"schema": "leadline.fits/1", "fits": each})
    else:
        _show_all(answers, timeline=timeline)
    if plot is not None:
        _draw(answers, plot)
    known = [one for one in answers if one.fits is False]
    if known and not any(one.fits for one in answers):
        raise NothingFits(_nothing(known))


def _draw(answers: list[FitReport], path: Path) -> None:
    """Draw the first place of which there is something to draw."""
    drawn = next((one for one in answers if one.moments), None)
    if drawn is None:
        raise InvalidInput(f"there is no timeline of {answers[0].place} to draw: name a GPU with --on")
    save_plot(drawn, path)
    err().print(f"drawn into {path}", markup=False)


def _nothing(answers: list[FitReport]) -> str:
    places = " or ".join(one.place for one in answers)
    best = next((change for one in answers for change in one.changes if change.fits), None)
    if best is None:
        return f"does not fit on {places}"
    options = " ".join(best.options)
    return f"does not fit on {places}; it would with {options or best.what}"


def _show_all(answers: list[FitReport], *, timeline: bool) -> None:
    for number, one in enumerate(answers):
        if number:
            out().print()
        _show(one)
        if timeline and one.moments:
            for line in plot_in_terminal(one):
                out().print(line, soft_wrap=True)


def _show(answer: FitReport) -> None:
    console = out()
    verdict = {True: "fits", False: "does not fit", None: "not known"}[answer.fits]
    console.print(f"{answer.place}: {verdict}", style="bold", markup=False)
    for check in answer.checks:
        console.print(f"  {check.describe}", markup=False, soft_wrap=True)
    if answer.checks[0].kind == "GPU":
        _show_parts(answer)
    if answer.host_parts_bytes:
        _show_host(answer)
    if answer.largest_batch is not None:
        if answer.largest_batch:
            said = f"largest batch that fits at {format_probability(answer.accepted_risk)} risk: {answer.largest_batch}"
        else:
            said = "not even a batch of 1 fits"
        console.print(f"  {said}", markup=False)
    if answer.serving is not None:
        console.print(f"  {answer.serving.describe}", markup=False, soft_wrap=True)
    why = (f"no other batch was asked about: {answer.why_no_batch}",) if answer.why_no_batch else ()
    for note in dict.fromkeys((*why, *answer.notes)):
        console.print(f"  · {note}", style="dim", markup=False, soft_wrap=True)
    if answer.changes:
        console.print(_table(answer.changes))


def _show_parts(answer: FitReport) -> None:
    """Draw what the device holds at the peak, to the scale of what is there or needed, whichever is more."""
    check, parts = answer.checks[0], answer.estimate.basis.memory_breakdown_bytes
    rest = max(check.needed_bytes - sum(parts.values()), 0.0)
    whole = max(check.needed_bytes, check.there_bytes or 0.0)
    _bars([*_by_size(parts), ("allocator, context and doubt", rest)], whole)


def _show_host(answer: FitReport) -> None:
    """Draw what the host holds for one process at the peak, to the scale of their sum."""
    several = answer.checks[0].kind == "GPU"
    out().print(f"  on the host{', for each device' if several else ''}:", markup=False)
    _bars(_by_size(answer.host_parts_bytes), sum(answer.host_parts_bytes.values()))


def _by_size(parts: dict[str, float]) -> list[tuple[str, float]]:
    return sorted((part for part in parts.items() if part[1]), key=lambda part: -part[1])


def _bars(rows: list[tuple[str, float]], whole: float) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for name, size in rows:
        table.add_row(
            f"  {name.replace('-', ' ').replace('_', ' ')}", format_bytes(size), "█" * round(WIDTH * size / whole)
        )
    out().print(table)


def _table(changes: tuple[FitChange, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in (("change", "left"), ("needs", "right"), ("risk", "right"), ("step", "right"),
                          ("time", "right"), ("cost", "right"), ("asks for", "left")):  # fmt: skip
        table.add_column(name, justify=justify, overflow="fold" if name == "change" else "ellipsis")  # type: ignore[arg-type]
    for change in changes[:SHOWN]:
        mark = "" if change.fits else " !"
        options = " ".join(change.options)
        what = f"{change.what}: {options}" if options else change.what
        table.add_row(
            Text(what),
            Text(f"{format_bytes(change.check.needed_bytes)}{mark}", style="" if change.fits else "red"),
            format_probability(change.check.risk) if change.check.risk is not None else "",
            format_duration(change.step_s.point) if change.step_s else "not known",
            _times(change.slower),
            _times(change.dearer),
            ASKS[change.asks],
        )
    return table


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"× {ratio:.2f}"
