"""Transformer layers on a tape, and a stack of them."""

from collections.abc import Callable
from typing import NamedTuple

from leadline.graphs.hf_config import layers
from leadline.graphs.hf_config.experts import Experts
from leadline.graphs.hf_config.latent import LatentAttention
from leadline.graphs.hf_config.modules import Attention, Build, FeedForward, Norm
from leadline.graphs.hf_config.relative import RelativeAttention
from leadline.graphs.hf_config.shape import AttentionShape, LayerShape
from leadline.graphs.hf_config.tape import Size


class Around(NamedTuple):
    """What all layers of a stack see: rotary ``angles``, a ``bias`` on their scores, a table of ``distances``.

    ``memory`` is what an encoder made, ``memory_bias`` the bias on the scores against it.
    """

    angles: Size | None = None
    bias: Size | None = None
    distances: Size | None = None
    memory: Size | None = None
    memory_bias: Size | None = None


class Layer:
    """Attention (to the tokens, then to a memory where there is one) and a feed-forward block, with their norms."""

    __slots__ = ("attention", "build", "cross", "cross_norm", "feed_forward", "norms", "shape")

    def __init__(self, build: Build, shape: LayerShape) -> None:
        self.build, self.shape = build, shape
        hidden = shape.attention.hidden
        self.attention = make_attention(build, shape.attention)
        self.cross = Attention(build, shape.cross) if shape.cross is not None else None
        self.cross_norm = Norm(build, shape.norm, hidden) if shape.cross is not None else None
        feed = shape.feed_forward
        self.feed_forward = Experts(build, hidden, feed) if feed.experts else FeedForward(build, hidden, feed)
        count = {"sandwich": 4, "parallel": 1}.get(shape.layout, 2)
        self.norms = [Norm(build, shape.norm, hidden) if place or shape.first_norm else None for place in range(count)]

    def __call__(self, hidden: Size, around: Around) -> Size:
        """Return the layer's answer, of the shape of ``hidden``."""
        if self.shape.layout.startswith("parallel"):
            return self._parallel(hidden, around)
        if self.shape.layout == "post":
            return self._post(hidden, around)
        if self.shape.layout == "after":
            return self._after(hidden, around)
        return self._pre(hidden, around)

    def _pre(self, hidden: Size, around: Around) -> Size:
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

    def _post(self, hidden: Size, around: Around) -> Size:
        tape, rate = self.build.tape, self.shape.dropout
        mixed = layers.dropout(tape, self._attend(hidden, around), rate)
        hidden = self._norm(0, layers.add(tape, hidden, mixed))
        if self.cross is not None and self.cross_norm is not None:
            mixed = layers.dropout(tape, self.cross(hidden, None, around.memory, around.memory_bias), rate)
            hidden = self.cross_norm(layers.add(tape, hidden, mixed))
        del mixed
        mixed = layers.dropout(tape, self.feed_forward(hidden), rate)
        return self._norm(1, layers.add(tape, hidden, mixed))

    def _after(self, hidden: Size, around: Around) -> Size:
        hidden = self._join(hidden, self._norm(0, self._attend(hidden, around)))
        return self._join(hidden, self._norm(1, self.feed_forward(hidden)))

    def _parallel(self, hidden: Size, around: Around) -> Size:
        tape, rate = self.build.tape, self.shape.dropout
        first = self._norm(0, hidden)
        second = self._norm(1, hidden) if self.shape.layout == "parallel2" else first
        mixed = layers.dropout(tape, self._attend(first, around), rate)
        fed = layers.dropout(tape, self.feed_forward(second), rate)
        return layers.add(tape, layers.add(tape, fed, mixed), hidden)

    def _attend(self, hidden: Size, around: Around) -> Size:
        if isinstance(self.attention, RelativeAttention):
            return self.attention(hidden, around.distances)
        if isinstance(self.attention, LatentAttention):
            return self.attention(hidden, around.angles)
        return self.attention(hidden, around.angles, None, around.bias)

    def _join(self, hidden: Size, mixed: Size) -> Size:
        """Add what one half made to what came in."""
        tape = self.build.tape
        return layers.add(tape, hidden, layers.dropout(tape, mixed, self.shape.dropout))

    def _norm(self, place: int, hidden: Size) -> Size:
        norm = self.norms[place]
        return hidden if norm is None else norm(hidden)


class Stack:
    """Layers one after the other; each may be checkpointed. Beyond the last layer the first ones repeat."""

    __slots__ = ("build", "depth", "layers")

    def __init__(self, build: Build, shapes: tuple[LayerShape, ...], depth: int = 0) -> None:
        self.build, self.depth = build, depth or len(shapes)
        self.layers = [Layer(build, shape) for shape in shapes]

    def __call__(self, hidden: Size, around: Around) -> Size:
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
    def _block(layer: Layer, around: Around) -> Callable[[Size], Size]:
        return lambda hidden: layer(hidden, around)


def make_attention(build: Build, shape: AttentionShape) -> Attention | LatentAttention | RelativeAttention:
    """Make the attention block that a shape describes."""
    if shape.latent is not None:
        return LatentAttention(build, shape, shape.latent)
    return RelativeAttention(build, shape, shape.relative) if shape.relative is not None else Attention(build, shape)
