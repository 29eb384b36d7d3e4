"""Start jobs under the measuring wrapper: its command line, runs on this machine, and probes."""

import math
import os
import re
import shlex
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.runs import Run
from leadline.execution.processes import start_process
from leadline.execution.wrapper.instruments import ProbeLimit
from leadline.execution.wrapper.outcome import JobOutcome, read_outcome
from leadline.files.private import make_private_folder

WRAPPER = "leadline.execution.wrapper"
WrapperOptions = Mapping[str, float | str | None]
"""Options of the wrapper by name; True is for one without a value, and None or False for one that is left out."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_command(spec: JobSpec) -> None:
    """Check that a job has a command, and that a script can hold its words.

    Raises:
        InvalidInput: it has none, or one of them contains a NUL character.
    """
    if not spec.command:
        raise InvalidInput("there is no command to run: give it after --, for example -- python train.py")
    if any("\0" in word for word in (*spec.command, *spec.setup, *spec.environment.values(), spec.workdir or "")):
        raise InvalidInput("the command contains a NUL character: remove it")


def check_walltime(walltime_s: float) -> None:
    """Check that a limit is a finite time above zero.

    Raises:
        InvalidInput: it is not.
    """
    if not walltime_s > 0 or math.isinf(walltime_s):
        raise InvalidInput(f"a walltime of {walltime_s} s is not possible: use a finite time above zero")


def exports(environment: Mapping[str, str]) -> list[str]:
    """Return the shell lines that export variables.

    Raises:
        InvalidInput: a name is not possible.
    """
    for name in environment:
        if not _VARIABLE.fullmatch(name):
            raise InvalidInput(f"{name!r} cannot be an environment variable: use letters, digits and underscores")
    return [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]


def wrapper_command(spec: JobSpec, result: Path, options: WrapperOptions) -> list[str]:
    """Return the command that runs a job measured, after its setup lines; its outcome goes to the file ``result``."""
    return [sys.executable, "-P", "-m", WRAPPER, *wrapper_arguments(spec, result, options)]


def wrapper_arguments(spec: JobSpec, result: Path, options: WrapperOptions) -> list[str]:
    """Return the wrapper's arguments: its options, those of the job's own request, and the job's command."""
    request = _words({"--result": str(result), "--probe-hook": spec.watched, "--workdir": spec.workdir or None})
    return [*_words(options), *request, *limit_arguments(spec.resources), "--", *command_with_setup(spec)]


def limit_arguments(resources: ResourceSpec) -> list[str]:
    """Return the wrapper's arguments for the limits that it enforces."""
    walltime_s, memory = resources.walltime_s, resources.memory_bytes_per_node
    whole_bytes = None if memory is None else math.ceil(memory)
    return _words({"--walltime-s": None if walltime_s is None else float(walltime_s), "--memory-bytes": whole_bytes})


def _words(options: WrapperOptions) -> list[str]:
    present = {name: value for name, value in options.items() if value is not None and value is not False}
    return [word for name, value in present.items() for word in ([name] if value is True else [name, str(value)])]


def job_environment(spec: JobSpec, inherited: Collection[str] = ()) -> dict[str, str]:
    """Return the job's variables; ``OMP_NUM_THREADS`` follows the cores unless the job sets or inherits it."""
    cores = spec.resources.cores_per_task
    follows = cores is not None and "OMP_NUM_THREADS" not in inherited
    return {**({"OMP_NUM_THREADS": str(cores)} if follows else {}), **spec.environment}


def command_with_setup(spec: JobSpec) -> list[str]:
    """Return the command after its setup lines in a shell, which ends at the first failing line."""
    if not spec.setup:
        return list(spec.command)
    script = "\n".join(["set -eo pipefail", *spec.setup, 'exec "$@"'])
    return ["bash", "-c", script, "bash", *spec.command]


def measured_run(spec: JobSpec, run_id: str, outcome: JobOutcome) -> Run:
    """Return the run of a job with its outcome.

    An outcome in state RUNNING remains from a killed wrapper, so the state is UNKNOWN.
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
    spec: JobSpec, *, folder: Path, on_progress: Callable[[str], None] = lambda _: None, output: int | None = None
) -> Run:
    """Run ``spec`` to its end on this process's streams and return its measured run.

    Walltime and memory are enforced. The wrapper has its own session: if this process dies, the job continues, and its
    outcome is stored in ``folder`` as ``RUN-ID.json``. ``on_progress`` is called with a message for the user, and
    ``output`` is a file descriptor for the command's output in place of stdout.

    Raises:
        InvalidInput: the command is missing or cannot be started.
    """
    check_command(spec)
    try:
        make_private_folder(folder)
    except OSError as error:
        raise LeadlineError(
            f"{folder} cannot be created ({error.strerror}): the outcome of the run is stored there"
        ) from error
    run_id = uuid.uuid4().hex[:12]
    result = folder.absolute() / f"{run_id}.json"
    on_progress(f"run {run_id}: {spec.name} on this machine")
    environment = job_environment(spec, inherited=os.environ)
    return measured_run(spec, run_id, _run_wrapper(wrapper_command(spec, result, {}), result, environment, output))


def run_probe(
    command: Sequence[str], *, probe_limit: ProbeLimit, limit_s: float, output: int | None = None
) -> JobOutcome:
    """Run ``command`` until ``probe_limit`` or ``limit_s`` is reached and return the outcome.

    ``output`` is a file descriptor for the command's output in place of stdout.

    Raises:
        InvalidInput: the command cannot be started.
    """
    spec = JobSpec("probe", tuple(command), ResourceSpec(walltime_s=limit_s), watched=True)
    with tempfile.TemporaryDirectory(prefix="leadline-probe-") as folder:
        result = Path(folder, "outcome.json")
        options = {"--stop-units": probe_limit.units, "--stop-time-s": probe_limit.time_s}
        return _run_wrapper(wrapper_command(spec, result, options), result, {}, output)


def _run_wrapper(arguments: list[str], result: Path, environment: dict[str, str], output: int | None) -> JobOutcome:
    """Run a wrapper to its end, pass interrupts on to its job, and return the outcome.

    Raises:
        InvalidInput: the command cannot be started.
    """
    wrapper = start_process(arguments, env=environment, stdout=output, own_session=True)
    while wrapper.returncode is None:
        try:
            wrapper.wait()
        # The job has its own session and would not get the terminal's interrupt.
        except KeyboardInterrupt:
            wrapper.send_signal(signal.SIGINT)
    outcome = read_outcome(result)
    if outcome.exit_code == 127 and outcome.pid is None:
        raise InvalidInput(outcome.reason)
    return outcome
