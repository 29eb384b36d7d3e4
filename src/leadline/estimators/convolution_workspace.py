"""What cuDNN takes beside the tensors of a convolution, which PyTorch lets it take through the caching allocator.

In float32, without TF32, cuDNN transforms 3 × 3 convolutions of stride 1 by Winograd's algorithm and multiplies the
transforms as matrices ("WINOGRAD_NONFUSED" in its developer guide): input, output and filter are held in tiles of 6 × 6
values for each 4 × 4 of the output (Lavin and Gray 2016, F(4 × 4, 3 × 3)). ``max_memory_allocated`` counts it; measured
peaks of segmenters are short by just this size without it (``leadline bench detectors``).
"""

from dataclasses import replace

from leadline.core.graph import Op, OpGraph, OpKind, StorageCategory, StorageEvent
from leadline.core.hardware import Device, DeviceKind

TILE, STEP, FILTER = 6, 4, 3
"""Sides of a transformed tile, of the part of the output that it stands for, and of the filter."""
BYTES = 4


def workspace_bytes(op: Op) -> int:
    """Return the bytes of the transforms while ``op`` runs; 0 for what is not transformed."""
    if op.kind is not OpKind.CONV or op.dtype != "float32" or "r" not in op.dims or "transposed" in op.dims:
        return 0
    sizes = op.dims
    plain = all(sizes.get(name, 1) == 1 for name in ("stride", "dilation", "groups"))
    if not plain or (sizes["r"], sizes["s"]) != (FILTER, FILTER):
        return 0
    tiles = sizes["n"] * -(-sizes["h"] // STEP) * -(-sizes["w"] // STEP)
    inputs, outputs = sizes["c"], sizes["k"]
    return BYTES * TILE**2 * (inputs * tiles + outputs * tiles + inputs * outputs)


def with_transforms(graph: OpGraph) -> OpGraph:
    """Return the graph whose convolutions take their transforms just before they run, and give them back after."""
    events, place = list[StorageEvent](), 0
    name = max((event.storage for event in graph.events), default=0)
    for number, op in enumerate(graph.ops):
        size = workspace_bytes(op)
        if not size:
            continue
        while place < len(graph.events) and graph.events[place].op <= number:
            events.append(graph.events[place])
            place += 1
        name += 1
        events.append(StorageEvent(number, name, size, StorageCategory.TEMPORARY))
        events.append(StorageEvent(number, name, -size, StorageCategory.TEMPORARY))
    return replace(graph, events=(*events, *graph.events[place:]))


def transforms(device: Device) -> bool:
    """Tell whether convolutions in float32 run so on a device: a GPU of NVIDIA whose tensor cores know no TF32."""
    peaks = device.peak_flops_per_s
    return device.kind is DeviceKind.GPU and device.vendor == "nvidia" and "float32" in peaks and "tf32" not in peaks
