"""``leadline probe``: run the first steps of a command, and extrapolate to the whole job."""

import sys

import click

from leadline.app.jobs.probe import LIMIT_S, SCHEMA, TIME_S, ProbeLimits, suggested_walltime_s
from leadline.app.jobs.probe import probe as probe_verb
from leadline.core.errors import JobFailed
from leadline.core.estimate import Interval
from leadline.core.jobs import JobState
from leadline.core.progress import LoopProgress, Probe
from leadline.core.units import format_bytes, format_clock, format_duration, parse_duration_s
from leadline.interfaces.cli.command import COMMAND_PLACEHOLDER, argument, command, json_option, option
from leadline.interfaces.cli.output import print_answer, print_note, print_notes, print_table
from leadline.interfaces.tables import format_range, format_time


@command("probe")
@argument("subject", f"[-- {COMMAND_PLACEHOLDER}…]", "Your command, after --.", nargs=-1)
@option("--steps", "N", "Stop after this many units of work.", "limited by --time", type=int)
@option("--time", "TIME", "Stop after this much time, start-up not included.", f"{TIME_S:g}s; none with --steps")
@option("--limit", "TIME", "Stop after this much time in any case, start-up included.", default=f"{LIMIT_S / 60:g}m")
@option(
    "--steps-total", "N", "Units of work in the whole job, if the script does not show it.", "read from the loops",
    type=int,
)  # fmt: skip
@json_option
def probe(
    subject: tuple[str, ...], *, steps: int | None, time: str | None, limit: str, steps_total: int | None, json: bool
) -> None:
    """Run the first steps of your unmodified command on this machine, and extrapolate to the whole job.

    The command really runs: files that it writes in its first steps stay.
    """
    limits = ProbeLimits(steps, parse_duration_s(time) if time else None, parse_duration_s(limit))
    probed = probe_verb(subject or [], limits, units_total=steps_total, output=sys.stderr.fileno())
    print_answer(probed, SCHEMA, _show, json=json)
    if probed.state is JobState.FAILED:
        raise JobFailed(probed.forecast.unknown["elapsed_s"])


def _show(probed: Probe) -> None:
    """Print the observations, the forecast, and how to go on."""
    _print_observed(probed)
    _print_forecast(probed)
    for name, reason in probed.forecast.unknown.items():
        click.echo(f"{name.removesuffix('_s')} unknown: {reason}")
    for sentence in probed.forecast.assumptions:
        click.echo(f"assumed: {sentence}")
    print_notes(probed.remarks)
    if not probed.finished:
        print_note("note: files that the command wrote in these steps were kept")
    if (ask_s := suggested_walltime_s(probed)) is not None:
        click.echo(f"next: leadline submit --time {format_clock(ask_s)} -- {' '.join(probed.command)}")


def _print_observed(probed: Probe) -> None:
    progress = probed.progress
    rows = [("elapsed", format_duration(probed.measured["elapsed_s"].value), "")]
    if progress is not None:
        if progress.startup_s is not None:
            rows.append(("start-up", format_duration(progress.startup_s), "before the first unit of work"))
        rows += [(level.name, f"{level.count} done", _describe_level(level)) for level in progress.levels]
        rows += [(f"phase {name}", format_duration(in_s), "named by the job") for name, in_s in progress.phases.items()]
    for name, label in (("host_memory_bytes", "memory"), ("gpu_memory_bytes", "GPU memory")):
        if (memory := probed.measured.get(name)) is not None:
            rows.append((label, f"≥ {format_bytes(memory.value)}", "peak so far, a lower bound for the whole job"))
    print_table((f"Observed ({progress.source})" if progress else "Observed", "", "how"), rows, words=("how"))


def _describe_level(level: LoopProgress) -> str:
    length = "of an unknown number" if level.length is None else f"of {level.length}"
    passes = " a pass" if level.passes else ""
    where = f", {level.where}" if level.where else ""
    median = f"; median {format_duration(level.median_s)}" if level.median_s is not None else ""
    return f"{length}{passes}{where}{median}"


def _print_forecast(probed: Probe) -> None:
    forecast = probed.forecast
    rows = []
    if forecast.unit_s is not None:
        rows.append(("steady unit", format_time(forecast.unit_s), f"{_range(forecast.unit_s)}; {forecast.unit}"))
    if forecast.warmup_s:
        rows.append(("first units", f"+ {format_duration(forecast.warmup_s)}", "longer than steady units"))
    if forecast.pass_s is not None:
        besides = f"{format_duration(forecast.between_s)} of it outside the units" if forecast.between_s else ""
        rows.append(("outer pass", format_duration(forecast.pass_s), besides))
    if forecast.units is not None:
        passes = f"in {forecast.passes} passes" if forecast.passes else ""
        rows.append(("units", f"{forecast.units}", passes))
    interval = "" if forecast.elapsed_s is None or probed.finished else _range(forecast.elapsed_s)
    rows.append(("elapsed", format_time(forecast.elapsed_s), interval))
    print_table(("Extrapolated to the whole job", "", "how"), rows, words=())


def _range(interval: Interval) -> str:
    return f"{interval.level:.0%} range {format_range(interval)}"
