"""The verb ``probe``: run the first steps of a command on this machine, and extrapolate to the whole job."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from leadline.app.estimate.kept_probes import file_digests, keep_probe
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.core.progress import Probe, ProbeForecast
from leadline.core.units import format_duration
from leadline.estimators.progress.loop_extrapolation import LEVEL, extrapolate_loops
from leadline.execution.launch import run_probe
from leadline.execution.wrapper.instruments import ProbeLimit
from leadline.execution.wrapper.outcome import JobOutcome

SCHEMA = "leadline.probe/1"
TIME_S = 10.0
LIMIT_S = 600.0
MORE = "raise --limit, or have the job report its steps (LEADLINE_PROGRESS)"
ROUND_S = 60.0
"""A proposed walltime is rounded up to whole minutes."""


class ProbeLimits(Frozen):
    """When to stop: after ``units`` of work or ``time_s`` of work, and after ``limit_s`` in any case."""

    units: int | None = None
    time_s: float | None = None
    limit_s: float = LIMIT_S


def probe(
    command: Sequence[str], limits: ProbeLimits, *, units_total: int | None = None, output: int | None = None
) -> Probe:
    """Run ``command`` until a limit, stop it cleanly, and forecast the whole job.

    The next estimate of the same command on this machine uses the forecast.

    Args:
        command: the command and its arguments.
        limits: when to stop.
        units_total: units of work in the whole job, if the script does not show it.
        output: file descriptor for the command's output.

    Raises:
        InvalidInput: there is no command, it cannot be started, or a limit is not above zero.
    """
    if not command:
        raise InvalidInput("no command given: put it after --, as in -- python train.py")
    _check(limits, units_total)
    time_s = TIME_S if limits.units is None and limits.time_s is None else limits.time_s
    digests = file_digests(command, Path.cwd())
    outcome = run_probe(command, probe_limit=ProbeLimit(limits.units, time_s), limit_s=limits.limit_s, output=output)
    probed = summarize_probe(outcome, limits, units_total=units_total)
    try:
        keep_probe(probed, digests)
    except LeadlineError as error:
        return replace(probed, remarks=(*probed.remarks, f"the next estimate does not use this probe: {error}"))
    return probed


def summarize_probe(outcome: JobOutcome, limits: ProbeLimits, *, units_total: int | None = None) -> Probe:
    """Return the forecast of the whole job from the outcome of a probe."""
    progress = outcome.progress
    stopped = progress is not None and progress.stopped
    finished = outcome.state is JobState.COMPLETED and not stopped
    scaled = extrapolate_loops(progress, units=units_total)
    remarks = progress.remarks if progress else ()
    if finished:
        whole_s = outcome.measured["elapsed_s"].value
        scaled = replace(scaled, elapsed_s=Interval(whole_s, whole_s, whole_s, LEVEL), unknown={}, assumptions=())
        remarks = (*remarks, "the job finished: its time is measured, not extrapolated")
    elif outcome.state is JobState.FAILED:
        how = f"exit code {outcome.exit_code}" if outcome.signal is None else f"signal {outcome.signal}"
        reason = f"the command failed ({how}) before its first steps were measured: run it once by hand"
        scaled = ProbeForecast(unknown={"elapsed_s": reason})
    elif outcome.state is JobState.TIMEOUT and scaled.elapsed_s is None and not (progress and progress.levels):
        limit = format_duration(limits.limit_s)
        reason = f"no step was observed within {limit}: {MORE}"
        scaled = replace(scaled, unknown={"elapsed_s": reason})
    return Probe(
        outcome.command, outcome.state, finished, progress, scaled, outcome.measured, outcome.exit_code, remarks
    )


def suggested_walltime_s(probe: Probe) -> float | None:
    """Return the upper bound of the forecast in whole minutes, for ``--time``; ``None`` without a forecast."""
    elapsed_s = probe.forecast.elapsed_s
    if elapsed_s is None:
        return None
    return ROUND_S * -(-elapsed_s.high // ROUND_S)


def _check(limits: ProbeLimits, units_total: int | None) -> None:
    limited = {"--steps": limits.units, "--time": limits.time_s, "--limit": limits.limit_s}
    for option, value in {**limited, "--steps-total": units_total}.items():
        if value is not None and value <= 0:
            raise InvalidInput(f"{option} is {value:g}, but it must be above 0")
