"""Layout copies that oneDNN allocates for a convolution or an LSTM on a CPU.

The order of allocations was read from the CPU profiler's memory events for 60 convolutions of PyTorch 2.13 (plain,
strided, grouped, one- to three-dimensional, transposed; contiguous and channels-last; float32 and bfloat16). Channels
are padded to the vector registers' width. Tensors of few channels keep their layout. Not modelled: AVX2's width in
weight gradients of few channels on some AVX-512 processors, and the scratch of AMX tiles (up to 0.6 MB a thread).
LSTM copies come from the same events of six layers; ``worker/rnn.py`` counts what they keep for the backward pass.
"""

import math
from collections.abc import Mapping
from operator import gt

from leadline.core.frozen import Frozen
from leadline.core.graph import Op, OpKind, TensorSpec
from leadline.estimators.memory.allocator import round_up

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}  # dtypes whose convolutions were looked at
AVX512_BLOCK = 16  # channels in a register of AVX-512, without which PyTorch hands no bfloat16 to oneDNN
FEW_CHANNELS = 4  # up to here a tensor is read in the layout it has
# From here on a single thread hands filters of one tap to oneDNN, too (`ConvParams::use_mkldnn` in ATen).
SMALL_BATCH = 16
# One image of up to so many elements is convolved by PyTorch's own kernel (the same function of ATen).
SMALL_IMAGE = 20480
JIT_TAPS = 9  # depthwise filters of more taps have no kernel of their own for the gradient of their weights
# When within the op (its own results come at 1, 2, …), which copy, and its bytes: negative when given back.
Move = tuple[float, int, int]


class Processor(Frozen):
    """Processor properties that decide how convolutions run."""

    channel_block: int = 16  # channels in a 64-byte register of AVX-512 in float32; half as many with AVX2
    threads: int = 2  # a single one multiplies the 1 × 1 filters of a small batch without copies
    tiles: bool = False  # AMX computes bfloat16 in channels-last layout, from which a result is copied once more

    @classmethod
    def of(cls, figures: Mapping[str, float]) -> "Processor":
        """Return the processor of a calibration's ``vector_bytes``, ``threads`` and ``matrix_tiles`` where known."""
        block = int(figures.get("vector_bytes", 64)) // 4
        return cls(block, int(figures.get("threads", 2)), "matrix_tiles" in figures)


class _Convolution(Frozen):
    """Operands of one convolution, forward or backward, and their memory layout."""

    source: TensorSpec
    weight: TensorSpec
    result: TensorSpec
    groups: int
    stride: int
    transposed: bool
    channels_last: bool
    element: int
    processor: Processor

    @property
    def taps(self) -> int:
        """Elements of one filter over one channel."""
        return math.prod(self.weight.shape[2:])

    @property
    def depthwise(self) -> bool:
        """True if each channel has filters of its own."""
        return self.groups > 1 and self.groups == self.source.shape[1]

    @property
    def in_tiles(self) -> bool:
        """True if AMX computes it."""
        return self.processor.tiles and self.element == ELEMENT_BYTES["bfloat16"] and not self.depthwise

    def bytes_of(self, spec: TensorSpec) -> int:
        """Return the bytes of a tensor in its own layout."""
        return self.element * math.prod(spec.shape)

    def padded(self, spec: TensorSpec) -> int:
        """Return the bytes of a tensor in blocked channels."""
        batch, channels, *spatial = spec.shape
        return self.element * batch * math.prod(spatial) * round_up(channels, self.processor.channel_block)

    def padded_weight(self, groups: int = 1) -> int:
        """Return the bytes of the filters with blocks of channels on both sides of all or of each of the groups."""
        out, into, *_ = self.weight.shape
        columns = into if self.depthwise and groups == 1 else round_up(into, self.processor.channel_block)
        return self.element * groups * round_up(out // groups, self.processor.channel_block) * columns * self.taps

    @property
    def filters_exceed_image(self) -> bool:
        """True if AVX2 has no kernel for the gradient of the weights, which a matrix product then computes."""
        exceeds = any(map(gt, self.weight.shape[2:], self.source.shape[2:]))
        return exceeds and not self.transposed and self.processor.channel_block < AVX512_BLOCK

    def scratch(self, weight: int) -> int:
        """Return what a weight gradient of ``weight`` bytes needs meanwhile: workspace, or float32 sums of bfloat16."""
        if self.filters_exceed_image:  # read from memory events on an EPYC of family 25
            columns = self.element * self.weight.shape[1] * self.taps * math.prod(self.result.shape[2:])
            return self.processor.threads * (4 * self.bytes_of(self.weight) + columns)
        return 0 if self.element == 4 else 4 * weight // self.element


def operand_copies(op: Op, processor: Processor) -> list[Move]:
    """Return the copies around a convolution's or an LSTM's own results, in order."""
    if op.kind is OpKind.RNN:
        return _recurrent(op)
    return _convolved(op, processor) if op.kind is OpKind.CONV else []


def _convolved(op: Op, processor: Processor) -> list[Move]:
    backward = "backward" in op.name
    if len(op.inputs) < (3 if backward else 2) or op.dtype not in ELEMENT_BYTES:
        return []
    if op.dtype == "bfloat16" and processor.channel_block < AVX512_BLOCK:
        return []
    source, weight = (op.inputs[1], op.inputs[2]) if backward else (op.inputs[0], op.inputs[1])
    conv = _Convolution(
        source, weight, op.inputs[0] if backward else op.outputs[0], op.dims.get("groups", 1), op.dims.get("stride", 1),
        bool(op.dims.get("transposed")), bool(op.dims.get("channels_last")), ELEMENT_BYTES[op.dtype], processor,
    )  # fmt: skip
    gradients = tuple(any(output.shape == spec.shape for output in op.outputs) for spec in (source, weight))
    if _unfolds(conv):
        return _unfolded(conv, len(op.outputs) if backward else 0)
    if conv.channels_last:
        return _last_backward(conv, *gradients) if backward else _last_forward(conv)
    return _backward(conv, *gradients) if backward else _forward(conv)


def _recurrent(op: Op) -> list[Move]:
    """Return the widest layer's reordered weights, gates and weight gradients, after the results of those before."""
    if "lstm" not in op.name or op.dtype not in ELEMENT_BYTES or "layers" not in op.dims:
        return []
    dims, element, hidden, layers = op.dims, ELEMENT_BYTES[op.dtype], op.dims["hidden"], op.dims["layers"]
    width = max(dims["input"], dims["directions"] * hidden if layers > 1 else 0)
    gates = dims["seq"] * dims["batch"] * 4 * hidden * element
    weights = 4 * hidden * (width + hidden) * element
    if "backward" not in op.name:
        after = len(op.outputs) + 0.1
        return [(after, 1, weights), (after, 2, gates), (after + 0.1, 2, -gates), (after + 0.1, 1, -weights)]
    gradients = 4 * hidden * (width + hidden) * (4 if element == 4 else 8)
    after = len(op.outputs) // layers + 0.1
    moves = [(after, 1, weights), (after, 2, gradients), (after, 3, gates)]
    return [*moves, (after + 0.1, 3, -gates), (after + 0.1, 2, -gradients), (after + 0.1, 1, -weights)]


def _unfolds(conv: _Convolution) -> bool:
    """Return whether PyTorch convolves by its own matrix product (``use_mkldnn`` in ATen)."""
    if conv.element != 4:
        return False
    batch, *_ = conv.source.shape
    if conv.taps == 1 and conv.stride == 1 and conv.processor.threads == 1 and batch < SMALL_BATCH:
        return True
    small = batch == 1 and conv.groups == 1 and math.prod(conv.source.shape) <= SMALL_IMAGE
    return small and any(size <= 3 for size in conv.weight.shape[-2:])


def _unfolded(conv: _Convolution, results: int) -> list[Move]:
    """Return the moves of the columns that an image is laid out in, unless it is them already."""
    if conv.transposed or (conv.taps == 1 and conv.stride == 1):
        return []
    size = conv.element * conv.source.shape[1] * conv.taps * math.prod(conv.result.shape[2:])
    return [(results + 0.1, 1, size), (max(results, 1) + 0.2, 1, -size)]


def _last_forward(conv: _Convolution) -> list[Move]:
    """Return the copies of a channels-last forward pass: filters reordered, then blocked."""
    ordered = conv.bytes_of(conv.weight) if conv.taps > 1 else 0
    blocked = 0 if conv.depthwise else conv.padded_weight()
    return [(0, 1, ordered), (1.1, 2, blocked), (1.2, 2, -blocked), (1.3, 1, -ordered)]


def _last_backward(conv: _Convolution, wants_source: bool, wants_weight: bool) -> list[Move]:
    ordered = conv.bytes_of(conv.weight) if conv.taps > 1 and not conv.depthwise else 0
    blocked, end = conv.padded_weight(), int(wants_source)
    moves: list[Move] = [(0, 1, ordered)]
    if wants_source:
        moves += [(1.1, 2, blocked), (1.2, 2, -blocked)]
    if wants_weight:
        gradient = blocked if conv.depthwise and conv.taps <= JIT_TAPS else conv.padded_weight(conv.groups)
        scratch, plain = conv.scratch(gradient), conv.bytes_of(conv.weight)
        moves += [(end + 0.5, 7, gradient), (end + 0.5, 0, scratch), (end + 0.6, 0, -scratch)]
        moves += [(end + 1.1, 3, plain), (end + 1.2, 3, -plain), (end + 1.2, 7, -gradient)]
    return [*moves, (end + int(wants_weight) + 0.3, 1, -ordered)]


def _forward(conv: _Convolution) -> list[Move]:
    few_in, few_out = (spec.shape[1] <= FEW_CHANNELS for spec in (conv.source, conv.result))
    x, y, w = conv.padded(conv.source), conv.padded(conv.result), conv.padded_weight()
    if few_in and not conv.transposed:
        w = w // round_up(1, conv.processor.channel_block) * conv.source.shape[1]
    written = conv.bytes_of(conv.result) if few_out and conv.transposed else y
    spread = conv.bytes_of(conv.result) if conv.in_tiles or (conv.transposed and conv.stride > 1) else 0
    return _pass_moves(0 if few_in else x, w, written, spread)


def _backward(conv: _Convolution, wants_source: bool, wants_weight: bool) -> list[Move]:
    x, y, w = conv.padded(conv.source), conv.padded(conv.result), conv.padded_weight()
    moves = list[Move]()
    if wants_source:
        few_out, strided = conv.result.shape[1] <= FEW_CHANNELS, conv.stride > 1 and not conv.transposed
        spread = conv.bytes_of(conv.source) if conv.in_tiles or strided else 0
        moves = _pass_moves(0 if few_out else y, w, x, spread)
    if wants_weight:
        as_they_lie = conv.filters_exceed_image or (conv.depthwise and conv.taps > JIT_TAPS)
        w = conv.bytes_of(conv.weight) if conv.filters_exceed_image else w
        # With AVX-512 a single channel keeps its layout, too (memory events on an EPYC of family 26).
        fewest = 1 if conv.processor.channel_block == AVX512_BLOCK else 2
        x, y = (
            0 if as_they_lie or fewest <= operand.shape[1] <= FEW_CHANNELS else size
            for operand, size in ((conv.source, x), (conv.result, y))
        )
        begin, scratch = int(wants_source) + 0.5, conv.scratch(w)
        moves += [(begin, 5, y), (begin, 6, x), (begin, 7, w), (begin, 0, scratch)]
        moves += [(begin, 0, -scratch), (begin, 6, -x), (begin, 5, -y), (begin + 1, 7, -w)]
    return moves


def _pass_moves(read: int, weight: int, written: int, spread: int) -> list[Move]:
    """Return the moves of one pass: operands are given back before the result, its copy after it."""
    moves = [(0, 1, read), (0, 2, weight), (0, 3, written), (0, 2, -weight), (0, 1, -read), (0, 4, spread)]
    return [*moves, (1.2, 3, -written), (1.2, 4, -spread)]
