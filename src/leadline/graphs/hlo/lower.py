"""Lower or compile a JAX function in a process of the user's environment, and read what comes out."""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from leadline.core.errors import InvalidInput, Untraceable
from leadline.core.graph import LoopFacts, TracedJob
from leadline.core.hardware import Device
from leadline.core.ports import Completed, ProcessRunner
from leadline.core.units import format_bytes
from leadline.core.workload import Workload
from leadline.graphs.hlo.joining import Form
from leadline.graphs.hlo.read import job_of
from leadline.graphs.hlo.targets import target_of

TIMEOUT_S = 600.0
"""Compiling a large step takes minutes."""

WORKER = Path(__file__).parent / "worker" / "run.py"


def lower_function(
    workload: Workload,
    *,
    runner: ProcessRunner,
    device_type: str = "cuda",
    python: str | None = None,
    form: Form = Form.FUSED,
) -> TracedJob:
    """Return the step of the JAX function ``file.py:function``, lowered from shapes alone.

    The function is called without arguments, or with one ``jax.ShapeDtypeStruct`` for each input of the workload if it
    takes any. It returns ``(step, arguments)``, the function to run and its arguments (arrays or shapes, in any tree),
    or a flax module (linen or nnx), which is then run on the workload's inputs: forward for inference; for training
    with the mean of the outputs as the loss and the workload's optimizer from optax. ``python`` defaults to the
    interpreter Leadline runs in.

    Raises:
        InvalidInput: the file is not there, or trains nothing where training was asked for.
        Untraceable: the function cannot be called or lowered; carries the user's line.
    """
    answer = _ask(workload, {}, runner, python)
    return _job(workload, answer, device_type, form)


def compile_function(
    workload: Workload, device: Device, *, runner: ProcessRunner, python: str | None = None
) -> TracedJob:
    """Return the step of a JAX function as XLA compiles it for ``device``, which need not be here.

    The function is that of ``lower_function``. The target is written from the device's figures; a GPU of NVIDIA needs
    the ``xla-cuda`` extra in the user's environment, a TPU ``xla-tpu``.

    Raises:
        InvalidInput: XLA compiles for no such device without it, or a figure is missing in the catalog.
        Untraceable: the function cannot be lowered, or the compiler is not installed.
    """
    answer = _ask(workload, target_of(device), runner, python)
    job = _job(workload, answer, "cuda", Form.FUSED)
    memory = answer.get("memory") or {}
    notes = [f"compiled by XLA for {device.name} (jax {answer['jax']}), without autotuning"]
    step = job.step
    if any(memory.values()):
        whole = memory["argument"] + memory["output"] - memory["alias"] + memory["temp"]
        step = replace(step, planned_bytes=whole + memory.get("generated_code", 0))
        notes.append(
            f"the compiler plans {format_bytes(whole)} on the device, {format_bytes(memory['temp'])} of it temporary"
        )
    return replace(job, step=step, notes=(*job.notes, *notes))


def _job(workload: Workload, answer: dict[str, Any], device_type: str, form: Form) -> TracedJob:
    job = job_of(answer["text"], workload, device_type=device_type, form=form)
    batch = workload.batch or job.loop.batch
    return replace(job, loop=LoopFacts(batch=batch), notes=(*job.notes, *answer["notes"]))


def _ask(workload: Workload, target: dict[str, str], runner: ProcessRunner, python: str | None) -> dict[str, Any]:
    path, _, name = workload.model.reference.rpartition(":")
    if not path or not Path(path).is_file():
        raise InvalidInput(f"{workload.model.reference!r} names no JAX function: write it as step.py:build")
    with tempfile.TemporaryDirectory(prefix="leadline-lower-") as folder:
        question, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        request = {
            "path": path,
            "function": name,
            "inputs": [(list(one.shape), one.dtype) for one in workload.inputs],
            "phase": workload.phase.value,
            "optimizer": workload.optimizer.value if workload.optimizer else "",
            "target": target,
            "answer": str(answer),
        }
        question.write_text(json.dumps(request), encoding="utf-8")
        environment = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        done = runner([python or sys.executable, str(WORKER), str(question)], env=environment, timeout_s=TIMEOUT_S)
        if not answer.is_file():
            raise Untraceable(_died(done))
        found: dict[str, Any] = msgspec.json.decode(answer.read_bytes())
    failure = found.get("failure")
    if failure:
        raise Untraceable(failure["reason"], failure.get("location"))
    return found


def _died(done: Completed) -> str:
    if done.timed_out:
        return f"jax was still busy after {TIMEOUT_S:g} s; lower a smaller step"
    said = [line for line in done.stderr.strip().splitlines() if line.strip()]
    last = said[-1].strip() if said else "it said nothing"
    return f"the process that lowers ended with exit code {done.returncode} before it could answer: {last}"
