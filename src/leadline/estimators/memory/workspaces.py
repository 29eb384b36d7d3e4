"""What the backward pass of fused attention takes beside its tensors, read off PyTorch's sources.

Flash attention (``mha_bwd`` in ATen/native/transformers/cuda/flash_attn/flash_api.cpp; the package flash-attn does the
same) adds up the gradient of the queries in float32, ``dq_accum``, and holds ``softmax_d``, the sums over each row of
gradient times result; both have whole tiles of 128 queries, the former head sizes rounded to 32, or to 64 beyond 128.
Where heads share keys and values it makes the gradients of these for each head of the queries, and sums them after.

The memory-efficient kernel (``_efficient_attention_backward`` in ATen/native/transformers/cuda/attention_backward.cu,
``workspace_size`` in mem_eff_attention/kernel_backward.h) holds ``delta``, the same sums, and the gradient of the
queries in float32 in tiles, each with 16 bytes of locks; in 16 bits, beyond a head size of 128, also one tile of the
gradients of keys and values for each part into which the keys are split. In float32 the product of gradient and result
is there before, as ``delta`` is made by ops. Tiles are those that kernels/cutlassB.h lists for compute capability 8.0.

On AMD's GPUs (flash_attn/aot/mha_all_aot.hip) the same sums are all: twice for flash attention, of which one is unused.

The forward pass takes nothing that a trace does not show, but where it splits the keys because there are too few tiles
of queries for the GPU: some MiB, which are left out. So are nested tensors (no sizes are known of them), deterministic
algorithms, and cuDNN's attention, whose workspace no source tells. Layers of an expanded configuration that are alike
are one op: the last of them, which runs its backward pass first, is the one that takes the scratch.
"""

import math
from dataclasses import dataclass, replace

from leadline.core.graph import BYTES_PER_ELEMENT, Op, OpGraph, OpKind, Stage, StorageCategory, StorageEvent
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import KIB, MIB

FLASH, EFFICIENT = "flash_attention_backward", "efficient_attention_backward"
FLOAT32_BYTES = BYTES_PER_ELEMENT["float32"]
# Queries of a tile of flash attention.
QUERIES = 128
# Words beside each tile of the memory-efficient kernel's workspace.
LOCKS = 4
# Parts of keys over all heads and samples that it splits into at most, where they need memory.
PARTS = 200


def attention_scratch_bytes(op: Op, vendor: str) -> int:
    """Return the bytes that an op of attention takes while it runs: nothing but for the fused backward kernels."""
    name, sizes = op.name.rpartition(".")[2], op.dims
    if not name.endswith((FLASH, EFFICIENT)) or not sizes.keys() >= {"b", "h", "q", "kv", "d"}:
        return 0
    if vendor != "nvidia":
        return (2 if name.endswith(FLASH) else 1) * FLOAT32_BYTES * sizes["b"] * sizes["h"] * sizes["q"]
    return _flash_bytes(op) if name.endswith(FLASH) else _efficient_bytes(op)


def _flash_bytes(op: Op) -> int:
    b, h, kv, d = (op.dims[name] for name in ("b", "h", "kv", "d"))
    queries = _rounded(op.dims["q"], QUERIES)
    size = FLOAT32_BYTES * b * h * queries * (1 + _rounded(d, 32 if d <= 128 else 64))
    if _key_heads(op) != h:
        size += 2 * BYTES_PER_ELEMENT.get(op.dtype, 2) * b * h * kv * _rounded(d, 8)
    return size


def _efficient_bytes(op: Op) -> int:
    b, h, q, kv, d = (op.dims[name] for name in ("b", "h", "q", "kv", "d"))
    values = op.inputs[3].shape[-1] if len(op.inputs) > 3 else d
    widest, half = max(d, values), BYTES_PER_ELEMENT.get(op.dtype, 4) == 2
    rows = 128 if widest > 64 else 64
    columns = 128 if half and 64 < widest <= 128 else 64
    each = -(-q // rows) * -(-d // columns) * (LOCKS + rows * columns)
    if half and widest > 128:
        parts = max(min(-(-kv // columns), PARTS // (b * h)), 1)
        each += parts * columns * (_rounded(d, rows) + _rounded(values, rows))
    delta, product = b * h * q, 0 if half else b * h * q * values
    return FLOAT32_BYTES * max(delta + b * h * _rounded(each, 4), product + 2 * delta)


def _key_heads(op: Op) -> int:
    """Return how many heads the keys have; the third of what the op reads, as (b, h, kv, d) or (b, kv, h, d)."""
    if len(op.inputs) < 3 or len(op.inputs[2].shape) != 4:
        return op.dims["h"]
    scaled = "scaled_dot_product" in op.name
    return op.inputs[2].shape[1 if scaled else 2]


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


# Sides of a transformed tile, of the part of the output that it stands for, and of the filter.
TILE, STEP, FILTER = 6, 4, 3
SOFTMAX = "_softmax_backward_data"


@dataclass(frozen=True, slots=True)
class ScratchKernels:
    """Which kernels a GPU runs: whether convolutions in float32 are ``transformed``, and whose attention it has."""

    transformed: bool
    vendor: str = "nvidia"


def scratch_kernels(device: Device) -> ScratchKernels:
    """Return which kernels a device runs; a GPU of NVIDIA whose tensor cores know no TF32 transforms convolutions."""
    peaks, vendor = device.peak_flops_per_s, device.vendor.lower()
    plain = device.kind is DeviceKind.GPU and "float32" in peaks and "tf32" not in peaks
    return ScratchKernels(plain and vendor == "nvidia", vendor)


def scratch_bytes(op: Op, kernels: ScratchKernels) -> int:
    """Return the bytes that ``op`` takes while it runs."""
    if op.kind is OpKind.ATTENTION:
        return attention_scratch_bytes(op, kernels.vendor)
    if op.kind is OpKind.SOFTMAX and op.name.rpartition(".")[2] == SOFTMAX and op.outputs:
        return math.prod(op.outputs[0].shape) * BYTES_PER_ELEMENT.get(op.outputs[0].dtype, 4)
    return _transforms_bytes(op) if kernels.transformed and op.kind is OpKind.CONV else 0


def add_scratch(graph: OpGraph, kernels: ScratchKernels) -> OpGraph:
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


USUAL_BYTES = 2 * 4 * MIB + 8 * 16 * KIB
LARGE_BYTES = 32 * MIB
# Where it is not the usual one.
BY_ARCHITECTURE = {
    "Hopper": LARGE_BYTES, "Blackwell": LARGE_BYTES, "Blackwell Ultra": LARGE_BYTES,
    "CDNA": LARGE_BYTES, "CDNA2": LARGE_BYTES, "CDNA3": 4 * LARGE_BYTES, "CDNA4": 4 * LARGE_BYTES,
}  # fmt: skip
# Front-ends whose graphs PyTorch runs: XLA and ONNX Runtime plan the scratch of their products themselves.
RUN_BY_TORCH = ("torch", "config.json by formula")


def add_workspaces(graph: OpGraph, device: Device) -> OpGraph:
    """Return a graph that takes the workspaces of its kernels on ``device``.

    Those of products are there from the start, as in later steps, those of other kernels while these run.
    """
    size, kernels = workspace_settings(device)
    if not size or graph.source not in RUN_BY_TORCH:
        return graph
    graph = add_scratch(graph, kernels)
    stages = {op.stage is Stage.BACKWARD for op in graph.ops if op.kind is OpKind.GEMM}
    if not stages:
        return graph
    first = max((event.storage for event in graph.events), default=0) + 1
    workspaces = [StorageEvent(0, first + number, size, StorageCategory.WORKSPACE) for number in range(len(stages))]
    return replace(graph, events=(*workspaces, *graph.events))


def workspace_settings(device: Device) -> tuple[int, ScratchKernels]:
    """Return the bytes of one workspace of products on ``device``, and which kernels it runs.

    There is none where nothing is known of such a library.
    """
    if device.kind is not DeviceKind.GPU or device.vendor.lower() not in ("nvidia", "amd"):
        return 0, scratch_kernels(device)
    return BY_ARCHITECTURE.get(device.architecture or "", USUAL_BYTES), scratch_kernels(device)
