"""Embeddings of tokens, images and sounds: the hidden states that a stack of layers starts from."""

from leadline.core.graph import OpKind, StorageCategory
from leadline.graphs.hf_config import ops
from leadline.graphs.hf_config.modules import Linear, ModelBuilder, Norm
from leadline.graphs.hf_config.prompts import virtual_tokens
from leadline.graphs.hf_config.shape import ImageShape, SpeechShape, StackShape, VisionShape
from leadline.graphs.hf_config.tape import Tape, TapeTensor

KERNEL_FRAMES = 3
"""Frames that a convolution over sound spans."""


class TokenEmbedding:
    """Rows of a ``table`` of tokens, with learned positions and segments. The table may be another model's."""

    def __init__(self, builder: ModelBuilder, shape: StackShape, table: TapeTensor | None = None) -> None:
        self.builder, self.shape = builder, shape
        width = shape.embedding or shape.hidden
        self.table = builder.weight(shape.vocab, width, saved=builder.trains("tables")) if table is None else table
        counts = [shape.token_types, 0 if shape.positions_after else shape.positions]
        self.extra_tables = [builder.weight(count, width) for count in counts if count]
        self.norm = Norm(builder, shape.norm, width) if shape.embedding_norm else None
        projected = width != shape.hidden or shape.project_always
        self.project = Linear(builder, shape.hidden, width, bias=shape.project_bias) if projected else None
        positions_after = shape.positions and shape.positions_after
        self.late_positions = builder.weight(shape.positions, shape.hidden) if positions_after else None
        self.prompt = virtual_tokens(builder.tape, builder.adapters, builder.adapter_weights, "input", width)

    def __call__(self, batch: int, sequence: int) -> TapeTensor:
        """Return hidden states (batch, sequence, width) of tokens, which are held as inputs."""
        shape, tape = self.shape, self.builder.tape
        tokens = self.builder.add_input((batch, sequence), "int64")
        hidden = ops.embedding(tape, self.table, tokens)
        if self.prompt is not None:
            hidden = self.prompt.prepend(hidden, 1)
            tokens = tape.new(hidden.shape[:2], "int64", StorageCategory.INPUT)
        for table in self.extra_tables:
            hidden = ops.add(tape, hidden, ops.embedding(tape, table, tokens))
        if self.norm is not None:
            hidden = self.norm(hidden)
        hidden = ops.dropout(tape, hidden, shape.dropout)
        if self.project is not None:
            hidden = self.project(hidden)
        if self.late_positions is not None:
            hidden = ops.add(tape, hidden, ops.embedding(tape, self.late_positions, tokens))
        return hidden


class ImageEmbedding:
    """Patches of an image, each a token by one product, after learned tokens, with learned positions."""

    def __init__(self, builder: ModelBuilder, stack: StackShape, shape: ImageShape) -> None:
        self.builder, self.shape, self.rate, hidden = builder, shape, stack.dropout, stack.hidden
        self.patches = Linear(builder, hidden, shape.channels * shape.patch**2, bias=shape.bias)
        self.extra = [builder.weight(hidden) for _ in range(shape.extra)]
        self.positions = builder.weight(shape.tokens, hidden)
        self.norm = Norm(builder, stack.norm, hidden) if stack.embedding_norm else None

    def __call__(self, batch: int, _: int) -> TapeTensor:
        """Return hidden states (batch, tokens, width) of images, which are held as inputs."""
        tape, shape = self.builder.tape, self.shape
        image = self.builder.add_input((batch, shape.channels, shape.side, shape.side), self.builder.dtype)
        hidden = self.patches(image.view(batch, shape.tokens - shape.extra, shape.channels * shape.patch**2))
        joined = tape.compute("cat", OpKind.COPY, [hidden], (batch, shape.tokens, hidden.shape[2]), hidden.dtype)
        slot, inner, dtype = hidden.slot, hidden.shape, hidden.dtype
        learned = [*self.extra, self.positions]

        def backward(gradient: TapeTensor) -> None:
            back = tape.compute("slice", OpKind.COPY, [gradient], inner, dtype)
            for weight in learned:
                weight_gradient = tape.sum_to(gradient, weight.shape, weight.dtype, StorageCategory.GRADIENT)
                tape.send(weight.slot, weight_gradient)
            tape.send(slot, back)

        result = ops.dropout(tape, tape.node(joined, backward), self.rate)
        return result if self.norm is None else self.norm(result)


class ImageProjector:
    """Turns the output of a tower of images into tokens of a language model."""

    def __init__(self, builder: ModelBuilder, hidden: int, shape: VisionShape) -> None:
        self.builder, self.shape = builder, shape
        width = shape.tower.hidden
        self.norm = None if shape.activation else Norm(builder, "rms-wide", width)
        self.first = Linear(builder, hidden, width, bias=shape.bias, name="linear_1")
        self.second = Linear(builder, hidden, hidden, bias=shape.bias, name="linear_2") if shape.activation else None

    def __call__(self, states: TapeTensor) -> TapeTensor:
        """Return (batch, tokens, hidden) for the tower's (batch, patches, width)."""
        tape, (batch, _, width) = self.builder.tape, states.shape
        size = batch, self.shape.tokens, width
        if self.second is not None:
            kept = tape.compute("slice", OpKind.COPY, [states], size, states.dtype)
            kept = tape.node_op(kept, states, "slice_backward", OpKind.INDEX, dtype=states.dtype)
            return self.second(ops.activation(tape, self.first(kept), self.shape.activation))
        pooled = tape.compute("avg_pool2d", OpKind.POOL, [states], size, states.dtype, flops=states.elements)
        pooled = tape.node_op(pooled, states, "avg_pool2d_backward", OpKind.POOL, dtype=states.dtype)
        return self.first(pooled if self.norm is None else self.norm(pooled))


def place_images(tape: Tape, hidden: TapeTensor, images: TapeTensor) -> TapeTensor:
    """Replace some of the tokens of ``hidden`` (b, s, width) by those of images (b, t, width)."""
    result = tape.compute("masked_scatter", OpKind.INDEX, [hidden, images], hidden.shape, hidden.dtype)
    arrivals = [(hidden.slot, hidden.shape, "masked_fill"), (images.slot, images.shape, "masked_select")]

    def backward(gradient: TapeTensor) -> None:
        for slot, shape, name in arrivals:
            back = tape.compute(name, OpKind.INDEX, [gradient], shape, gradient.dtype)
            tape.send(slot, back)

    return tape.node(result, backward, hidden, images)


class SpeechEmbedding:
    """Two convolutions over spectra, the second of which halves the frames, and untrained positions."""

    def __init__(self, builder: ModelBuilder, hidden: int, shape: SpeechShape, rate: float) -> None:
        self.builder, self.shape, self.rate = builder, shape, rate
        self.first = builder.weight(hidden, shape.bins, KERNEL_FRAMES), builder.weight(hidden)
        self.second = builder.weight(hidden, hidden, KERNEL_FRAMES), builder.weight(hidden)
        self.positions = builder.weight(shape.tokens, hidden, trained=False)

    def __call__(self, batch: int, _: int) -> TapeTensor:
        """Return hidden states (batch, tokens, width) of spectra, which are held as inputs."""
        tape, shape = self.builder.tape, self.shape
        sound = self.builder.add_input((batch, shape.bins, 2 * shape.tokens), self.builder.dtype)
        hidden = ops.activation(tape, _convolve(tape, sound, *self.first, stride=1), "gelu")
        del sound
        hidden = ops.activation(tape, _convolve(tape, hidden, *self.second, stride=2), "gelu")
        hidden = hidden.view(batch, shape.tokens, hidden.shape[1])
        rows = TapeTensor(self.positions.shape, self.positions.dtype, self.positions.storage)
        return ops.dropout(tape, ops.add(tape, hidden, rows), self.rate)


def _convolve(tape: Tape, source: TapeTensor, weight: TapeTensor, bias: TapeTensor, *, stride: int) -> TapeTensor:
    """Convolve (batch, c, frames) with (k, c, 3). The padding keeps the frames, except for ``stride``."""
    if tape.autocast:
        source = tape.cast(source, tape.autocast)
    matrix, cast_bias = tape.cast_weight(weight), tape.cast_weight(bias)
    batch, c, frames = source.shape
    k, out = weight.shape[0], frames // stride
    dims = {"n": batch, "c": c, "k": k, "h": 1, "w": out, "r": 1, "s": KERNEL_FRAMES, "stride": stride, "groups": 1}
    flops = 2.0 * batch * out * k * c * KERNEL_FRAMES
    result = tape.new((batch, k, out), source.dtype)
    tape.op("convolution", OpKind.CONV, [source, matrix, cast_bias], [result], flops=flops, dims=dims)
    slots = [source.slot, matrix.slot, cast_bias.slot]

    def backward(gradient: TapeTensor) -> None:
        gradients = [
            tape.new(tensor.shape, tensor.dtype, StorageCategory.GRADIENT if tape.is_weight(tensor) else None)
            for tensor, slot in zip((source, matrix, cast_bias), slots, strict=True)
            if slot is not None
        ]
        times = len(gradients) - 1
        tape.op("convolution_backward", OpKind.CONV, [gradient, source, matrix], gradients, flops=times * flops,
                dims={**dims, "gradients": times})  # fmt: skip
        for slot in reversed([slot for slot in slots if slot is not None]):
            tape.send(slot, gradients.pop())

    return tape.node(result, backward)
