"""Scratch memory that libraries take for kernels through PyTorch's caching allocator.

PyTorch gives each handle of cuBLAS a workspace on each stream, of the size that NVIDIA recommends: two parts of 4 MiB
and eight of 16 KiB, or 32 MiB from Hopper on (``parseChosenWorkspaceSize`` in ATen/cuda/CublasHandlePool.cpp; hipBLAS
has 32 MiB, and 128 MiB on CDNA3 and CDNA4). Handles belong to threads, and the backward pass runs in a thread of its
own, so that training holds two. cuBLASLt, which adds the bias of a linear layer, uses the same one in newer releases;
in older ones, and where ``TORCH_CUBLASLT_UNIFIED_WORKSPACE=0``, it takes 1 MiB during a call, which is left out here.
What kernels take while they run is in ``kernel_scratch.py``.
"""

from dataclasses import replace

from leadline.core.graph import OpGraph, OpKind, Stage, StorageCategory, StorageEvent
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import KIB, MIB
from leadline.estimators.kernel_scratch import Kernels, kernels_of, with_scratch

USUAL_BYTES = 2 * 4 * MIB + 8 * 16 * KIB
LARGE_BYTES = 32 * MIB
BY_ARCHITECTURE = {
    "Hopper": LARGE_BYTES, "Blackwell": LARGE_BYTES, "Blackwell Ultra": LARGE_BYTES,
    "CDNA": LARGE_BYTES, "CDNA2": LARGE_BYTES, "CDNA3": 4 * LARGE_BYTES, "CDNA4": 4 * LARGE_BYTES,
}  # fmt: skip
"""Where it is not the usual one."""
RUN_BY_TORCH = ("torch", "config.json by formula")
"""Front-ends whose graphs PyTorch runs: XLA and ONNX Runtime plan the scratch of their products themselves."""


def with_workspaces(graph: OpGraph, device: Device) -> OpGraph:
    """Return a graph that takes the workspaces of its kernels on ``device``.

    Those of products are there from the start, as in later steps, those of other kernels while these run.
    """
    size, kernels = scratch_of(device)
    if not size or graph.source not in RUN_BY_TORCH:
        return graph
    graph = with_scratch(graph, kernels)
    stages = {op.stage is Stage.BACKWARD for op in graph.ops if op.kind is OpKind.GEMM}
    if not stages:
        return graph
    first = max((event.storage for event in graph.events), default=0) + 1
    taken = [StorageEvent(0, first + number, size, StorageCategory.WORKSPACE) for number in range(len(stages))]
    return replace(graph, events=(*taken, *graph.events))


def scratch_of(device: Device) -> tuple[int, Kernels]:
    """Return the bytes of one workspace of products on ``device``, and which kernels it runs.

    There is none where nothing is known of such a library.
    """
    if device.kind is not DeviceKind.GPU or device.vendor.lower() not in ("nvidia", "amd"):
        return 0, kernels_of(device)
    return BY_ARCHITECTURE.get(device.architecture or "", USUAL_BYTES), kernels_of(device)
