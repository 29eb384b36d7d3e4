"""Multi-head latent attention (DeepSeek-V2): keys and values grow out of one narrow latent for each token."""

from leadline.core.graph import OpKind, StorageCategory
from leadline.graphs.hf_config import attention_ops, ops
from leadline.graphs.hf_config.modules import Linear, ModelBuilder, Norm
from leadline.graphs.hf_config.shape import AttentionShape, LatentAttentionShape, RelativeAttentionShape
from leadline.graphs.hf_config.tape import Tape, TapeTensor


class LatentAttention:
    """Attention whose cache is the latent and the rotated part of the key; all keys and values grow anew each pass."""

    __slots__ = ("build", "direct", "grow", "latent", "narrow", "narrow_norm", "out", "query", "query_norm", "shape")

    def __init__(self, build: ModelBuilder, shape: AttentionShape, latent: LatentAttentionShape) -> None:
        self.build, self.shape, self.latent = build, shape, latent
        hidden, heads = shape.hidden, shape.heads
        width = heads * (latent.plain + latent.rotary)
        if latent.query_rank is None:
            self.direct, self.query_norm = None, None
            self.query = Linear(build, width, hidden, bias=False)
        else:
            self.direct = Linear(build, latent.query_rank, hidden, bias=shape.query_bias)
            self.query_norm = Norm(build, "rms", latent.query_rank)
            self.query = Linear(build, width, latent.query_rank, bias=False)
        self.narrow = Linear(build, latent.key_value_rank + latent.rotary, hidden, bias=shape.query_bias)
        self.narrow_norm = Norm(build, "rms", latent.key_value_rank)
        self.grow = Linear(build, heads * (latent.plain + latent.value), latent.key_value_rank, bias=False)
        self.out = Linear(build, hidden, heads * latent.value, bias=shape.out_bias)

    def __call__(self, hidden: TapeTensor, angles: TapeTensor | None) -> TapeTensor:
        """Return what each token of ``hidden`` gathered."""
        tape, shape, latent = self.build.tape, self.shape, self.latent
        batch, sequence, _ = hidden.shape
        source = hidden
        if self.direct is not None and self.query_norm is not None:
            source = self.query_norm(self.direct(hidden))
        query = self.query(source).view(batch, shape.heads, sequence, latent.plain + latent.rotary)
        del source
        narrow, turned = attention_ops.split_last_axis(
            tape, self.narrow(hidden), (latent.key_value_rank, latent.rotary)
        )
        narrow = self.narrow_norm(narrow)
        turned = turned.view(batch, 1, sequence, latent.rotary)
        if angles is not None:
            query = attention_ops.rotate_positions(tape, query, angles, latent.rotary)
            turned = attention_ops.rotate_positions(tape, turned, angles, latent.rotary)
        narrow, turned = self.build.keep(narrow.view(batch, 1, sequence, latent.key_value_rank), turned)
        keys = turned.shape[2]
        grown = self.grow(narrow.view(batch, keys, latent.key_value_rank))
        plain, value = attention_ops.split_last_axis(
            tape, grown, (shape.heads * latent.plain, shape.heads * latent.value)
        )
        del grown, narrow
        key = attention_ops.join_heads(tape, plain.view(batch, shape.heads, keys, latent.plain), turned)
        value = value.view(batch, shape.heads, keys, latent.value)
        del plain, turned
        if tape.autocast:
            query, key, value = (tape.cast(one, tape.autocast) for one in (query, key, value))
        mixed = attention_ops.fused_attention(tape, query, key, value, causal=shape.causal, cuda=self.build.cuda)
        del query, key, value
        return self.out(mixed.view(batch, sequence, shape.heads * latent.value))


TEMPORARY = StorageCategory.TEMPORARY


class RelativeAttention:
    """Attention that scores each query against the distances, each key against them, or both."""

    __slots__ = (
        "build", "key", "out", "position_key", "position_query", "qkv", "query", "query_bias", "relative", "shape",
        "value", "value_bias",
    )  # fmt: skip

    def __init__(self, build: ModelBuilder, shape: AttentionShape, relative: RelativeAttentionShape) -> None:
        self.build, self.shape, self.relative = build, shape, relative
        hidden, width = shape.hidden, shape.query_width
        self.qkv: Linear | None = None
        if relative.fused:
            self.qkv = Linear(build, 3 * width, hidden, bias=False)
            self.query_bias, self.value_bias = build.weight(width), build.weight(width)
        else:
            self.query, self.key, self.value = (Linear(build, width, hidden) for _ in range(3))
        own = not relative.shared
        self.position_key = (
            Linear(build, width, hidden, bias=not relative.fused) if own and relative.content_to_position else None
        )
        self.position_query = Linear(build, width, hidden) if own and relative.position_to_content else None
        self.out = Linear(build, hidden, width)

    def __call__(self, hidden: TapeTensor, distances: TapeTensor | None) -> TapeTensor:
        """Return what each token gathered, with the table of ``distances`` where the model has one."""
        shape, tape = self.shape, self.build.tape
        batch, sequence, _ = hidden.shape
        parts = self._project(hidden)
        query, key, value = (part.view(batch, shape.heads, sequence, shape.head_dim) for part in parts)
        del parts
        scores = attention_ops.batched_product(tape, query, ops.scale_tensor(tape, key), turned=True)
        if distances is not None:
            for other, own in self._positions(distances, sequence):
                table = (query if other == "query" else key), own
                scores = ops.add(tape, scores, self._distance_scores(*table, sequence))
        scores = _masked(tape, scores)
        chances = attention_ops.softmax(tape, scores)
        del scores, query, key
        chances = ops.dropout(tape, chances, shape.dropout)
        mixed = attention_ops.batched_product(tape, chances, value)
        return self.out(mixed.view(batch, sequence, shape.query_width))

    def _project(self, hidden: TapeTensor) -> list[TapeTensor]:
        tape, width = self.build.tape, self.shape.query_width
        if self.qkv is None:
            return [self.query(hidden), self.key(hidden), self.value(hidden)]
        query, key, value = attention_ops.split_last_axis(tape, self.qkv(hidden), (width, width, width))
        key = attention_ops.copy_tensor(tape, key, "clone")
        return [ops.add(tape, query, self.query_bias), key, ops.add(tape, value, self.value_bias)]

    def _positions(self, distances: TapeTensor, sequence: int) -> list[tuple[str, TapeTensor]]:
        """Return what queries, and what keys, are compared with: projected rows of the table."""
        relative = self.relative
        rows = min(distances.shape[0], 2 * sequence) if relative.fused else distances.shape[0]
        table = TapeTensor((rows, distances.shape[1]), distances.dtype, distances.storage, distances.slot)
        found = []
        if relative.content_to_position:
            found.append(("query", (self.position_key or self.key)(table)))
        if relative.position_to_content:
            found.append(("key", (self.position_query or self.query)(table)))
        return found

    def _distance_scores(self, content: TapeTensor, table: TapeTensor, sequence: int) -> TapeTensor:
        """Compare each token with every distance, and pick the distance of each pair."""
        tape, shape = self.build.tape, self.shape
        batch, rows = content.shape[0], table.shape[0]
        spread = attention_ops.repeat_batch(tape, table.view(1, shape.heads, rows, shape.head_dim), batch)
        scores = attention_ops.batched_product(tape, content, spread, turned=True)
        picked = tape.new((batch, shape.heads, sequence, sequence), scores.dtype)
        tape.op("gather", OpKind.INDEX, [scores], [picked], read=9.0 * picked.bytes / 4)
        slot = scores.slot

        def backward(gradient: TapeTensor) -> None:
            back = tape.new(scores.shape, gradient.dtype, TEMPORARY)  # gathering saves what it gathered from
            tape.op("scatter_add_", OpKind.INDEX, [gradient], [back])
            tape.send(slot, back)

        return ops.scale_tensor(tape, tape.node(picked, backward))


def _masked(tape: Tape, scores: TapeTensor) -> TapeTensor:
    """Set the scores of padded tokens to the least number."""
    result = tape.new(scores.shape, scores.dtype)
    tape.op("masked_fill", OpKind.ELEMENTWISE, [scores], [result])
    slot = scores.slot

    def backward(gradient: TapeTensor) -> None:
        back = tape.new(gradient.shape, gradient.dtype, TEMPORARY)
        tape.op("masked_fill", OpKind.ELEMENTWISE, [gradient], [back])
        tape.send(slot, back)

    return tape.node(result, backward)
