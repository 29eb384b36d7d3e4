"""Transformer layers on a tape, and a stack of them."""

from collections.abc import Callable
from typing import NamedTuple

from leadline.graphs.hf_config import attention_ops, ops
from leadline.graphs.hf_config.attention_variants import LatentAttention, RelativeAttention
from leadline.graphs.hf_config.embeddings import ImageEmbedding, SpeechEmbedding, TokenEmbedding
from leadline.graphs.hf_config.experts import MixtureOfExperts
from leadline.graphs.hf_config.heads import ModelHead
from leadline.graphs.hf_config.modules import AttentionBlock, FeedForwardBlock, Linear, ModelBuilder, Norm
from leadline.graphs.hf_config.shape import (
    AttentionShape,
    EncoderDecoderShape,
    ImageShape,
    LayerShape,
    ModelShape,
    StackShape,
)
from leadline.graphs.hf_config.tape import TapeTensor


class StackContext(NamedTuple):
    """What all layers of a stack see: rotary ``angles``, a ``bias`` on their scores, a table of ``distances``.

    ``memory`` is what an encoder made, ``memory_bias`` the bias on the scores against it.
    """

    angles: TapeTensor | None = None
    bias: TapeTensor | None = None
    distances: TapeTensor | None = None
    memory: TapeTensor | None = None
    memory_bias: TapeTensor | None = None


class TransformerLayer:
    """Attention (to the tokens, then to a memory where there is one) and a feed-forward block, with their norms."""

    __slots__ = ("attention", "build", "cross", "cross_norm", "feed_forward", "norms", "shape")

    def __init__(self, build: ModelBuilder, shape: LayerShape) -> None:
        self.build, self.shape = build, shape
        hidden = shape.attention.hidden
        self.attention = make_attention(build, shape.attention)
        self.cross = AttentionBlock(build, shape.cross) if shape.cross is not None else None
        self.cross_norm = Norm(build, shape.norm, hidden) if shape.cross is not None else None
        feed = shape.feed_forward
        self.feed_forward = (
            MixtureOfExperts(build, hidden, feed) if feed.experts else FeedForwardBlock(build, hidden, feed)
        )
        count = {"sandwich": 4, "parallel": 1}.get(shape.layout, 2)
        self.norms = [Norm(build, shape.norm, hidden) if place or shape.first_norm else None for place in range(count)]

    def __call__(self, hidden: TapeTensor, around: StackContext) -> TapeTensor:
        """Return the layer's answer, of the shape of ``hidden``."""
        if self.shape.layout.startswith("parallel"):
            return self._parallel(hidden, around)
        if self.shape.layout == "post":
            return self._post(hidden, around)
        if self.shape.layout == "after":
            return self._after(hidden, around)
        return self._pre(hidden, around)

    def _pre(self, hidden: TapeTensor, around: StackContext) -> TapeTensor:
        sandwich = self.shape.layout == "sandwich"
        mixed = self._attend(self._norm(0, hidden), around)
        mixed = self._norm(2, mixed) if sandwich else mixed
        hidden = self._join(hidden, mixed)
        del mixed
        if self.cross is not None and self.cross_norm is not None:
            mixed = self.cross(self.cross_norm(hidden), None, around.memory, around.memory_bias)
            hidden = self._join(hidden, mixed)
            del mixed
        mixed = self.feed_forward(self._norm(1, hidden))
        mixed = self._norm(3, mixed) if sandwich else mixed
        return self._join(hidden, mixed)

    def _post(self, hidden: TapeTensor, around: StackContext) -> TapeTensor:
        tape, rate = self.build.tape, self.shape.dropout
        mixed = ops.dropout(tape, self._attend(hidden, around), rate)
        hidden = self._norm(0, ops.add(tape, hidden, mixed))
        if self.cross is not None and self.cross_norm is not None:
            mixed = ops.dropout(tape, self.cross(hidden, None, around.memory, around.memory_bias), rate)
            hidden = self.cross_norm(ops.add(tape, hidden, mixed))
        del mixed
        mixed = ops.dropout(tape, self.feed_forward(hidden), rate)
        return self._norm(1, ops.add(tape, hidden, mixed))

    def _after(self, hidden: TapeTensor, around: StackContext) -> TapeTensor:
        hidden = self._join(hidden, self._norm(0, self._attend(hidden, around)))
        return self._join(hidden, self._norm(1, self.feed_forward(hidden)))

    def _parallel(self, hidden: TapeTensor, around: StackContext) -> TapeTensor:
        tape, rate = self.build.tape, self.shape.dropout
        first = self._norm(0, hidden)
        second = self._norm(1, hidden) if self.shape.layout == "parallel2" else first
        mixed = ops.dropout(tape, self._attend(first, around), rate)
        fed = ops.dropout(tape, self.feed_forward(second), rate)
        return ops.add(tape, ops.add(tape, fed, mixed), hidden)

    def _attend(self, hidden: TapeTensor, around: StackContext) -> TapeTensor:
        if isinstance(self.attention, RelativeAttention):
            return self.attention(hidden, around.distances)
        if isinstance(self.attention, LatentAttention):
            return self.attention(hidden, around.angles)
        return self.attention(hidden, around.angles, None, around.bias)

    def _join(self, hidden: TapeTensor, mixed: TapeTensor) -> TapeTensor:
        """Add what one half made to what came in."""
        tape = self.build.tape
        return ops.add(tape, hidden, ops.dropout(tape, mixed, self.shape.dropout))

    def _norm(self, place: int, hidden: TapeTensor) -> TapeTensor:
        norm = self.norms[place]
        return hidden if norm is None else norm(hidden)


class LayerStack:
    """Layers one after the other; each may be checkpointed. Beyond the last layer the first ones repeat."""

    __slots__ = ("build", "depth", "layers")

    def __init__(self, build: ModelBuilder, shapes: tuple[LayerShape, ...], depth: int = 0) -> None:
        self.build, self.depth = build, depth or len(shapes)
        self.layers = [TransformerLayer(build, shape) for shape in shapes]

    def __call__(self, hidden: TapeTensor, around: StackContext) -> TapeTensor:
        """Return what the last layer made.

        Reentrant checkpointing passes gradients on only to what wants them: beside frozen embeddings peft lets hidden
        states want them (``enable_input_require_grads``).
        """
        if self.build.checkpointing and hidden.slot is None:
            hidden = self.build.tape.node(hidden, lambda _: None)
        for place in range(self.depth):
            block = self._block(self.layers[place * len(self.layers) // self.depth], around)
            hidden = self.build.tape.checkpoint(block, hidden) if self.build.checkpointing else block(hidden)
        return hidden

    @staticmethod
    def _block(layer: TransformerLayer, around: StackContext) -> Callable[[TapeTensor], TapeTensor]:
        return lambda hidden: layer(hidden, around)


def make_attention(build: ModelBuilder, shape: AttentionShape) -> AttentionBlock | LatentAttention | RelativeAttention:
    """Make the attention block that a shape describes."""
    if shape.latent is not None:
        return LatentAttention(build, shape, shape.latent)
    return (
        RelativeAttention(build, shape, shape.relative) if shape.relative is not None else AttentionBlock(build, shape)
    )


class Tower:
    """An embedding, a stack of layers and what ends it; the ``table`` of words may be another tower's."""

    __slots__ = (
        "buckets", "build", "distance_norm", "distances", "embedding", "final_norm", "project_out", "shape", "stack",
    )  # fmt: skip

    def __init__(self, build: ModelBuilder, shape: StackShape, table: TapeTensor | None = None) -> None:
        self.build, self.shape = build, shape
        self.embedding = _embedding(build, shape, table)
        heads = shape.layers[0].attention.heads
        self.buckets = build.weight(shape.position_buckets, heads) if shape.position_buckets else None
        self.distances = build.weight(shape.relative_positions, shape.hidden) if shape.relative_positions else None
        self.distance_norm = Norm(build, shape.norm, shape.hidden) if shape.relative_norm else None
        self.stack = LayerStack(build, shape.layers, shape.depth)
        self.final_norm = Norm(build, shape.norm, shape.hidden) if shape.final_norm else None
        narrow = shape.embedding if shape.project_out else 0
        self.project_out = Linear(build, narrow, shape.hidden, bias=False) if narrow else None

    def __call__(
        self, batch: int, sequence: int, memory: TapeTensor | None = None, memory_bias: TapeTensor | None = None
    ) -> TapeTensor:
        """Return hidden states (batch, tokens, width); images and sounds have their own number of tokens."""
        tape, shape = self.build.tape, self.shape
        sequence = sequence if shape.source is None else shape.source.tokens
        rotated = _rotated(shape.layers[0].attention)
        angles = tape.new((batch, sequence, rotated), self.build.dtype) if rotated else None
        around = StackContext(angles, self._bias(sequence), self._distances(), memory, memory_bias)
        del angles
        hidden = self.stack(self.embedding(batch, sequence), around)
        if self.final_norm is not None:
            hidden = self.final_norm(hidden)
        hidden = ops.dropout(tape, hidden, shape.final_dropout)
        return hidden if self.project_out is None else self.project_out(hidden)

    @property
    def table(self) -> TapeTensor | None:
        """The embedding of words, if words are what is embedded."""
        return self.embedding.table if isinstance(self.embedding, TokenEmbedding) else None

    def _bias(self, sequence: int) -> TapeTensor | None:
        if self.buckets is None:
            return None
        heads = self.shape.layers[0].attention.heads
        return attention_ops.position_bias(self.build.tape, self.buckets, heads, sequence, sequence)

    def _distances(self) -> TapeTensor | None:
        if self.distances is None or self.distance_norm is None:
            return self.distances
        return self.distance_norm(self.distances)


class SingleStackModel:
    """A model of one tower and its head."""

    __slots__ = ("build", "head", "tower")

    def __init__(self, build: ModelBuilder, shape: StackShape) -> None:
        self.build = build
        self.tower = Tower(build, shape)
        width = shape.embedding if shape.project_out else shape.hidden
        self.head = ModelHead(build, width, shape.head, self.tower.table)

    def __call__(self, batch: int, sequence: int) -> TapeTensor:
        """Run one micro-step; return the loss in training (the logits are dropped), the answer in inference."""
        hidden = self.tower(batch, sequence)
        if self.build.last_only:
            hidden = hidden.view(batch, 1, hidden.shape[2])
        answer = self.head(hidden)
        if not self.build.tape.training:
            return answer
        loss = self.head.loss(answer)
        del hidden
        self.build.let_go()
        return loss


class EncoderDecoderModel:
    """An encoder, and a decoder that attends to what it made; a target of words is as long as a source of words."""

    __slots__ = ("build", "decoder", "encoder", "head", "shape")

    def __init__(self, build: ModelBuilder, shape: EncoderDecoderShape) -> None:
        self.build, self.shape = build, shape
        self.encoder = Tower(build, shape.encoder)
        self.decoder = Tower(build, shape.decoder, self.encoder.table)
        self.head = ModelHead(build, shape.decoder.hidden, shape.head, self.decoder.table)

    def __call__(self, batch: int, sequence: int) -> TapeTensor:
        """Run one micro-step; return the loss in training (the logits are dropped), the answer in inference."""
        tape = self.build.tape
        memory = self.encoder(batch, sequence)
        bias = None
        if self.shape.cross_bias:
            heads = self.shape.decoder.layers[0].attention.heads
            bias = tape.new((1, heads, sequence, memory.shape[1]), memory.dtype)
        hidden = self.decoder(batch, sequence, memory, bias)
        answer = self.head(hidden)
        del bias
        if not tape.training:
            return answer
        loss = self.head.loss(answer)
        del memory, hidden
        self.build.let_go()
        return loss


def make_model(build: ModelBuilder, shape: ModelShape) -> SingleStackModel | EncoderDecoderModel:
    """Make the model that a shape describes; its weights are on the tape from now on."""
    return (
        EncoderDecoderModel(build, shape) if isinstance(shape, EncoderDecoderShape) else SingleStackModel(build, shape)
    )


def _embedding(
    build: ModelBuilder, shape: StackShape, table: TapeTensor | None
) -> TokenEmbedding | ImageEmbedding | SpeechEmbedding:
    if shape.source is None:
        return TokenEmbedding(build, shape, table)
    if isinstance(shape.source, ImageShape):
        return ImageEmbedding(build, shape.hidden, shape.source, shape.dropout)
    return SpeechEmbedding(build, shape.hidden, shape.source, shape.dropout)


def _rotated(shape: AttentionShape) -> int:
    return shape.latent.rotary if shape.latent is not None else shape.rotary
