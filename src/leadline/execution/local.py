"""Run a job on this machine, now, under the measuring wrapper."""

import math
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.jobs import JobSpec, JobState
from leadline.core.runs import Run
from leadline.execution.processes import start_attached
from leadline.execution.wrapper.outcome import Outcome, read_outcome


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
    wrapper = start_attached(_wrapped(spec, result), env=_environment(spec), stdout=output, own_session=True)
    _wait(wrapper)
    return _run_from(spec, run_id, result)


def _wrapped(spec: JobSpec, result: Path) -> list[str]:
    resources = spec.resources
    words = [sys.executable, "-P", "-m", "leadline.execution.wrapper", "--result", str(result)]
    if spec.workdir:
        words += ["--workdir", spec.workdir]
    if resources.walltime_s is not None:
        words += ["--walltime-s", repr(float(resources.walltime_s))]
    if resources.memory_bytes_per_node is not None:
        words += ["--memory-bytes", str(math.ceil(resources.memory_bytes_per_node))]
    return [*words, "--", *spec.command]


def _environment(spec: JobSpec) -> dict[str, str]:
    """Return the job's own variables; ``OMP_NUM_THREADS`` follows the cores unless somebody set it."""
    cores = spec.resources.cores_per_task
    if cores is None or "OMP_NUM_THREADS" in os.environ:
        return dict(spec.environment)
    return {"OMP_NUM_THREADS": str(cores), **spec.environment}


def _wait(wrapper: "subprocess.Popen[bytes]") -> None:
    """Wait for the end; an interrupt goes to the job, and a second one too."""
    while True:
        try:
            wrapper.wait()
        except KeyboardInterrupt:
            wrapper.send_signal(signal.SIGINT)
            continue
        return


def _run_from(spec: JobSpec, run_id: str, result: Path) -> Run:
    outcome: Outcome = read_outcome(result)
    if outcome.exit_code == 127 and outcome.pid is None:
        raise InvalidInput(outcome.reason)
    # An outcome that still says RUNNING is all that is left of a wrapper that was killed.
    state = JobState.UNKNOWN if outcome.state is JobState.RUNNING else outcome.state
    tags = outcome.node | ({"reason": outcome.reason} if outcome.reason else {})
    if outcome.signal:
        tags["signal"] = signal.Signals(outcome.signal).name
    return Run(
        run_id,
        spec,
        state,
        outcome.started_at,
        ended_at=outcome.ended_at,
        exit_code=outcome.exit_code,
        host=outcome.host,
        measured=outcome.measured,
        tags=tags,
    )
