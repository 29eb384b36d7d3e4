"""Lower a JAX function, or compile it for a device that need not be present, in the user's environment."""

import sys
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

from leadline.core.errors import InvalidInput
from leadline.core.graph import LoopFacts, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.processes import ProcessRunner
from leadline.core.units import KIB, format_bytes
from leadline.core.workload import Workload
from leadline.graphs.hlo.read import traced_job
from leadline.graphs.worker import WorkerAnswer, function_request, run_worker

TARGETS = tomllib.loads((Path(__file__).parent / "targets.toml").read_text(encoding="utf-8"))
TARGET_CONFIG = Path(__file__).parent / "gpu_target.txtpb"
"""XLA's description of a GPU, with places for the catalog's numbers."""


def topology_arguments(device: Device) -> dict[str, str]:
    """Return the arguments of ``jax.experimental.topologies.get_topology_desc`` that describe ``device``.

    Raises:
        InvalidInput: XLA needs such a device to compile for it, or the catalog lacks a number that XLA needs.
    """
    if device.kind is DeviceKind.TPU and device.name in TARGETS["topologies"]:
        return {"platform": "tpu", "topology_name": TARGETS["topologies"][device.name]}
    if device.kind is not DeviceKind.GPU or device.vendor != "nvidia":
        raise InvalidInput(
            f"XLA cannot compile for {device.name} without the device, only for GPUs of NVIDIA and TPUs; "
            "leave --compile out, or the device out of --on"
        )
    topology = {"topology_name": device.name, "topology": "1x1x1"}
    return {"platform": "cuda", **topology, "target_config": _topology_text(device)}


def _topology_text(device: Device) -> str:
    capability = device.compute_capability or ""
    shared_kib = TARGETS["shared_kib"]
    if capability not in shared_kib:
        raise InvalidInput(
            f"{device.name} has compute capability {device.compute_capability}, but XLA targets are only known for "
            f"{', '.join(TARGETS['shared_kib'])}: leave --compile out"
        )
    core_kib, optin_kib = shared_kib[capability]
    lanes = (device.compute_units or 0) * (device.lanes_per_unit or 0)
    peak = device.peak_flops_per_s.get("float32")
    # Without a boost clock, it is the one at which all lanes reach the peak. A lane multiplies and adds in one cycle.
    clock_hz = device.boost_hz or (peak / (2 * lanes) if lanes and peak else 0.0)
    names = ("compute_units", "lanes_per_unit", "l2_bytes", "memory_bytes_per_s", "memory_bytes")
    missing = [name for name in names if not getattr(device, name)] + ([] if clock_hz else ["boost_hz"])
    if missing:
        raise InvalidInput(
            f"{device.name} has no {', '.join(missing)} in the catalog, which XLA needs to compile for it: "
            "add it to your own device file, or leave --compile out"
        )
    major, _, minor = capability.partition(".")
    return TARGET_CONFIG.read_text(encoding="utf-8").format(
        device=device, shared=core_kib * KIB, optin=optin_kib * KIB, bandwidth=int(device.memory_bytes_per_s or 0),
        clock=clock_hz / 1e9, major=major, minor=minor,
    )  # fmt: skip


JAX_SETTINGS = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
"""Environment in which JAX looks for no accelerator."""
TIMEOUT_S = 600.0
"""Compiling a large step takes minutes."""


def lower_function(workload: Workload, *, runner: ProcessRunner, device_type: str = "cuda") -> TracedJob:
    """Return the step of the JAX function ``file.py:function``, lowered from shapes alone.

    The function is called without arguments, or with one ``jax.ShapeDtypeStruct`` per input of the workload if it takes
    any. It returns either of these:

    - ``(step, arguments)``: the function to run and its arguments (arrays or shapes, in any tree).
    - A flax module (linen or nnx), which is run on the workload's inputs. Inference is the forward pass. Training adds
      the mean of the outputs as the loss, and the workload's optimizer from optax.

    Raises:
        InvalidInput: The file is missing, or the step does not train although the workload does.
        Untraceable: The function cannot be called or lowered. Carries the user's line.
    """
    return _read_job(workload, _run(workload, {}, runner), device_type)


def compile_function(workload: Workload, device: Device, *, runner: ProcessRunner) -> TracedJob:
    """Return the step of a JAX function as XLA compiles it for ``device``, which need not be present.

    The function is that of ``lower_function``. XLA's target is described by the catalog's numbers. A GPU of NVIDIA
    needs the ``xla-cuda`` extra in the user's environment, a TPU needs ``xla-tpu``.

    Raises:
        InvalidInput: XLA needs such a device to compile for it, or the catalog lacks a number.
        Untraceable: The function cannot be lowered, or the compiler is not installed.
    """
    answer = _run(workload, topology_arguments(device), runner)
    job = _read_job(workload, answer, "cuda")
    memory = Counter(answer.memory)
    notes = [f"compiled by XLA for {device.name} (jax {answer.jax}), without autotuning"]
    step = job.step
    if any(memory.values()):
        total = memory["argument"] + memory["output"] - memory["alias"] + memory["temp"]
        step = replace(step, planned_bytes=total + memory["generated_code"])
        notes.append(
            f"the compiler plans {format_bytes(total)} on the device, {format_bytes(memory['temp'])} of it temporary"
        )
    return replace(job, step=step, notes=(*job.notes, *notes))


def _read_job(workload: Workload, answer: WorkerAnswer, device_type: str) -> TracedJob:
    job = traced_job(answer.text, workload, device_type=device_type)
    batch = workload.batch or job.loop.batch
    return replace(job, loop=LoopFacts(batch=batch), notes=(*job.notes, *answer.notes, *filter(None, [answer.harm])))


def _run(workload: Workload, topology: dict[str, str], runner: ProcessRunner) -> WorkerAnswer:
    request = {
        **function_request(workload, "JAX function", "step.py"),
        "optimizer": workload.optimizer.value if workload.optimizer else "",
        "topology": topology,
        "worker": "leadline.graphs.hlo.worker.run",
        "wall_s": TIMEOUT_S,
    }
    env = {**JAX_SETTINGS, "PYTHONDONTWRITEBYTECODE": "1"}
    answer = run_worker(request, python=(sys.executable,), runner=runner, env=env)
    answer.raise_failure()
    return answer
