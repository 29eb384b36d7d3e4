"""What a convolution on a CPU takes beside its result: oneDNN copies its operands into a layout of its own.

The order of taking and giving back was read off the CPU profiler's memory events for 30 convolutions of PyTorch 2.13
(plain, strided, grouped, one- to three-dimensional, transposed). Channels are padded to the vector registers' width;
few channels are left as they lie, and so are products of 1 × 1 with stride 1, and anything but float32.
"""

import math
from collections.abc import Iterator

from leadline.core.graph import Op, TensorSpec

CHANNEL_BLOCK = 16
"""Channels that lie together: one 64-byte register of AVX-512 in float32; 8 with AVX2."""

FEW_CHANNELS = 4
"""Up to here a tensor keeps its layout."""

Move = tuple[float, int, int]
"""When within the op (its own results come at 1, 2, …), which copy, and its bytes: negative when given back."""


def copies(op: Op, channel_block: int = CHANNEL_BLOCK) -> list[Move]:
    """Return what a convolution takes and gives back around its own results, in order; nothing where it is unknown."""
    backward = "backward" in op.name
    if len(op.inputs) < (3 if backward else 2) or op.dtype != "float32":
        return []
    source, weight = (op.inputs[1], op.inputs[2]) if backward else (op.inputs[0], op.inputs[1])
    result = op.inputs[0] if backward else op.outputs[0]
    stride = op.dims.get("stride", 1)
    if math.prod(weight.shape[2:]) == 1 and stride == 1:
        return []
    x, y = _padded(source, channel_block), _padded(result, channel_block)
    w = _padded_weight(weight, channel_block, depthwise=op.dims.get("groups", 1) == source.shape[1])
    if not backward:
        spread = _bytes(result) if op.dims.get("transposed") and stride > 1 else 0
        return list(_forward(x if _copied(source) else 0, w, y, spread))
    wants_source = any(one.shape == source.shape for one in op.outputs)
    wants_weight = any(one.shape == weight.shape for one in op.outputs)
    spread = _bytes(source) if stride > 1 and not op.dims.get("transposed") else 0
    moves = list(_source_gradient(x, w, y if _copied(result) else 0, spread)) if wants_source else []
    if wants_weight:
        x, y = (_padded(one, channel_block, few=0) if one.shape[1] == 1 else size if _copied(one) else 0
                for one, size in ((source, x), (result, y)))  # fmt: skip
        moves += _weight_gradient(x, w, y, after=int(wants_source))
    return moves


def _forward(x: int, w: int, y: int, spread: int) -> Iterator[Move]:
    yield from ((0, 1, x), (0, 2, w), (0, 3, y), (0, 2, -w), (0, 1, -x), (0, 4, spread), (1.5, 3, -y), (1.5, 4, -spread))


def _source_gradient(x: int, w: int, y: int, spread: int) -> Iterator[Move]:
    yield from ((0, 1, y), (0, 2, w), (0, 3, x), (0, 2, -w), (0, 1, -y), (0, 4, spread), (1.2, 3, -x), (1.2, 4, -spread))


def _weight_gradient(x: int, w: int, y: int, *, after: int) -> Iterator[Move]:
    begin, end = after + 0.5, after + 1.5
    yield from ((begin, 5, y), (begin, 6, x), (begin, 7, w), (begin, 6, -x), (begin, 5, -y), (end, 7, -w))


def _copied(spec: TensorSpec) -> bool:
    return spec.shape[1] > FEW_CHANNELS


def _padded(spec: TensorSpec, block: int, few: int = FEW_CHANNELS) -> int:
    batch, channels, *spatial = spec.shape
    return 4 * batch * math.prod(spatial) * (_blocks(channels, block) if channels > few else channels)


def _padded_weight(spec: TensorSpec, block: int, *, depthwise: bool) -> int:
    out, into, *taps = spec.shape
    inner = into if depthwise or into <= FEW_CHANNELS else _blocks(into, block)
    return 4 * _blocks(out, block) * inner * math.prod(taps)


def _blocks(channels: int, block: int) -> int:
    return -(-channels // block) * block


def _bytes(spec: TensorSpec) -> int:
    return 4 * math.prod(spec.shape)
