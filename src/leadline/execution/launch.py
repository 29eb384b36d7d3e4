"""Put the measuring wrapper around a job, and make the run of what it wrote."""

import math
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.runs import Run
from leadline.core.units import MINUTE_S
from leadline.execution.processes import start_process
from leadline.execution.wrapper.instruments import ProbeLimit
from leadline.execution.wrapper.outcome import JobOutcome, read_outcome

WRAPPER = "leadline.execution.wrapper"
NO_PROBE_LIMIT = ProbeLimit()


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What a job is started under beside what it asks for itself.

    The shorter of two walltimes holds. ``job_environment`` stands below the job's own. ``warning`` names a signal that
    processes which listen are sent ``warning_s`` before the walltime. Of a ``adjustable`` job the walltime can be
    changed while it runs. What still runs ``kill_after_s`` after it was told to end is killed. The command of a held
    job begins when the file ``release_file`` is there.
    """

    walltime_s: float | None = None
    environment: dict[str, str] = field(default_factory=dict)
    warning: str | None = None
    warning_s: float = 0.0
    adjustable: bool = False
    kill_after_s: float | None = None
    release_file: str | None = None


def wrapper_command(
    spec: JobSpec,
    result: Path,
    *,
    cpus: tuple[int, ...] = (),
    options: LaunchOptions | None = None,
    probe_limit: ProbeLimit = NO_PROBE_LIMIT,
    gate: int | None = None,
) -> list[str]:
    """Return the command that runs a job measured, its setup lines before it.

    The job is ended once ``probe_limit`` was seen of it, and begins when the descriptor ``gate`` says so.
    """
    options = options or LaunchOptions()
    words = [sys.executable, "-P", "-m", WRAPPER]
    if gate is not None:
        words += ["--gate", str(gate)]
    if cpus:
        words += ["--cpus", ",".join(map(str, cpus))]
    words += option_arguments(options)
    if probe_limit.units is not None:
        words += ["--stop-units", str(probe_limit.units)]
    if probe_limit.time_s is not None:
        words += ["--stop-time-s", repr(probe_limit.time_s)]
    return [*words, *wrapper_arguments(spec, result, walltime_s=options.walltime_s)]


def option_arguments(terms: LaunchOptions) -> list[str]:
    """Return the wrapper's own arguments for a warning, for changes and for the end of a job."""
    words = []
    if terms.warning is not None:
        words += ["--warning", terms.warning, "--warning-s", repr(terms.warning_s)]
    if terms.adjustable:
        words += ["--controlled"]
    if terms.kill_after_s is not None:
        words += ["--kill-after-s", repr(terms.kill_after_s)]
    if terms.release_file is not None:
        words += ["--word", terms.release_file]
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
    return [*words, "--", *command_with_setup(spec)]


def job_environment(spec: JobSpec) -> dict[str, str]:
    """Return the job's own variables; ``OMP_NUM_THREADS`` follows the cores unless the job sets it itself."""
    cores = spec.resources.cores_per_task
    return {**({} if cores is None else {"OMP_NUM_THREADS": str(cores)}), **spec.environment}


def command_with_setup(spec: JobSpec) -> list[str]:
    """Return the command behind its setup lines, which a shell runs first and ends at the first that fails."""
    if not spec.setup:
        return list(spec.command)
    script = "\n".join(["set -eo pipefail", *spec.setup, 'exec "$@"'])
    return ["bash", "-c", script, "bash", *spec.command]


def measured_run(spec: JobSpec, run_id: str, outcome: JobOutcome) -> Run:
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


def run_local(
    spec: JobSpec,
    *,
    folder: Path,
    on_progress: Callable[[str], None] = lambda _: None,
    output: int | None = None,
) -> Run:
    """Run ``spec`` to its end on this process's streams and return what was measured.

    The walltime and the memory of ``spec.resources`` are enforced. The wrapper has a session of its own: if this
    process dies, the job goes on, and its outcome stays in ``folder`` as ``RUN-ID.json``. ``output`` is a file
    descriptor that takes the command's output in place of stdout.

    Raises:
        InvalidInput: there is no command, or it cannot be started.
    """
    if not spec.command:
        raise InvalidInput("there is no command to run: give it after --, for example -- python train.py")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LeadlineError(
            f"{folder} cannot be made ({error.strerror}), and the run's outcome is kept there"
        ) from error
    run_id = uuid.uuid4().hex[:12]
    result = folder.absolute() / f"{run_id}.json"
    on_progress(f"run {run_id}: {spec.name} on this machine")
    wrapper = start_process(
        wrapper_command(spec, result), env=_inherited_environment(spec), stdout=output, own_session=True
    )
    wait_for(wrapper)
    return _read_run(spec, run_id, result)


def _inherited_environment(spec: JobSpec) -> dict[str, str]:
    """Return the job's own variables; ``OMP_NUM_THREADS`` follows the cores unless somebody set it."""
    cores = spec.resources.cores_per_task
    if cores is None or "OMP_NUM_THREADS" in os.environ:
        return dict(spec.environment)
    return {"OMP_NUM_THREADS": str(cores), **spec.environment}


def wait_for(wrapper: "subprocess.Popen[bytes]") -> None:
    """Wait for the end; an interrupt goes to the job, and a second one too."""
    while True:
        try:
            wrapper.wait()
        except KeyboardInterrupt:
            wrapper.send_signal(signal.SIGINT)
            continue
        return


def _read_run(spec: JobSpec, run_id: str, result: Path) -> Run:
    outcome = read_outcome(result)
    if outcome.exit_code == 127 and outcome.pid is None:
        raise InvalidInput(outcome.reason)
    return measured_run(spec, run_id, outcome)


def run_probe(
    command: Sequence[str], *, probe_limit: ProbeLimit, limit_s: float, output: int | None = None
) -> JobOutcome:
    """Run ``command`` until ``probe_limit`` was seen or ``limit_s`` is over, and return what the wrapper wrote down.

    ``output`` is a file descriptor that takes the command's output in place of stdout.

    Raises:
        InvalidInput: the command cannot be started.
    """
    spec = JobSpec("probe", tuple(command), ResourceSpec(walltime_s=limit_s), watched=True)
    with tempfile.TemporaryDirectory(prefix="leadline-probe-") as folder:
        result = Path(folder, "outcome.json")
        words = wrapper_command(spec, result, probe_limit=probe_limit)
        wait_for(start_process(words, stdout=output, own_session=True))
        outcome = read_outcome(result)
    if outcome.exit_code == 127 and outcome.pid is None:
        raise InvalidInput(outcome.reason)
    return outcome
