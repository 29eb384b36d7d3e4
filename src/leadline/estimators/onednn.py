"""What a convolution on a CPU takes beside its result: oneDNN copies its operands into a layout of its own.

The order of taking and giving back was read off the CPU profiler's memory events for 30 convolutions of PyTorch 2.13
(plain, strided, grouped, one- to three-dimensional, transposed). Channels are padded to the vector registers' width,
and few channels are read as they lie. Some processors with AVX-512 compute weight gradients of few channels with AVX2's
width, which is not foretold. Nothing is known here of anything but float32.
"""

import math
from collections.abc import Mapping
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
    block, few_in, few_out = processor.channel_block, _few(source), _few(result)
    transposed = bool(op.dims.get("transposed"))
    x, y = _padded(source, block), _padded(result, block)
    w = _padded_weight(weight, block, depthwise=op.dims.get("groups", 1) == source.shape[1])
    if not backward:
        if few_in and not transposed:
            w = w // _blocks(1, block) * source.shape[1]
        made = _bytes(result) if few_out and transposed else y
        return _through(0 if few_in else x, w, made, _bytes(result) if transposed and stride > 1 else 0)
    wants_source = any(one.shape == source.shape for one in op.outputs)
    moves = []
    if wants_source:
        moves = _through(0 if few_out else y, w, x, _bytes(source) if stride > 1 and not transposed else 0)
    if any(one.shape == weight.shape for one in op.outputs):
        x, y = (0 if _few(one) and one.shape[1] > 1 else size for one, size in ((source, x), (result, y)))
        moves += _weight_gradient(x, w, y, after=int(wants_source))
    return moves


def _through(read: int, weight: int, made: int, spread: int) -> list[Move]:
    """Return the moves of one pass: operands are given back before the result, its copy after it."""
    taken = [(0, 1, read), (0, 2, weight), (0, 3, made), (0, 2, -weight), (0, 1, -read), (0, 4, spread)]
    return [*taken, (1.2, 3, -made), (1.2, 4, -spread)]


def _weight_gradient(x: int, w: int, y: int, *, after: int) -> list[Move]:
    begin, end = after + 0.5, after + 1.5
    return [(begin, 5, y), (begin, 6, x), (begin, 7, w), (begin, 6, -x), (begin, 5, -y), (end, 7, -w)]


def _few(spec: TensorSpec) -> bool:
    return spec.shape[1] <= FEW_CHANNELS


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
