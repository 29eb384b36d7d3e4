"""Trace a JAX training script: its jitted step is lowered in a process of the user's own environment."""

from dataclasses import replace
from pathlib import Path

from leadline.core.graph import LoopFacts, TensorSpec, TracedJob
from leadline.core.processes import ProcessRunner
from leadline.core.workload import Phase, Workload
from leadline.graphs.hlo.jax_function import JAX_SETTINGS
from leadline.graphs.hlo.read import traced_job
from leadline.graphs.torch.command import PythonCommand
from leadline.graphs.torch.trace import BUSY_FACTOR, START_S
from leadline.graphs.worker import QUIET, run_worker

RESERVED = (
    "JAX takes 75% of a GPU at its start and no more (XLA_PYTHON_CLIENT_MEM_FRACTION); the step is compared with the "
    "whole GPU"
)


def trace_jax_script(
    workload: Workload,
    command: PythonCommand,
    *,
    runner: ProcessRunner,
    device_type: str = "cuda",
    cwd: Path | None = None,
) -> TracedJob:
    """Run the user's unmodified script until its jitted step was called a few times, and return the lowered step.

    A call of a jitted function computes nothing: it returns arrays of the right shapes. The step is the function that
    takes gradients, with the most arithmetic, and the other jitted functions that are called once for each call of it.

    Raises:
        Untraceable: The script failed or called no jitted function. Carries the user's line.
    """
    request = {
        "worker": "leadline.graphs.hlo.worker.script",
        "target": command.target,
        "module": command.is_module,
        "argv": list(command.argv),
        "timeout_s": workload.trace_limit_s,
        "wall_s": BUSY_FACTOR * workload.trace_limit_s + START_S,
    }
    env, cwd = {**QUIET, **dict(command.variables), **JAX_SETTINGS}, command.start_folder(cwd)
    answer = run_worker(request, python=(*command.prefix, command.python), runner=runner, env=env, cwd=cwd)
    answer.raise_failure()
    step = workload if answer.trains else replace(workload, phase=Phase.INFERENCE)
    weights = tuple(TensorSpec(shape, dtype) for shape, dtype in answer.weights)
    job = traced_job(answer.text, step, device_type=device_type, weights=weights)
    notes = (*job.notes, *answer.notes, RESERVED, answer.confinement)
    return replace(job, loop=answer.loop or LoopFacts(), notes=notes)
