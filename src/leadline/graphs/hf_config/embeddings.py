"""What turns words, images and sounds into the hidden states that a stack of layers starts from."""

from leadline.core.graph import OpKind, StorageCategory
from leadline.graphs.hf_config import ops
from leadline.graphs.hf_config.modules import Linear, ModelBuilder, Norm
from leadline.graphs.hf_config.shape import ImageShape, SpeechShape, StackShape
from leadline.graphs.hf_config.tape import Tape, TapeTensor

TEMPORARY = StorageCategory.TEMPORARY
KERNEL = 3
"""Frames that a convolution over sound sees at once."""


class TokenEmbedding:
    """Rows of a ``table`` for words, with learned positions and segments; the table may be another model's."""

    __slots__ = ("build", "late", "more", "norm", "project", "shape", "table")

    def __init__(self, build: ModelBuilder, shape: StackShape, table: TapeTensor | None = None) -> None:
        self.build, self.shape = build, shape
        width = shape.embedding or shape.hidden
        self.table = build.weight(shape.vocab, width, saved=build.saves) if table is None else table
        counts = [shape.token_types, 0 if shape.positions_after else shape.positions]
        self.more = [build.weight(count, width) for count in counts if count]
        self.norm = Norm(build, shape.norm, width) if shape.embedding_norm else None
        projected = width != shape.hidden or shape.project_always
        self.project = Linear(build, shape.hidden, width, bias=shape.project_bias) if projected else None
        late = shape.positions and shape.positions_after
        self.late = build.weight(shape.positions, shape.hidden) if late else None

    def __call__(self, batch: int, sequence: int) -> TapeTensor:
        """Return hidden states (batch, sequence, width) of tokens that are held as inputs."""
        shape, tape = self.shape, self.build.tape
        tokens = self.build.given((batch, sequence), "int64")
        hidden = ops.embedding(tape, self.table, tokens)
        for table in self.more:
            hidden = ops.add(tape, hidden, ops.embedding(tape, table, tokens))
        if self.norm is not None:
            hidden = self.norm(hidden)
        hidden = ops.dropout(tape, hidden, shape.dropout)
        if self.project is not None:
            hidden = self.project(hidden)
        if self.late is not None:
            hidden = ops.add(tape, hidden, ops.embedding(tape, self.late, tokens))
        return hidden


class ImageEmbedding:
    """Patches of an image, each a token by one product, behind learned tokens; with learned positions."""

    __slots__ = ("build", "extra", "patches", "positions", "rate", "shape")

    def __init__(self, build: ModelBuilder, hidden: int, shape: ImageShape, rate: float) -> None:
        self.build, self.shape, self.rate = build, shape, rate
        self.patches = Linear(build, hidden, shape.channels * shape.patch**2)
        self.extra = [build.weight(hidden) for _ in range(shape.extra)]
        self.positions = build.weight(shape.tokens, hidden)

    def __call__(self, batch: int, _: int) -> TapeTensor:
        """Return hidden states (batch, tokens, width) of images that are held as inputs."""
        tape, shape = self.build.tape, self.shape
        image = self.build.given((batch, shape.channels, shape.side, shape.side), self.build.dtype)
        hidden = self.patches(image.view(batch, shape.tokens - shape.extra, shape.channels * shape.patch**2))
        joined = tape.new((batch, shape.tokens, hidden.shape[2]), hidden.dtype)
        tape.op("cat", OpKind.COPY, [hidden], [joined])
        slot, inner, dtype = hidden.slot, hidden.shape, hidden.dtype
        learned = [*self.extra, self.positions]

        def backward(gradient: TapeTensor) -> None:
            back = tape.new(inner, dtype, TEMPORARY)
            tape.op("slice", OpKind.COPY, [gradient], [back])
            for weight in learned:
                made = tape.new(weight.shape, weight.dtype, StorageCategory.GRADIENT)
                tape.op("sum", OpKind.REDUCTION, [gradient], [made], flops=gradient.elements)
                tape.send(weight.slot, made)
            tape.send(slot, back)

        return ops.dropout(tape, tape.node(joined, backward), self.rate)


class SpeechEmbedding:
    """Two convolutions over spectra, the second of which halves the frames, and positions that are not trained."""

    __slots__ = ("build", "first", "positions", "rate", "second", "shape")

    def __init__(self, build: ModelBuilder, hidden: int, shape: SpeechShape, rate: float) -> None:
        self.build, self.shape, self.rate = build, shape, rate
        self.first = build.weight(hidden, shape.bins, KERNEL), build.weight(hidden)
        self.second = build.weight(hidden, hidden, KERNEL), build.weight(hidden)
        self.positions = build.weight(shape.tokens, hidden, trained=False)

    def __call__(self, batch: int, _: int) -> TapeTensor:
        """Return hidden states (batch, tokens, width) of spectra that are held as inputs."""
        tape, shape = self.build.tape, self.shape
        sound = self.build.given((batch, shape.bins, 2 * shape.tokens), self.build.dtype)
        hidden = ops.activation(tape, _convolve(tape, sound, *self.first, stride=1), "gelu")
        del sound
        hidden = ops.activation(tape, _convolve(tape, hidden, *self.second, stride=2), "gelu")
        hidden = hidden.view(batch, shape.tokens, hidden.shape[1])
        rows = TapeTensor(self.positions.shape, self.positions.dtype, self.positions.storage)
        return ops.dropout(tape, ops.add(tape, hidden, rows), self.rate)


def _convolve(tape: Tape, source: TapeTensor, weight: TapeTensor, bias: TapeTensor, *, stride: int) -> TapeTensor:
    """Convolve (batch, c, frames) with (k, c, 3), padded so that only ``stride`` shortens the frames."""
    if tape.autocast:
        source = tape.cast(source, tape.autocast)
    matrix, added = tape.cast_weight(weight), tape.cast_weight(bias)
    batch, c, frames = source.shape
    k, out = weight.shape[0], frames // stride
    dims = {"n": batch, "c": c, "k": k, "h": 1, "w": out, "r": 1, "s": KERNEL, "stride": stride, "groups": 1}
    flops = 2.0 * batch * out * k * c * KERNEL
    result = tape.new((batch, k, out), source.dtype)
    tape.op("convolution", OpKind.CONV, [source, matrix, added], [result], flops=flops, dims=dims)
    slots = [source.slot, matrix.slot, added.slot]

    def backward(gradient: TapeTensor) -> None:
        made = [
            tape.new(one.shape, one.dtype, StorageCategory.GRADIENT if tape.is_weight(one) else TEMPORARY)
            for one, slot in zip((source, matrix, added), slots, strict=True)
            if slot is not None
        ]
        times = len(made) - 1
        tape.op("convolution_backward", OpKind.CONV, [gradient, source, matrix], made, flops=times * flops,
                dims={**dims, "gradients": times})  # fmt: skip
        for slot in reversed([slot for slot in slots if slot is not None]):
            tape.send(slot, made.pop())

    return tape.node(result, backward)
