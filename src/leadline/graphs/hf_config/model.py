"""Whole models on a tape: embedding, stacks of transformer layers, and head."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from leadline.core.graph import OpKind
from leadline.graphs.hf_config import attention_ops, ops
from leadline.graphs.hf_config.attention_variants import LatentAttention, RelativeAttention
from leadline.graphs.hf_config.embeddings import (
    ImageEmbedding,
    ImageProjector,
    SpeechEmbedding,
    TokenEmbedding,
    place_images,
)
from leadline.graphs.hf_config.experts import MixtureOfExperts
from leadline.graphs.hf_config.losses import cross_entropy, fused_cross_entropy
from leadline.graphs.hf_config.modules import (
    AttentionBlock,
    FeedForwardBlock,
    Linear,
    ModelBuilder,
    Norm,
)
from leadline.graphs.hf_config.selective_scan import SelectiveScanBlock
from leadline.graphs.hf_config.shape import (
    AttentionShape,
    EncoderDecoderShape,
    HeadShape,
    ImageShape,
    LayerShape,
    ModelShape,
    SelectiveScanShape,
    StackShape,
)
from leadline.graphs.hf_config.state_space import StateSpaceBlock
from leadline.graphs.hf_config.tape import Tape, TapeTensor

Attention = AttentionBlock | LatentAttention | RelativeAttention | StateSpaceBlock | SelectiveScanBlock


class StackContext(NamedTuple):
    """Tensors that all layers of a stack use."""

    angles: TapeTensor | None = None  # rotary angles
    bias: TapeTensor | None = None  # bias on the attention scores
    masks: Mapping[bool, TapeTensor] = {}  # masks that eager attention adds to its scores, without and with a window
    distances: TapeTensor | None = None  # table of embedded distances
    memory: TapeTensor | None = None  # output of an encoder
    memory_bias: TapeTensor | None = None  # bias on the scores against it


class TransformerLayer:
    """Attention (to the tokens, then to a memory if there is one) and a feed-forward block, with their norms."""

    def __init__(self, builder: ModelBuilder, shape: LayerShape) -> None:
        self.builder, self.shape = builder, shape
        hidden = shape.attention.hidden
        single = shape.layout == "single"
        self.attention: Attention | None = None
        if not (single and shape.feed_forward.width):
            with builder.scope("self_attn"):
                self.attention = make_attention(builder, shape.attention)
        with builder.scope("cross_attn"):
            self.cross = AttentionBlock(builder, shape.cross) if shape.cross is not None else None
        self.cross_norm = Norm(builder, shape.norm, hidden) if shape.cross is not None else None
        self.feed_forward: FeedForwardBlock | MixtureOfExperts | None = None
        if shape.feed_forward.width:
            block = MixtureOfExperts if shape.feed_forward.experts else FeedForwardBlock
            with builder.scope("mlp"):
                self.feed_forward = block(builder, hidden, shape.feed_forward)
        count = {"sandwich": 4, "parallel": 1, "single": 1}.get(shape.layout, 2)
        self.norms = [
            Norm(builder, shape.norm, hidden) if position or shape.first_norm else None for position in range(count)
        ]

    def __call__(self, hidden: TapeTensor, context: StackContext) -> TapeTensor:
        """Return the output of the layer, with the shape of ``hidden``."""
        runs = {
            "parallel": self._parallel, "parallel2": self._parallel, "post": self._post, "after": self._after,
            "single": self._single,
        }  # fmt: skip
        return runs.get(self.shape.layout, self._pre)(hidden, context)

    def _pre(self, hidden: TapeTensor, context: StackContext) -> TapeTensor:
        sandwich = self.shape.layout == "sandwich"
        mixed = self._attend(self._norm(0, hidden), context)
        mixed = self._norm(2, mixed) if sandwich else mixed
        hidden = self._add_residual(hidden, mixed)
        del mixed
        if self.cross is not None and self.cross_norm is not None:
            mixed = self.cross(self.cross_norm(hidden), None, context.memory, context.memory_bias)
            hidden = self._add_residual(hidden, mixed)
            del mixed
        mixed = self._feed(self._norm(1, hidden))
        mixed = self._norm(3, mixed) if sandwich else mixed
        return self._add_residual(hidden, mixed)

    def _post(self, hidden: TapeTensor, context: StackContext) -> TapeTensor:
        tape, rate = self.builder.tape, self.shape.dropout
        mixed = ops.dropout(tape, self._attend(hidden, context), rate)
        hidden = self._norm(0, ops.add(tape, hidden, mixed))
        if self.cross is not None and self.cross_norm is not None:
            mixed = ops.dropout(tape, self.cross(hidden, None, context.memory, context.memory_bias), rate)
            hidden = self.cross_norm(ops.add(tape, hidden, mixed))
        del mixed
        mixed = ops.dropout(tape, self._feed(hidden), rate)
        return self._norm(1, ops.add(tape, hidden, mixed))

    def _after(self, hidden: TapeTensor, context: StackContext) -> TapeTensor:
        hidden = self._add_residual(hidden, self._norm(0, self._attend(hidden, context)))
        return self._add_residual(hidden, self._norm(1, self._feed(hidden)))

    def _parallel(self, hidden: TapeTensor, context: StackContext) -> TapeTensor:
        tape, rate = self.builder.tape, self.shape.dropout
        first = self._norm(0, hidden)
        second = self._norm(1, hidden) if self.shape.layout == "parallel2" else first
        mixed = ops.dropout(tape, self._attend(first, context), rate)
        feed_output = ops.dropout(tape, self._feed(second), rate)
        return ops.add(tape, ops.add(tape, feed_output, mixed), hidden)

    def _single(self, hidden: TapeTensor, context: StackContext) -> TapeTensor:
        tape = self.builder.tape
        normal = self._norm(0, tape.cast(hidden, self.builder.dtype))
        mixed = self._attend(normal, context) if self.feed_forward is None else self._feed(normal)
        return self._add_residual(tape.cast(hidden, "float32") if self.shape.wide_residual else hidden, mixed)

    def _feed(self, hidden: TapeTensor) -> TapeTensor:
        return hidden if self.feed_forward is None else self.feed_forward(hidden)

    def _attend(self, hidden: TapeTensor, context: StackContext) -> TapeTensor:
        if self.attention is None:
            return hidden
        if isinstance(self.attention, StateSpaceBlock | SelectiveScanBlock):
            return self.attention(hidden)
        if isinstance(self.attention, RelativeAttention):
            return self.attention(hidden, context.distances)
        if isinstance(self.attention, LatentAttention):
            return self.attention(hidden, context.angles, context.masks.get(False))
        mask = context.masks.get(bool(self.shape.attention.window))
        return self.attention(hidden, context.angles, None, context.bias, mask)

    def _add_residual(self, hidden: TapeTensor, mixed: TapeTensor) -> TapeTensor:
        """Add the output of one half to its input."""
        tape = self.builder.tape
        return ops.add(tape, hidden, ops.dropout(tape, mixed, self.shape.dropout))

    def _norm(self, index: int, hidden: TapeTensor) -> TapeTensor:
        norm = self.norms[index]
        return hidden if norm is None else norm(hidden)


def make_attention(builder: ModelBuilder, shape: AttentionShape) -> Attention:
    """Make the attention block of a shape."""
    if isinstance(shape.state_space, SelectiveScanShape):
        return SelectiveScanBlock(builder, shape.hidden, shape.state_space)
    if shape.state_space is not None:
        return StateSpaceBlock(builder, shape.hidden, shape.state_space)
    if shape.latent is not None:
        return LatentAttention(builder, shape, shape.latent)
    if shape.relative is not None:
        return RelativeAttention(builder, shape, shape.relative)
    return AttentionBlock(builder, shape)


class Tower:
    """An embedding, a stack of layers and a final norm. The ``table`` of tokens may be another tower's."""

    def __init__(self, builder: ModelBuilder, shape: StackShape, table: TapeTensor | None = None) -> None:
        self.builder, self.shape = builder, shape
        self.embedding = _embedding(builder, shape, table)
        prompt = self.embedding.prompt if isinstance(self.embedding, TokenEmbedding) else None
        self.prompt_tokens = prompt.tokens if prompt is not None else 0
        heads = shape.layers[0].attention.heads
        self.buckets = builder.weight(shape.position_buckets, heads) if shape.position_buckets else None
        self.distances = builder.weight(shape.relative_positions, shape.hidden) if shape.relative_positions else None
        self.distance_norm = Norm(builder, shape.norm, shape.hidden) if shape.relative_norm else None
        self.layers = []
        for number, layer in enumerate(shape.layers):
            with builder.scope("layers", str(number)):
                self.layers.append(TransformerLayer(builder, layer))
        self.final_norm = Norm(builder, shape.norm, shape.hidden) if shape.final_norm else None
        narrow = shape.embedding if shape.project_out else 0
        self.project_out = Linear(builder, narrow, shape.hidden, bias=False) if narrow else None

    def __call__(
        self,
        batch: int,
        sequence: int,
        memory: TapeTensor | None = None,
        memory_bias: TapeTensor | None = None,
        images: TapeTensor | None = None,
    ) -> TapeTensor:
        """Return hidden states (batch, tokens, width). Images and sounds have their own number of tokens.

        Projected ``images`` take the place of some tokens.
        """
        tape, shape = self.builder.tape, self.shape
        sequence = sequence + self.prompt_tokens if shape.source is None else shape.source.tokens
        attention = shape.layers[0].attention
        rotated = attention.rotary if attention.latent is None else attention.latent.rotary
        angles = tape.new((batch, sequence, rotated), self.builder.dtype) if rotated else None
        distances = self.distance_norm(self.distances) if self.distances and self.distance_norm else self.distances
        bias, masks = self._bias(sequence), self._masks(batch, sequence)
        context = StackContext(angles, bias, masks, distances, memory, memory_bias)
        del angles, bias, masks, distances
        # Held until the last layer has run, as its owner holds it.
        embedded = self.embedding(batch, sequence - self.prompt_tokens)
        hidden = embedded if images is None else place_images(tape, embedded, images)
        hidden = self._run_layers(hidden, context)
        del embedded, images
        if self.final_norm is not None:
            hidden = self.final_norm(hidden)
        hidden = ops.dropout(tape, hidden, shape.final_dropout)
        return hidden if self.project_out is None else self.project_out(hidden)

    def _run_layers(self, hidden: TapeTensor, context: StackContext) -> TapeTensor:
        """Run the layers one after the other; with a larger ``depth``, the first ones repeat."""
        builder, depth = self.builder, self.shape.depth or len(self.layers)
        # Reentrant checkpointing needs an input with a gradient. For frozen embeddings, peft makes one
        # (enable_input_require_grads).
        if builder.checkpointing and hidden.slot is None:
            hidden = builder.tape.node(hidden, lambda _: None)
        for position in range(depth):
            block = partial(self.layers[position * len(self.layers) // depth], context=context)
            hidden = builder.tape.checkpoint(block, hidden) if builder.checkpointing else block(hidden)
        return hidden

    @property
    def table(self) -> TapeTensor | None:
        """The embedding of tokens, or ``None`` for images and sounds."""
        return self.embedding.table if isinstance(self.embedding, TokenEmbedding) else None

    def _masks(self, batch: int, sequence: int) -> dict[bool, TapeTensor]:
        """Make the masks of eager attention, with and without a window. A bias includes its mask."""
        builder, shapes = self.builder, [layer.attention for layer in self.shape.layers]
        if not (shapes[0].eager and shapes[0].causal) or self.buckets is not None:
            return {}
        tokens = sequence + max((cached.tensor.shape[2] for cached in builder.past), default=0)
        return {
            window: attention_ops.causal_mask(builder.tape, batch, sequence, tokens, builder.dtype, window=window)
            for window in sorted({bool(shape.window) for shape in shapes if shape.state_space is None})
        }

    def _bias(self, sequence: int) -> TapeTensor | None:
        if self.buckets is None:
            return None
        heads = self.shape.layers[0].attention.heads
        return attention_ops.position_bias(self.builder.tape, self.buckets, heads, sequence, sequence)


def first_token(tape: Tape, hidden: TapeTensor) -> TapeTensor:
    """Return the first token of each sequence. The gradient is zero elsewhere."""
    batch, _, width = hidden.shape
    result = TapeTensor((batch, 1, width), hidden.dtype, hidden.storage)
    return tape.node_op(result, hidden, "slice_backward", OpKind.INDEX, dtype=hidden.dtype)


class ModelHead:
    """The head of a model. A tied head scores with the weights of the embedding ``table``."""

    def __init__(self, builder: ModelBuilder, hidden: int, shape: HeadShape, table: TapeTensor | None = None) -> None:
        self.builder, self.shape, self.table = builder, shape, table
        self.transform = self.norm = self.score = None
        if shape.transform:
            self.transform = Linear(builder, shape.transform, hidden, bias=shape.transform_bias)
            if shape.transform_norm:
                self.norm = Norm(builder, shape.transform_norm, shape.transform)
        self.bias = builder.weight(shape.outputs) if shape.tied and shape.bias else None
        if shape.outputs and not shape.tied:
            width = shape.transform or hidden
            self.score = Linear(builder, shape.outputs, width, bias=shape.bias, saved=True, name="lm_head")

    def __call__(self, hidden: TapeTensor) -> TapeTensor:
        """Return scores (…, outputs), or the hidden states of a model without a head."""
        tape, shape = self.builder.tape, self.shape
        output_states = first_token(tape, hidden) if shape.pooled else hidden
        if self.transform is not None:
            output_states = ops.activation(tape, self.transform(output_states), shape.activation)
            output_states = self.norm(output_states) if self.norm is not None else output_states
        if self.score is not None:
            output_states = self.score(output_states)
        elif shape.outputs and self.table is not None:
            output_states = ops.linear(tape, output_states, self.table, self.bias)
        else:
            return hidden
        if shape.capped:
            output_states = ops.scale_tensor(tape, output_states)
            output_states = ops.activation(tape, output_states, "tanh")
            output_states = ops.scale_tensor(tape, output_states)
        return output_states

    def fused_loss(self, hidden: TapeTensor) -> TapeTensor | None:
        """Return the loss without the scores of all tokens; ``None`` if the head does not allow it."""
        weight = self.table if self.shape.tied else self.score.weight if self.score is not None else None
        shape = self.shape
        if weight is None or shape.transform or shape.pooled or shape.bias or not self.builder.fused_loss:
            return None
        return fused_cross_entropy(self.builder.tape, hidden, weight)

    def loss(self, output_states: TapeTensor) -> TapeTensor:
        """Return the loss: cross entropy over scores, or the mean of hidden states."""
        tape, n = self.builder.tape, output_states.elements
        if self.shape.shifted:
            output_states = attention_ops.copy_tensor(tape, output_states, "clone")
        if self.shape.outputs:
            return cross_entropy(tape, output_states, upcast=self.shape.upcast)
        loss = tape.compute("mean", OpKind.REDUCTION, [output_states], (1,), "float32", flops=n)
        return tape.node_op(loss, output_states, "div", OpKind.ELEMENTWISE, dtype=output_states.dtype, flops=n)


class TransformerModel:
    """A tower and its head. With an ``encoder`` the tower attends to its output, and a target of text is as long."""

    def __init__(self, builder: ModelBuilder, shape: ModelShape) -> None:
        self.builder = builder
        self.encoder: Tower | None = None
        self.cross_bias_heads = 0
        stack = shape.decoder if isinstance(shape, EncoderDecoderShape) else shape
        if isinstance(shape, EncoderDecoderShape):
            self.encoder = Tower(builder, shape.encoder)
            self.cross_bias_heads = stack.layers[0].attention.heads if shape.cross_bias else 0
        self.vision: tuple[Tower, ImageProjector] | None = None
        if stack.vision is not None:
            with builder.scope("vision_tower"):
                tower = Tower(builder, stack.vision.tower)
            self.vision = tower, ImageProjector(builder, stack.hidden, stack.vision)
        self.tower = Tower(builder, stack, self.encoder.table if self.encoder else None)
        width = stack.embedding if stack.project_out else stack.hidden
        self.head = ModelHead(builder, width, shape.head, self.tower.table)

    def __call__(self, batch: int, sequence: int) -> TapeTensor:
        """Run one micro-step. Return the loss in training (the logits are freed), or the scores in inference."""
        tape = self.builder.tape
        memory = bias = None
        if self.encoder is not None:
            memory = self.encoder(batch, sequence)
            if self.cross_bias_heads:
                bias = tape.new((1, self.cross_bias_heads, sequence, memory.shape[1]), memory.dtype)
        images = None
        if self.vision is not None and not self.builder.past:
            tower, project = self.vision
            images = project(tower(batch, 0))
        hidden = self.tower(batch, sequence, memory, bias, images)
        del images
        if self.builder.last_only:
            hidden = hidden.view(batch, 1, hidden.shape[2])
        loss = self.head.fused_loss(hidden) if tape.training else None
        if loss is None:
            scores = self.head(hidden)
            del bias
            if not tape.training:
                return scores
            loss = self.head.loss(scores)
        del memory, hidden
        self.builder.cache.clear()
        self.builder.scores = None
        return loss


def _embedding(
    builder: ModelBuilder, shape: StackShape, table: TapeTensor | None
) -> TokenEmbedding | ImageEmbedding | SpeechEmbedding:
    if shape.source is None:
        return TokenEmbedding(builder, shape, table)
    if isinstance(shape.source, ImageShape):
        return ImageEmbedding(builder, shape, shape.source)
    return SpeechEmbedding(builder, shape.hidden, shape.source, shape.dropout)
