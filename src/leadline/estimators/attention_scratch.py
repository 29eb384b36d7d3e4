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

from leadline.core.graph import BYTES_PER_ELEMENT, Op

FLASH, EFFICIENT = "flash_attention_backward", "efficient_attention_backward"
FLOAT = BYTES_PER_ELEMENT["float32"]
QUERIES = 128
"""Queries of a tile of flash attention."""
LOCKS = 4
"""Words beside each tile of the memory-efficient kernel's workspace."""
PARTS = 200
"""Parts of keys over all heads and samples that it splits into at most, where they need memory."""


def attention_bytes(op: Op, vendor: str) -> int:
    """Return the bytes that an op of attention takes while it runs: nothing but for the fused backward kernels."""
    name, sizes = op.name.rpartition(".")[2], op.dims
    if not name.endswith((FLASH, EFFICIENT)) or not sizes.keys() >= {"b", "h", "q", "kv", "d"}:
        return 0
    if vendor != "nvidia":
        return (2 if name.endswith(FLASH) else 1) * FLOAT * sizes["b"] * sizes["h"] * sizes["q"]
    return _flash_bytes(op) if name.endswith(FLASH) else _efficient_bytes(op)


def _flash_bytes(op: Op) -> int:
    b, h, kv, d = (op.dims[name] for name in ("b", "h", "kv", "d"))
    queries = _rounded(op.dims["q"], QUERIES)
    taken = FLOAT * b * h * queries * (1 + _rounded(d, 32 if d <= 128 else 64))
    if _key_heads(op) != h:
        taken += 2 * BYTES_PER_ELEMENT.get(op.dtype, 2) * b * h * kv * _rounded(d, 8)
    return taken


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
    return FLOAT * max(delta + b * h * _rounded(each, 4), product + 2 * delta)


def _key_heads(op: Op) -> int:
    """Return how many heads the keys have; the third of what the op reads, as (b, h, kv, d) or (b, kv, h, d)."""
    if len(op.inputs) < 3 or len(op.inputs[2].shape) != 4:
        return op.dims["h"]
    scaled = "scaled_dot_product" in op.name
    return op.inputs[2].shape[1 if scaled else 2]


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
