"""Describe a device that need not be here to XLA, so that it compiles for it."""

import json
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from leadline.core.errors import InvalidInput, Untraceable
from leadline.core.graph import LoopFacts, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.processes import CompletedProcess, ProcessRunner
from leadline.core.units import KIB, format_bytes
from leadline.core.workload import Workload
from leadline.graphs.hlo.kernel_merge import FusionMode
from leadline.graphs.hlo.read import traced_job


@dataclass(frozen=True, slots=True)
class _Architecture:
    """What all devices of one compute capability share."""

    shared_bytes: int
    shared_optin_bytes: int


ARCHITECTURES = {
    "6.0": _Architecture(64 * KIB, 48 * KIB),
    "6.1": _Architecture(96 * KIB, 48 * KIB),
    "7.0": _Architecture(96 * KIB, 96 * KIB),
    "7.5": _Architecture(64 * KIB, 64 * KIB),
    "8.0": _Architecture(164 * KIB, 163 * KIB),
    "8.6": _Architecture(100 * KIB, 99 * KIB),
    "8.7": _Architecture(164 * KIB, 163 * KIB),
    "8.9": _Architecture(100 * KIB, 99 * KIB),
    "9.0": _Architecture(228 * KIB, 227 * KIB),
    "10.0": _Architecture(228 * KIB, 227 * KIB),
    "12.0": _Architecture(100 * KIB, 99 * KIB),
}
"""Shared memory of a multiprocessor (CUDA C++ Programming Guide, technical specifications)."""

TPUS = {
    "Cloud TPU v4": "v4:2x2x1",
    "Cloud TPU v5e": "v5e:2x2",
    "Cloud TPU v5p": "v5p:2x2x1",
    "Cloud TPU v6e": "v6e:2x2",
}
"""The smallest topology that XLA knows of each TPU; one of its chips is compiled for."""

_TEXT = """gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared}
  shared_memory_per_block_optin: {optin}
  threads_per_core_limit: {threads}
  core_count: {cores}
  fpus_per_core: {lanes}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}
  l2_cache_size: {l2}
  clock_rate_ghz: {clock:g}
  device_memory_size: {memory}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 12 minor: 8 patch: 0 }}
device_description_str: "{name}"
"""


def topology_arguments(device: Device) -> dict[str, str]:
    """Return the arguments of ``jax.experimental.topologies.get_topology_desc`` that describe ``device``.

    Raises:
        InvalidInput: XLA compiles for no such device without it, or the catalog lacks a figure that it wants.
    """
    if device.kind is DeviceKind.TPU and device.name in TPUS:
        return {"platform": "tpu", "topology_name": TPUS[device.name]}
    if device.kind is not DeviceKind.GPU or device.vendor != "nvidia":
        raise InvalidInput(
            f"{device.name} cannot be compiled for without it: XLA does so for GPUs of NVIDIA and TPUs; "
            "leave --compile out, or the device out of --on"
        )
    return {
        "platform": "cuda",
        "topology_name": device.name,
        "target_config": _topology_text(device),
        "topology": "1x1x1",
    }


def _topology_text(device: Device) -> str:
    architecture = ARCHITECTURES.get(device.compute_capability or "")
    if architecture is None or device.compute_capability is None:
        known = ", ".join(ARCHITECTURES)
        raise InvalidInput(
            f"{device.name} has compute capability {device.compute_capability}, and what XLA must know of it is "
            f"written down for {known}: leave --compile out"
        )
    figures = {
        "compute_units": device.compute_units, "lanes_per_unit": device.lanes_per_unit, "l2_bytes": device.l2_bytes,
        "memory_bytes_per_s": device.memory_bytes_per_s, "memory_bytes": device.memory_bytes,
        "boost_hz": _clock_hz(device),
    }  # fmt: skip
    missing = [name for name, value in figures.items() if not value]
    if missing:
        raise InvalidInput(
            f"{device.name} has no {', '.join(missing)} in the catalog, which XLA must know to compile for it: "
            "add it to your own device file, or leave --compile out"
        )
    major, _, minor = device.compute_capability.partition(".")
    return _TEXT.format(
        shared=architecture.shared_bytes, optin=architecture.shared_optin_bytes, threads=device.threads_per_unit,
        cores=device.compute_units, lanes=device.lanes_per_unit, bandwidth=int(device.memory_bytes_per_s or 0),
        l2=device.l2_bytes, clock=(_clock_hz(device) or 0) / 1e9, memory=device.memory_bytes, major=major, minor=minor,
        name=device.name,
    )  # fmt: skip


def _clock_hz(device: Device) -> float | None:
    """Return the boost clock; where the catalog has none, that at which all lanes reach the float32 peak."""
    lanes = (device.compute_units or 0) * (device.lanes_per_unit or 0)
    peak = device.peak_flops_per_s.get("float32")
    if device.boost_hz or not lanes or not peak:
        return device.boost_hz
    return peak / (2 * lanes)


TIMEOUT_S = 600.0
"""Compiling a large step takes minutes."""

WORKER = Path(__file__).parent / "worker" / "run.py"


def lower_function(
    workload: Workload,
    *,
    runner: ProcessRunner,
    device_type: str = "cuda",
    python: str | None = None,
    form: FusionMode = FusionMode.FUSED,
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
    answer = _ask(workload, topology_arguments(device), runner, python)
    job = _job(workload, answer, "cuda", FusionMode.FUSED)
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


def _job(workload: Workload, answer: dict[str, Any], device_type: str, form: FusionMode) -> TracedJob:
    job = traced_job(answer["text"], workload, device_type=device_type, form=form)
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


def _died(done: CompletedProcess) -> str:
    if done.timed_out:
        return f"jax was still busy after {TIMEOUT_S:g} s; lower a smaller step"
    said = [line for line in done.stderr.strip().splitlines() if line.strip()]
    last = said[-1].strip() if said else "it said nothing"
    return f"the process that lowers ended with exit code {done.returncode} before it could answer: {last}"
