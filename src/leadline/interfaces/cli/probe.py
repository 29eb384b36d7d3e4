"""``leadline probe``: run the first steps of an unmodified command here, and scale them to the whole job."""

import sys
from typing import Annotated

import typer
from rich.table import Table

from leadline.app.jobs.probe import LIMIT_S, SCHEMA, TIME_S, ProbeLimits, probe, suggested_walltime_s
from leadline.core.documents import to_document
from leadline.core.errors import JobFailed
from leadline.core.estimate import Interval
from leadline.core.jobs import JobState
from leadline.core.progress import LoopProgress, Probe
from leadline.core.units import format_bytes, format_clock, format_duration, parse_duration_s
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.output import Json, err, out, print_json
from leadline.interfaces.cli.usage_errors import COMMAND_PLACEHOLDER

app = CommandApp()

EXAMPLES = """\
Examples:
  leadline probe -- python train.py --epochs 50
  leadline probe --steps 200 --json -- python -m solver --grid 512
  leadline probe --time 30s --steps-total 100000 -- ./simulate input.nml"""


@app.command("probe", epilog=EXAMPLES)
def probe_command(
    subject: Annotated[
        list[str] | None,
        typer.Argument(metavar=f"-- {COMMAND_PLACEHOLDER}…", help="Your command after --.", show_default=False),
    ] = None,
    *,
    steps: Annotated[
        int | None,
        typer.Option(metavar="N", help="End it after so many units of work.", show_default="as many as --time allows"),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="End it after so long at work, start-up not counted.",
            show_default=f"{TIME_S:g}s; none with --steps",
        ),
    ] = None,
    limit: Annotated[
        str, typer.Option(metavar="TIME", help="End it after so long in any case, start-up counted.")
    ] = f"{LIMIT_S / 60:g}m",
    steps_total: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Units of work in the whole job, where the script does not show it.",
            show_default="read from the loops",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run the first steps of your unmodified command here, and scale them to the whole job.

    The command runs as it is: what it writes in its first steps, it writes.
    """
    limits = ProbeLimits(steps, parse_duration_s(time) if time else None, parse_duration_s(limit))
    found = probe(subject or [], limits, units_total=steps_total, output=sys.stderr.fileno())
    if json:
        print_json(to_document(found, SCHEMA))
    else:
        _show(found)
    if found.state is JobState.FAILED:
        raise JobFailed(found.forecast.unknown["elapsed_s"])


def _show(found: Probe) -> None:
    """Print what was seen, what was scaled, and how to go on."""
    console = out()
    console.print(_seen(found))
    console.print(_scaled(found))
    for name, reason in found.forecast.unknown.items():
        console.print(f"{name.removesuffix('_s')} is not known: {reason}", markup=False, soft_wrap=True)
    for sentence in found.forecast.assumptions:
        console.print(f"assumed: {sentence}", markup=False, soft_wrap=True)
    for sentence in found.remarks:
        err().print(f"note: {sentence}", markup=False, soft_wrap=True)
    if not found.finished:
        err().print("note: the files that the command wrote in these steps are there", markup=False, soft_wrap=True)
    if (ask_s := suggested_walltime_s(found)) is not None:
        words = f"leadline submit --time {format_clock(ask_s)} -- {' '.join(found.command)}"
        console.print(f"ask for it: {words}", markup=False, soft_wrap=True)


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, show_header=False)
    table.add_column("what", overflow="fold")
    table.add_column("figure", justify="right", no_wrap=True)
    table.add_column("how", overflow="fold")
    return table


def _seen(found: Probe) -> Table:
    progress = found.progress
    table = _table(f"Seen ({progress.source})" if progress else "Seen")
    table.add_row("elapsed", format_duration(found.measured["elapsed_s"].value), "")
    if progress is not None:
        if progress.startup_s is not None:
            table.add_row("start-up", format_duration(progress.startup_s), "before the first unit of work")
        for level in progress.levels:
            table.add_row(level.name, f"{level.count} done", _of(level))
        for name, phase_s in progress.phases.items():
            table.add_row(f"phase {name}", format_duration(phase_s), "as the job names it")
    if (memory := found.measured.get("host_memory_bytes")) is not None:
        table.add_row("memory", f"≥ {format_bytes(memory.value)}", "peak so far: a lower bound of the whole job's")
    if (memory := found.measured.get("gpu_memory_bytes")) is not None:
        table.add_row("GPU memory", f"≥ {format_bytes(memory.value)}", "peak so far: a lower bound of the whole job's")
    return table


def _of(level: LoopProgress) -> str:
    length = "of a number not known" if level.length is None else f"of {level.length}"
    passes = " a pass" if level.passes else ""
    where = f", {level.where}" if level.where else ""
    median = f"; median {format_duration(level.median_s)}" if level.median_s is not None else ""
    return f"{length}{passes}{where}{median}"


def _scaled(found: Probe) -> Table:
    scaled = found.forecast
    table = _table("Scaled to the whole job")
    if scaled.unit_s is not None:
        table.add_row("a unit, steady", format_duration(scaled.unit_s.point), f"{_range(scaled.unit_s)}; {scaled.unit}")
    if scaled.warmup_s:
        table.add_row("first units", f"+ {format_duration(scaled.warmup_s)}", "longer than steady ones")
    if scaled.pass_s is not None:
        besides = f"{format_duration(scaled.between_s)} of it besides the units" if scaled.between_s else ""
        table.add_row("an outer pass", format_duration(scaled.pass_s), besides)
    if scaled.units is not None:
        passes = f"in {scaled.passes} passes" if scaled.passes else ""
        table.add_row("units", f"{scaled.units}", passes)
    elapsed = "not known" if scaled.elapsed_s is None else format_duration(scaled.elapsed_s.point)
    table.add_row("elapsed", elapsed, "" if scaled.elapsed_s is None or found.finished else _range(scaled.elapsed_s))
    return table


def _range(interval: Interval) -> str:
    return f"{interval.level:.0%} range {format_duration(interval.low)} – {format_duration(interval.high)}"
