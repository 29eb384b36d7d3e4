"""Trace a training script by the framework that it uses: PyTorch, JAX, or Keras on either."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from leadline.core.errors import Untraceable
from leadline.core.graph import TracedJob
from leadline.core.processes import ProcessRunner
from leadline.core.workload import Workload
from leadline.graphs.frameworks import BACKEND, script_framework
from leadline.graphs.hlo.jax_script import trace_jax_script
from leadline.graphs.torch.command import parse_command
from leadline.graphs.torch.trace import trace_command


def trace_script(
    workload: Workload,
    *,
    runner: ProcessRunner,
    device_type: str = "cuda",
    cwd: Path | None = None,
    start_up: Callable[[tuple[str, ...]], dict[str, float]] = lambda _: {},
) -> TracedJob:
    """Run the user's unmodified command for a few steps on a simulated device and return the step it would run.

    ``start_up`` measures the start of the Python with torch that some words start, for scripts on the CPU: another
    build of torch than the calibrated one may take twice the time.

    Raises:
        InvalidInput: The command names no interpreter or script that exists.
        Untraceable: The script failed, ran no training step, or trains with TensorFlow.
    """
    command = parse_command(workload.model.argv)
    framework = script_framework(command, command.start_folder(cwd))
    if framework == "tensorflow":
        raise Untraceable(
            f"{command.target} trains with TensorFlow, which Leadline does not trace; a Keras 3 model runs on others: "
            f"set {BACKEND}=torch or {BACKEND}=jax and leave tensorflow out, or save the step as HLO and name that file"
        )
    trace_jax = partial(trace_jax_script, workload, command, runner=runner, device_type=device_type, cwd=cwd)
    if framework == "jax":
        return trace_jax()
    try:
        job = trace_command(workload, runner=runner, device_type=device_type, cwd=cwd, command=command)
    except Untraceable as error:
        if error.retry != "jax":
            raise
        job = trace_jax()  # only a library that the script imports names JAX
        return replace(job, notes=(*job.notes, error.note)) if error.note else job
    if job.step.device_type != "cpu":
        return job
    return replace(job, loop=replace(job.loop, start_up=start_up((*command.prefix, command.python))))
