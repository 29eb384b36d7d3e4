"""Scratch memory of GPU kernels that no trace of ops shows, read from PyTorch's sources.

**Products.** PyTorch gives each cuBLAS handle a workspace per stream: two parts of 4 MiB and eight of 16 KiB, or 32 MiB
from Hopper on (``parseChosenWorkspaceSize`` in ATen/cuda/CublasHandlePool.cpp). hipBLAS has 32 MiB, and 128 MiB on
CDNA3 and CDNA4. Handles belong to threads. The backward pass runs in its own thread, so training holds two. Older
releases give cuBLASLt another 1 MiB during a call, which is ignored here.

**Convolutions and softmax.** In float32 without TF32, cuDNN transforms 3 × 3 convolutions of stride 1 by Winograd's
algorithm ("WINOGRAD_NONFUSED" in its developer guide). Input, output and filter are held in tiles of 6 × 6 values for
each 4 × 4 of the output (Lavin and Gray 2016, F(4 × 4, 3 × 3)). PyTorch's softmax backward first stores the product of
gradient and result (``SoftMax.cu``). Measured peaks of segmenters are short by these sizes without them (``leadline
bench detectors``).

**Flash attention, backward** (``mha_bwd`` in ATen/native/transformers/cuda/flash_attn/flash_api.cpp). It holds
``dq_accum``, the float32 gradient of the queries, and ``softmax_d``, row sums of gradient times result. Both have whole
tiles of 128 queries. Head sizes are rounded to 32, or to 64 above 128. Where heads share keys and values, their
gradients exist for each query head first.

**Memory-efficient attention, backward** (``workspace_size`` in mem_eff_attention/kernel_backward.h). It holds ``delta``
(the same sums) and the float32 gradient of the queries in tiles with 16 bytes of locks each. In 16 bits, above a head
size of 128, it adds one tile of key and value gradients for each part of the keys. In float32 the product of gradient
and result exists before. Tiles are those of kernels/cutlassB.h for compute capability 8.0.

AMD (flash_attn/aot/mha_all_aot.hip) holds the sums only, twice for flash attention. Not modelled: forward passes that
split the keys (some MiB), nested tensors, deterministic algorithms and cuDNN's attention. Identical layers are one op:
the last one, whose backward pass runs first, takes the scratch.
"""

import math

from msgspec.structs import replace

from leadline.core.frozen import Frozen
from leadline.core.graph import BYTES_PER_ELEMENT, CALCULATED, Op, OpGraph, OpKind, Stage, StorageCategory, StorageEvent
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import KIB, MIB
from leadline.estimators.memory.allocator import round_up

FLASH, EFFICIENT = "flash_attention_backward", "efficient_attention_backward"
FLOAT32_BYTES = BYTES_PER_ELEMENT["float32"]
QUERIES = 128  # queries of a tile of flash attention
LOCKS = 4  # lock words per tile of the memory-efficient kernel's workspace
PARTS = 200  # parts of keys over all heads and samples that it splits into at most, where they need memory


def attention_scratch_bytes(op: Op, vendor: str) -> int:
    """Return the scratch bytes of an attention op; zero except for fused backward kernels."""
    name, sizes = op.name.rpartition(".")[2], op.dims
    if not name.endswith((FLASH, EFFICIENT)) or not sizes.keys() >= {"b", "h", "q", "kv", "d"}:
        return 0
    if vendor != "nvidia":
        return (2 if name.endswith(FLASH) else 1) * FLOAT32_BYTES * sizes["b"] * sizes["h"] * sizes["q"]
    return _flash_bytes(op) if name.endswith(FLASH) else _efficient_bytes(op)


def _flash_bytes(op: Op) -> int:
    b, h, kv, d = (op.dims[name] for name in ("b", "h", "kv", "d"))
    queries = round_up(op.dims["q"], QUERIES)
    size = FLOAT32_BYTES * b * h * queries * (1 + round_up(d, 32 if d <= 128 else 64))
    if _key_heads(op) != h:
        size += 2 * BYTES_PER_ELEMENT.get(op.dtype, 2) * b * h * kv * round_up(d, 8)
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
        each += parts * columns * (round_up(d, rows) + round_up(values, rows))
    delta, product = b * h * q, 0 if half else b * h * q * values
    return FLOAT32_BYTES * max(delta + b * h * round_up(each, 4), product + 2 * delta)


def _key_heads(op: Op) -> int:
    """Return the number of key heads from the op's third input, (b, h, kv, d) or (b, kv, h, d)."""
    if len(op.inputs) < 3 or len(op.inputs[2].shape) != 4:
        return op.dims["h"]
    scaled = "scaled_dot_product" in op.name
    return op.inputs[2].shape[1 if scaled else 2]


# Sides of a transformed tile, of the part of the output that it stands for, and of the filter.
TILE, STEP, FILTER = 6, 4, 3
SOFTMAX = "_softmax_backward_data"


USUAL_BYTES = 2 * 4 * MIB + 8 * 16 * KIB
LARGE_BYTES = 32 * MIB
# Where it is not the usual one.
BY_ARCHITECTURE = {
    "Hopper": LARGE_BYTES, "Blackwell": LARGE_BYTES, "Blackwell Ultra": LARGE_BYTES,
    "CDNA": LARGE_BYTES, "CDNA2": LARGE_BYTES, "CDNA3": 4 * LARGE_BYTES, "CDNA4": 4 * LARGE_BYTES,
}  # fmt: skip


class Workspaces(Frozen):
    """Kernels that a GPU runs: Winograd-transformed float32 convolutions, and the attention's vendor.

    ``product_bytes`` are those of one workspace of products, zero where the library is unknown.
    """

    transformed: bool
    vendor: str = "nvidia"
    product_bytes: int = 0

    @classmethod
    def of(cls, device: Device) -> "Workspaces":
        """Return the kernels of a device; NVIDIA GPUs without TF32 transform convolutions."""
        peaks, vendor, is_gpu = device.peak_flops_per_s, device.vendor.lower(), device.kind is DeviceKind.GPU
        transformed = is_gpu and vendor == "nvidia" and "float32" in peaks and "tf32" not in peaks
        size = BY_ARCHITECTURE.get(device.architecture or "", USUAL_BYTES)
        return cls(transformed, vendor, size if is_gpu and vendor in ("nvidia", "amd") else 0)


def scratch_bytes(op: Op, kernels: Workspaces) -> int:
    """Return the bytes that ``op`` takes while it runs."""
    if op.kind is OpKind.ATTENTION:
        return attention_scratch_bytes(op, kernels.vendor)
    if op.kind is OpKind.SOFTMAX and op.name.rpartition(".")[2] == SOFTMAX and op.outputs:
        return math.prod(op.outputs[0].shape) * BYTES_PER_ELEMENT.get(op.outputs[0].dtype, 4)
    return _transforms_bytes(op) if kernels.transformed and op.kind is OpKind.CONV else 0


def add_scratch(graph: OpGraph, kernels: Workspaces) -> OpGraph:
    """Return the graph with each op's scratch allocated just before it runs and freed after.

    A graph without scratch is returned unchanged.
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
    return FLOAT32_BYTES * TILE**2 * (inputs * tiles + outputs * tiles + inputs * outputs)


# Front-ends whose graphs PyTorch runs: XLA and ONNX Runtime plan the scratch of their products themselves.
RUN_BY_TORCH = ("torch", CALCULATED, "config.json by formula")


def add_workspaces(graph: OpGraph, device: Device) -> OpGraph:
    """Return a graph with the workspaces of its kernels on ``device``."""
    # Those of products exist from the start, those of other kernels while they run.
    kernels = Workspaces.of(device)
    if not kernels.product_bytes or graph.source not in RUN_BY_TORCH:
        return graph
    graph = add_scratch(graph, kernels)
    stages = {op.stage is Stage.BACKWARD for op in graph.ops if op.kind is OpKind.GEMM}
    if not stages:
        return graph
    first = max((event.storage for event in graph.events), default=0) + 1
    storages, size = range(first, first + len(stages)), kernels.product_bytes
    workspaces = [StorageEvent(0, storage, size, StorageCategory.WORKSPACE) for storage in storages]
    return replace(graph, events=(*workspaces, *graph.events))
