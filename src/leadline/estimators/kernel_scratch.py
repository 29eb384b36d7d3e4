"""What kernels take on a GPU beside the tensors of their op, through the caching allocator: no trace of ops shows it.

In float32, without TF32, cuDNN transforms 3 × 3 convolutions of stride 1 by Winograd's algorithm and multiplies the
transforms as matrices ("WINOGRAD_NONFUSED" in its developer guide): input, output and filter are held in tiles of 6 × 6
values for each 4 × 4 of the output (Lavin and Gray 2016, F(4 × 4, 3 × 3)). PyTorch's softmax takes the product of
gradient and result before its backward kernel (``SoftMax.cu``). ``max_memory_allocated`` counts both; measured peaks of
segmenters are short by just these sizes without them (``leadline bench detectors``). What fused attention takes in its
backward pass is in ``attention_scratch.py``.
"""

import math
from dataclasses import dataclass, replace

from leadline.core.graph import BYTES_PER_ELEMENT, Op, OpGraph, OpKind, StorageCategory, StorageEvent
from leadline.core.hardware import Device, DeviceKind
from leadline.estimators.attention_scratch import attention_bytes

TILE, STEP, FILTER = 6, 4, 3
"""Sides of a transformed tile, of the part of the output that it stands for, and of the filter."""
SOFTMAX = "_softmax_backward_data"


@dataclass(frozen=True, slots=True)
class Kernels:
    """Which kernels a GPU runs: whether convolutions in float32 are ``transformed``, and whose attention it has."""

    transformed: bool
    vendor: str = "nvidia"


def kernels_of(device: Device) -> Kernels:
    """Return which kernels a device runs; a GPU of NVIDIA whose tensor cores know no TF32 transforms convolutions."""
    peaks, vendor = device.peak_flops_per_s, device.vendor.lower()
    plain = device.kind is DeviceKind.GPU and "float32" in peaks and "tf32" not in peaks
    return Kernels(plain and vendor == "nvidia", vendor)


def scratch_bytes(op: Op, kernels: Kernels) -> int:
    """Return the bytes that ``op`` takes while it runs."""
    if op.kind is OpKind.ATTENTION:
        return attention_bytes(op, kernels.vendor)
    if op.kind is OpKind.SOFTMAX and op.name.rpartition(".")[2] == SOFTMAX and op.outputs:
        return math.prod(op.outputs[0].shape) * BYTES_PER_ELEMENT.get(op.outputs[0].dtype, 4)
    return _transforms_bytes(op) if kernels.transformed and op.kind is OpKind.CONV else 0


def with_scratch(graph: OpGraph, kernels: Kernels) -> OpGraph:
    """Return the graph whose ops take their scratch just before they run, and give it back after.

    A graph without any is returned as it is.
    """
    events, place = list[StorageEvent](), 0
    name = max((event.storage for event in graph.events), default=0)
    for number, op in enumerate(graph.ops):
        size = scratch_bytes(op, kernels)
        if not size:
            continue
        while place < len(graph.events) and graph.events[place].op <= number:
            events.append(graph.events[place])
            place += 1
        name += 1
        events.append(StorageEvent(number, name, size, StorageCategory.TEMPORARY))
        events.append(StorageEvent(number, name, -size, StorageCategory.TEMPORARY))
    return replace(graph, events=(*events, *graph.events[place:])) if events else graph


def _transforms_bytes(op: Op) -> int:
    sizes = op.dims
    if op.dtype != "float32" or "r" not in sizes or "transposed" in sizes:
        return 0
    plain = all(sizes.get(name, 1) == 1 for name in ("stride", "dilation", "groups"))
    if not plain or (sizes["r"], sizes["s"]) != (FILTER, FILTER):
        return 0
    tiles = sizes["n"] * -(-sizes["h"] // STEP) * -(-sizes["w"] // STEP)
    inputs, outputs = sizes["c"], sizes["k"]
    return BYTES_PER_ELEMENT["float32"] * TILE**2 * (inputs * tiles + outputs * tiles + inputs * outputs)
