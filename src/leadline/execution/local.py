"""Run a job on this machine, now, under the measuring wrapper."""

import os
import signal
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.jobs import JobSpec
from leadline.core.runs import Run
from leadline.execution.processes import start_attached
from leadline.execution.wrapper.outcome import read_outcome
from leadline.execution.wrapping import run_of, wrapped


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
    wrapper = start_attached(wrapped(spec, result), env=_environment(spec), stdout=output, own_session=True)
    wait_for(wrapper)
    return _run_from(spec, run_id, result)


def _environment(spec: JobSpec) -> dict[str, str]:
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


def _run_from(spec: JobSpec, run_id: str, result: Path) -> Run:
    outcome = read_outcome(result)
    if outcome.exit_code == 127 and outcome.pid is None:
        raise InvalidInput(outcome.reason)
    return run_of(spec, run_id, outcome)
