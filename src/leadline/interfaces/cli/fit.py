"""``leadline fit``: check whether a job fits into memory, and which change would make it fit."""

from pathlib import Path

import click

from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import DEFAULT_RISK
from leadline.app.estimate.fit import fit as fit_verb
from leadline.core.errors import InvalidInput, NothingFits
from leadline.core.fit import ChangeCost, FitChange, FitReport, format_probability
from leadline.core.units import format_bytes, format_duration
from leadline.core.workload import Workload
from leadline.interfaces.cells import FIT_VERDICTS
from leadline.interfaces.cli.command import FILE, command, flag, json_option, option
from leadline.interfaces.cli.memory_plot import FORMATS, plot_in_terminal, save_plot
from leadline.interfaces.cli.output import print_json, print_note, print_reasons, print_table, status
from leadline.interfaces.cli.workload_options import takes_workload
from leadline.interfaces.documents import fit_document

ASKS = {ChangeCost.NOTHING: "", ChangeCost.HARDWARE: "hardware", ChangeCost.RESULTS: "other results"}
WIDTH = 40
"""Columns of a memory bar."""
SHOWN = 10


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
    with status(f"estimating {work.name}", quiet=json) as update:
        answers = fit_verb(
            work, toolbox(), on=on, risk=risk, changes=not no_changes, picture=timeline or plot is not None,
            progress=lambda variant: update(f"trying {variant}"),
        )  # fmt: skip
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
    options = " ".join(best.options)
    return f"does not fit on {places}; it would with {options or best.what}"


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
