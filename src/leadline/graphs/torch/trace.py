"""Trace the user's own training command or model function in a process of its own environment."""

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from leadline.core.errors import InvalidInput, Untraceable
from leadline.core.graph import CALCULATED, TracedJob
from leadline.core.processes import ProcessRunner
from leadline.core.workload import TRACE_LIMIT_S, Fusion, Precision, Workload
from leadline.graphs.torch.command import PythonCommand, parse_command
from leadline.graphs.torch.compiled_memory import drop_recomputed_tensors
from leadline.graphs.worker import QUIET, WorkerAnswer, function_request, run_worker

START_S = 60.0
"""Extra time for importing torch and writing the answer."""
BUSY_FACTOR = 4
"""Wall-clock limit over the limit of a trace, which does not count waiting for a processor."""
COUNT_S = 20.0
"""Limit of running on without calculations, to count the steps. Those of a longer run are read and checked."""
VALUES_S = 30.0
"""Limit of a second trace with values. Those of large models take longer, and stay unknown."""
VALUES_NOTE = "values of tensors may decide what the script does: the CPU calculated those of the traced steps"


CALCULATED_NOTE = (
    "the simulated device could not run the script ({reason}): the CPU calculated the traced steps, so their "
    "operations and memory are those of a CPU, and assumed to be alike on the device"
)


def trace_command(
    workload: Workload,
    *,
    runner: ProcessRunner,
    device_type: str = "cuda",
    cwd: Path | None = None,
    command: PythonCommand | None = None,
) -> TracedJob:
    """Run the user's unmodified command for three steps on a simulated device and return the step it would run.

    A script that puts nothing on the GPU runs again for the CPU: which ops it calls depends on the device from its
    first tensor on, and only a run tells that it uses no GPU. A script whose course may depend on values of tensors
    runs again with values, which the CPU calculates. One that fails on the simulated device runs again as it is, on the
    CPU, if its weights are few. All runs are confined alike.

    The workload's limit is that of the script itself, which runs in ``cwd``. Waiting for a processor does not count, up
    to ``BUSY_FACTOR`` times the limit. ``command`` is the workload's, if it was read before.

    Raises:
        InvalidInput: The command names no interpreter or script that exists.
        Untraceable: The script failed or ran no training step. Carries the user's line.
    """
    command = (command or parse_command(workload.model.argv)).with_gpus(workload.gpus)
    cwd = command.start_folder(cwd)
    request = {
        **_base_request(device_type, workload.trace_limit_s),
        "target": command.target,
        "count_s": COUNT_S,
        "module": command.is_module,
        "argv": list(command.argv),
        "world_size": command.local_processes * command.nodes,
        # Without a launcher, the script may start a process for each GPU that it counts.
        "local_size": command.local_processes if command.launcher else command.count_devices(workload.gpus),
        "accelerate": list(command.options) if command.launcher == "accelerate" else None,
    }
    run = partial(run_worker, python=(*command.prefix, command.python), runner=runner, cwd=cwd)
    answer, reasons = _answer(command, request, run, min(workload.trace_limit_s, VALUES_S))
    job = _read_job(answer)
    return replace(job, notes=(*_count_notes(command, workload, job), *job.notes, answer.confinement, *reasons))


def _answer(
    command: PythonCommand, request: dict[str, Any], run: Callable[..., WorkerAnswer], values_s: float
) -> tuple[WorkerAnswer, list[str]]:
    """Run a command as often as its answers ask for, and return the last useful one, with the reasons."""

    def attempt(device_type: str, **changes: object) -> WorkerAnswer:
        return run({**request, "device_type": device_type, **changes}, env=_environment(command, device_type))

    device_type = request["device_type"]
    answer, reasons = attempt(device_type), []
    if _asks(answer, "cpu") and answer.failure and device_type != "cpu":
        reasons, device_type = [answer.failure.reason], "cpu"
        answer = _twice(attempt("cpu"))
    if answer.asks_values and not _asks(answer, "cpu") and values_s:
        known = {"count_s": 0.0, "counted": answer.counted, **_limits(values_s)}
        valued = _twice(attempt(device_type, values=True, **known))
        if not valued.failure:
            return valued, [*reasons, VALUES_NOTE]
    if _asks(answer, "calculated") and answer.failure:
        calculated = _twice(attempt("cpu", calculates=device_type))
        if calculated.job:
            reason = answer.failure.reason.partition("; ")[0]
            job = _on_device(calculated.job, device_type)
            return replace(calculated, job=job), [*reasons, CALCULATED_NOTE.format(reason=reason)]
    return answer, reasons


def _asks(answer: WorkerAnswer, retry: str) -> bool:
    return answer.failure is not None and answer.failure.retry == retry


def _on_device(job: TracedJob, device_type: str) -> TracedJob:
    """Return a job whose operations stand for those of another device type."""
    facts: Any = {"device_type": device_type, "source": job.step.source if device_type == "cpu" else CALCULATED}
    evaluation = replace(job.evaluation, **facts) if job.evaluation else None
    longer = tuple(replace(graph, **facts) for graph in job.longer)
    return replace(job, step=replace(job.step, **facts), evaluation=evaluation, longer=longer, low_confidence=True)


def _twice(answer: WorkerAnswer) -> WorkerAnswer:
    """Return the answer of another run, with what may have happened twice."""
    if not answer.harm:
        return answer
    twice = f"{answer.harm}; the script ran twice, and so did everything that was not held back"
    return replace(answer, confinement=twice, harm=twice)


def _count_notes(command: PythonCommand, workload: Workload, job: TracedJob) -> Iterator[str]:
    """Yield how the number of GPUs was chosen, if the command leaves it open, and how it differs from the question."""
    size = job.loop.world_size
    if command.per_gpu:
        yield f"{command.per_gpu} starts a process for each GPU: {size} GPUs were taken; --gpus sets another number"
    elif size > workload.gpus:
        yield f"the script runs on {size} GPUs, and the estimate is for {workload.gpus}: give --gpus {size}"


def trace_function(workload: Workload, *, runner: ProcessRunner, device_type: str = "cuda") -> TracedJob:
    """Trace the model that ``file.py:function`` returns, or that a library has, on inputs of the workload's shapes.

    Training runs a forward pass, the mean of the outputs as the loss, a backward pass and the optimizer. Inference runs
    the forward pass.

    Raises:
        InvalidInput: The reference names no such file, there is no input shape, or no Python has the library.
        Untraceable: The model cannot be built or run. Carries the user's line.
    """
    library, python = workload.model.library, sys.executable
    function = function_request(workload, "model function", "model.py")
    if library:
        python = _python_with(library, runner)
    elif not workload.inputs:
        raise InvalidInput(f"{workload.model.reference} needs an input shape: give one, such as --input 64x3x224x224")
    precision = workload.precision or Precision.FP32
    request = {
        **_base_request(device_type),
        **function,
        "library": library or "",
        "batch": workload.batch,
        "weights": precision.weights if precision.weights != "tf32" else "float32",
        "autocast": precision.compute if precision.autocast else "",
        "optimizer": (workload.optimizer or "adamw"),
        "accumulation": workload.accumulation,
        "checkpointing": workload.checkpointing,
    }
    answer = run_worker(request, python=(python,), runner=runner, env={})
    try:
        job = _read_job(replace(answer, compiled=answer.compiled or workload.parallelism.fusion is Fusion.COMPILER))
        return replace(job, notes=(*job.notes, answer.harm) if answer.harm else job.notes)
    except Untraceable as error:
        if error.location is not None or not workload.inputs or not error.reason.partition(": ")[0].endswith("Error"):
            raise
        inputs = " and ".join(f"{'x'.join(map(str, shape.shape))}:{shape.dtype}" for shape in workload.inputs)
        reason = f"{error.reason}; the model was given {inputs}: check --input"
        raise Untraceable(reason, note=error.note) from error


def _python_with(library: str, runner: ProcessRunner) -> str:
    """Return the Python that has a library and torch: that of the active environment, else Leadline's own."""
    active = shutil.which("python") or shutil.which("python3")
    pythons = list(dict.fromkeys(filter(None, (active, sys.executable))))
    check = f"import importlib.util as u, sys; sys.exit(not (u.find_spec({library!r}) and u.find_spec('torch')))"
    for python in pythons:
        if runner([python, "-c", check], env={}, timeout_s=START_S).returncode == 0:
            return python
    raise InvalidInput(
        f"{' and '.join(pythons)} cannot import {library} and torch: activate the environment that has both, or "
        f"install them there, as in pip install {library}"
    )


def _base_request(device_type: str, timeout_s: float = TRACE_LIMIT_S) -> dict[str, Any]:
    if device_type not in ("cuda", "cpu"):
        raise InvalidInput(f"device type {device_type!r} cannot be traced: use cuda or cpu")
    request = {"worker": "leadline.graphs.torch.worker.main", "device_type": device_type}
    defaults = {"function": "", "module": False, "argv": [], "world_size": 1, "local_size": 1, "accelerate": None}
    return {**request, **_limits(timeout_s), **defaults}


def _limits(timeout_s: float) -> dict[str, float]:
    return {"timeout_s": timeout_s, "wall_s": BUSY_FACTOR * timeout_s + START_S}


def _environment(command: PythonCommand, device_type: str) -> dict[str, str]:
    """Return the variables that a launcher sets for its first process, and no real device."""
    size = command.local_processes * command.nodes
    settings = {**QUIET, "LEADLINE_TRACE": device_type}
    local, nodes = str(command.local_processes), str(command.nodes)
    if size > 1 or command.launcher in ("torchrun", "deepspeed"):
        settings |= {"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "NODE_RANK": "0"}
        settings |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": local}
        settings |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    if command.launcher == "srun":
        settings |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": str(size)}
        settings |= {"SLURM_NTASKS_PER_NODE": local, "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes}
        settings |= {"SLURM_JOB_ID": "1", "SLURM_NODELIST": "localhost", "SLURM_JOB_NODELIST": "localhost"}
    return {**settings, **dict(command.variables)}


def _read_job(answer: WorkerAnswer) -> TracedJob:
    answer.raise_failure()
    job = answer.job
    if job is None:
        raise Untraceable("the trace answered without a step: its code wrote into the answer")
    if not answer.compiled:
        return job
    longer = tuple(drop_recomputed_tensors(graph) for graph in job.longer)
    return replace(job, step=drop_recomputed_tensors(job.step), longer=longer)
