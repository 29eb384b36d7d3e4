"""Whole models on a tape: what they embed, their stacks of layers, and their head."""

from leadline.graphs.hf_config import attending, layers
from leadline.graphs.hf_config.embeddings import ImageEmbedding, SpeechEmbedding, TokenEmbedding
from leadline.graphs.hf_config.heads import Head
from leadline.graphs.hf_config.modules import Build, Linear, Norm
from leadline.graphs.hf_config.shape import AttentionShape, ImageShape, ModelShape, PairShape, StackShape
from leadline.graphs.hf_config.stack import Around, Stack
from leadline.graphs.hf_config.tape import Size


class Tower:
    """An embedding, a stack of layers and what ends it; the ``table`` of words may be another tower's."""

    __slots__ = (
        "buckets", "build", "distance_norm", "distances", "embedding", "final_norm", "project_out", "shape", "stack",
    )  # fmt: skip

    def __init__(self, build: Build, shape: StackShape, table: Size | None = None) -> None:
        self.build, self.shape = build, shape
        self.embedding = _embedding(build, shape, table)
        heads = shape.layers[0].attention.heads
        self.buckets = build.weight(shape.position_buckets, heads) if shape.position_buckets else None
        self.distances = build.weight(shape.relative_positions, shape.hidden) if shape.relative_positions else None
        self.distance_norm = Norm(build, shape.norm, shape.hidden) if shape.relative_norm else None
        self.stack = Stack(build, shape.layers, shape.depth)
        self.final_norm = Norm(build, shape.norm, shape.hidden) if shape.final_norm else None
        narrow = shape.embedding if shape.project_out else 0
        self.project_out = Linear(build, narrow, shape.hidden, bias=False) if narrow else None

    def __call__(self, batch: int, sequence: int, memory: Size | None = None, memory_bias: Size | None = None) -> Size:
        """Return hidden states (batch, tokens, width); images and sounds have their own number of tokens."""
        tape, shape = self.build.tape, self.shape
        sequence = sequence if shape.source is None else shape.source.tokens
        rotated = _rotated(shape.layers[0].attention)
        angles = tape.new((batch, sequence, rotated), self.build.dtype) if rotated else None
        around = Around(angles, self._bias(sequence), self._distances(), memory, memory_bias)
        del angles
        hidden = self.stack(self.embedding(batch, sequence), around)
        if self.final_norm is not None:
            hidden = self.final_norm(hidden)
        hidden = layers.dropout(tape, hidden, shape.final_dropout)
        return hidden if self.project_out is None else self.project_out(hidden)

    @property
    def table(self) -> Size | None:
        """The embedding of words, if words are what is embedded."""
        return self.embedding.table if isinstance(self.embedding, TokenEmbedding) else None

    def _bias(self, sequence: int) -> Size | None:
        if self.buckets is None:
            return None
        heads = self.shape.layers[0].attention.heads
        return attending.position_bias(self.build.tape, self.buckets, heads, sequence, sequence)

    def _distances(self) -> Size | None:
        if self.distances is None or self.distance_norm is None:
            return self.distances
        return self.distance_norm(self.distances)


class Single:
    """A model of one tower and its head."""

    __slots__ = ("build", "head", "tower")

    def __init__(self, build: Build, shape: StackShape) -> None:
        self.build = build
        self.tower = Tower(build, shape)
        width = shape.embedding if shape.project_out else shape.hidden
        self.head = Head(build, width, shape.head, self.tower.table)

    def __call__(self, batch: int, sequence: int) -> Size:
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


class Pair:
    """An encoder, and a decoder that attends to what it made; a target of words is as long as a source of words."""

    __slots__ = ("build", "decoder", "encoder", "head", "shape")

    def __init__(self, build: Build, shape: PairShape) -> None:
        self.build, self.shape = build, shape
        self.encoder = Tower(build, shape.encoder)
        self.decoder = Tower(build, shape.decoder, self.encoder.table)
        self.head = Head(build, shape.decoder.hidden, shape.head, self.decoder.table)

    def __call__(self, batch: int, sequence: int) -> Size:
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


def make_model(build: Build, shape: ModelShape) -> Single | Pair:
    """Make the model that a shape describes; its weights are on the tape from now on."""
    return Pair(build, shape) if isinstance(shape, PairShape) else Single(build, shape)


def _embedding(
    build: Build, shape: StackShape, table: Size | None
) -> TokenEmbedding | ImageEmbedding | SpeechEmbedding:
    if shape.source is None:
        return TokenEmbedding(build, shape, table)
    if isinstance(shape.source, ImageShape):
        return ImageEmbedding(build, shape.hidden, shape.source, shape.dropout)
    return SpeechEmbedding(build, shape.hidden, shape.source, shape.dropout)


def _rotated(shape: AttentionShape) -> int:
    return shape.latent.rotary if shape.latent is not None else shape.rotary
