"""Put the measuring wrapper around a job, and make the run of what it wrote."""

import math
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

from leadline.core.jobs import JobSpec, JobState
from leadline.core.runs import Run
from leadline.core.units import MINUTE_S
from leadline.execution.wrapper.instruments import Enough
from leadline.execution.wrapper.outcome import Outcome

WRAPPER = "leadline.execution.wrapper"
NEVER = Enough()


@dataclass(frozen=True, slots=True)
class Terms:
    """What a job is started under beside what it asks for itself.

    The shorter of two walltimes holds. ``environment`` stands below the job's own. ``warning`` names a signal that
    processes which listen are sent ``warning_s`` before the walltime. Of a ``controlled`` job the walltime can be
    changed while it runs. What still runs ``kill_after_s`` after it was told to end is killed. The command of a held
    job begins when the file ``word`` is there.
    """

    walltime_s: float | None = None
    environment: dict[str, str] = field(default_factory=dict)
    warning: str | None = None
    warning_s: float = 0.0
    controlled: bool = False
    kill_after_s: float | None = None
    word: str | None = None


def wrapped(
    spec: JobSpec,
    result: Path,
    *,
    cpus: tuple[int, ...] = (),
    terms: Terms | None = None,
    enough: Enough = NEVER,
    gate: int | None = None,
) -> list[str]:
    """Return the command that runs a job measured, its setup lines before it.

    The job is ended once ``enough`` was seen of it, and begins when the descriptor ``gate`` says so.
    """
    terms = terms or Terms()
    words = [sys.executable, "-P", "-m", WRAPPER]
    if gate is not None:
        words += ["--gate", str(gate)]
    if cpus:
        words += ["--cpus", ",".join(map(str, cpus))]
    words += terms_words(terms)
    if enough.units is not None:
        words += ["--stop-units", str(enough.units)]
    if enough.time_s is not None:
        words += ["--stop-time-s", repr(enough.time_s)]
    return [*words, *wrapper_arguments(spec, result, walltime_s=terms.walltime_s)]


def terms_words(terms: Terms) -> list[str]:
    """Return the wrapper's own arguments for a warning, for changes and for the end of a job."""
    words = []
    if terms.warning is not None:
        words += ["--warning", terms.warning, "--warning-s", repr(terms.warning_s)]
    if terms.controlled:
        words += ["--controlled"]
    if terms.kill_after_s is not None:
        words += ["--kill-after-s", repr(terms.kill_after_s)]
    if terms.word is not None:
        words += ["--word", terms.word]
    return words


def wrapper_arguments(
    spec: JobSpec, result: Path, *, walltime_s: float | None = None, at_a_site: bool = False
) -> list[str]:
    """Return the wrapper's own arguments and, after them, the job's command; a site has a limit of whole minutes."""
    resources = spec.resources
    words = ["--result", str(result)]
    if spec.watched:
        words += ["--probe-hook"]
    if spec.workdir:
        words += ["--workdir", spec.workdir]
    limits = [one for one in (resources.walltime_s, walltime_s) if one is not None]
    if limits:
        words += ["--walltime-s", repr(float(min(limits)))]
    if at_a_site and resources.walltime_s is not None:
        words += ["--site-walltime-s", repr(math.ceil(resources.walltime_s / MINUTE_S) * float(MINUTE_S))]
    if resources.memory_bytes_per_node is not None:
        words += ["--memory-bytes", str(math.ceil(resources.memory_bytes_per_node))]
    return [*words, "--", *with_setup(spec)]


def environment(spec: JobSpec) -> dict[str, str]:
    """Return the job's own variables; ``OMP_NUM_THREADS`` follows the cores unless the job sets it itself."""
    cores = spec.resources.cores_per_task
    return {**({} if cores is None else {"OMP_NUM_THREADS": str(cores)}), **spec.environment}


def with_setup(spec: JobSpec) -> list[str]:
    """Return the command behind its setup lines, which a shell runs first and ends at the first that fails."""
    if not spec.setup:
        return list(spec.command)
    script = "\n".join(["set -eo pipefail", *spec.setup, 'exec "$@"'])
    return ["bash", "-c", script, "bash", *spec.command]


def run_of(spec: JobSpec, run_id: str, outcome: Outcome) -> Run:
    """Return the run of a job and its outcome.

    An outcome that still says RUNNING is all that is left of a wrapper that was killed: the state is not known.
    """
    tags = outcome.node | ({"reason": outcome.reason} if outcome.reason else {})
    if outcome.signal:
        tags["signal"] = signal.Signals(outcome.signal).name
    return Run(
        run_id,
        spec,
        JobState.UNKNOWN if outcome.state is JobState.RUNNING else outcome.state,
        outcome.started_at,
        ended_at=outcome.ended_at,
        exit_code=outcome.exit_code,
        host=outcome.host,
        measured=outcome.measured,
        tags=tags,
    )
