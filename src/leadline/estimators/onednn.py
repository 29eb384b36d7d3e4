"""What a convolution on a CPU takes beside its result: oneDNN copies its operands into a layout of its own.

The order of taking and giving back was read off the CPU profiler's memory events for 30 convolutions of PyTorch 2.13
(plain, strided, grouped, one- to three-dimensional, transposed). Channels are padded to the vector registers' width,
and few channels are read as they lie. Nothing is known here of anything but float32.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from leadline.core.graph import Op, TensorSpec

FEW_CHANNELS = 4
"""Up to here a tensor is read in the layout it has."""

Move = tuple[float, int, int]
"""When within the op (its own results come at 1, 2, …), which copy, and its bytes: negative when given back."""


@dataclass(frozen=True, slots=True)
class Processor:
    """What decides how convolutions are carried out.

    ``channel_block`` channels lie together: a 64-byte register of AVX-512 in float32, half of it with AVX2. A single
    thread multiplies 1 × 1 filters as they lie.
    """

    channel_block: int = 16
    threads: int = 2

    @classmethod
    def of(cls, figures: Mapping[str, float]) -> "Processor":
        """Return the processor of a calibration's ``vector_bytes`` and ``threads``, as far as they are known."""
        usual = cls()
        block = int(figures.get("vector_bytes", 4 * usual.channel_block)) // 4
        return cls(block, int(figures.get("threads", usual.threads)))


def copies(op: Op, processor: Processor) -> list[Move]:
    """Return what a convolution takes and gives back around its own results, in order; nothing where it is unknown."""
    backward = "backward" in op.name
    if len(op.inputs) < (3 if backward else 2) or op.dtype != "float32":
        return []
    source, weight = (op.inputs[1], op.inputs[2]) if backward else (op.inputs[0], op.inputs[1])
    result = op.inputs[0] if backward else op.outputs[0]
    stride = op.dims.get("stride", 1)
    if math.prod(weight.shape[2:]) == 1 and stride == 1 and processor.threads == 1:
        return []
    channel_block = processor.channel_block
    depthwise = op.dims.get("groups", 1) == source.shape[1]
    transposed = bool(op.dims.get("transposed"))
    x, y = _padded(source, channel_block), _padded(result, channel_block)
    w = _padded_weight(weight, channel_block, depthwise=depthwise)
    if not backward:
        spread = _bytes(result) if transposed and stride > 1 else 0
        few = result.shape[1] <= FEW_CHANNELS and transposed
        read = w if transposed or source.shape[1] > FEW_CHANNELS else w // _blocks(1, channel_block) * source.shape[1]
        return list(_forward(x if _copied(source) else 0, read, _bytes(result) if few else y, spread))
    wants_source = any(one.shape == source.shape for one in op.outputs)
    wants_weight = any(one.shape == weight.shape for one in op.outputs)
    spread = _bytes(source) if stride > 1 and not transposed else 0
    moves = list(_source_gradient(x, w, y if _copied(result) else 0, spread)) if wants_source else []
    if wants_weight:
        x, y = (size if _copied(one) or one.shape[1] == 1 else 0 for one, size in ((source, x), (result, y)))
        moves += _weight_gradient(x, w, y, after=int(wants_source))
    return moves


def _forward(x: int, w: int, y: int, spread: int) -> Iterator[Move]:
    yield from (
        (0, 1, x),
        (0, 2, w),
        (0, 3, y),
        (0, 2, -w),
        (0, 1, -x),
        (0, 4, spread),
        (1.5, 3, -y),
        (1.5, 4, -spread),
    )


def _source_gradient(x: int, w: int, y: int, spread: int) -> Iterator[Move]:
    yield from (
        (0, 1, y),
        (0, 2, w),
        (0, 3, x),
        (0, 2, -w),
        (0, 1, -y),
        (0, 4, spread),
        (1.2, 3, -x),
        (1.2, 4, -spread),
    )


def _weight_gradient(x: int, w: int, y: int, *, after: int) -> Iterator[Move]:
    begin, end = after + 0.5, after + 1.5
    yield from ((begin, 5, y), (begin, 6, x), (begin, 7, w), (begin, 6, -x), (begin, 5, -y), (end, 7, -w))


def _copied(spec: TensorSpec) -> bool:
    return spec.shape[1] > FEW_CHANNELS


def _padded(spec: TensorSpec, block: int) -> int:
    batch, channels, *spatial = spec.shape
    return 4 * batch * math.prod(spatial) * _blocks(channels, block)


def _padded_weight(spec: TensorSpec, block: int, *, depthwise: bool) -> int:
    out, into, *taps = spec.shape
    return 4 * _blocks(out, block) * (into if depthwise else _blocks(into, block)) * math.prod(taps)


def _blocks(channels: int, block: int) -> int:
    return -(-channels // block) * block


def _bytes(spec: TensorSpec) -> int:
    return 4 * math.prod(spec.shape)
