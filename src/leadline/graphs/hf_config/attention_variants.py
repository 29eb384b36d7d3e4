"""Attention of single families: latent attention of DeepSeek-V2, and disentangled attention of DeBERTa."""

from leadline.core.graph import OpKind
from leadline.graphs.hf_config import attention_ops, ops
from leadline.graphs.hf_config.modules import Linear, ModelBuilder, Norm
from leadline.graphs.hf_config.shape import AttentionShape, LatentAttentionShape, RelativeAttentionShape
from leadline.graphs.hf_config.tape import TapeTensor


class LatentAttention:
    """Multi-head latent attention: keys and values are expanded in each pass from one cached latent per token.

    Decoding from a paged cache, engines attend to the latents themselves (DeepSeek-V2, section 2.1.2).
    """

    def __init__(self, builder: ModelBuilder, shape: AttentionShape, latent: LatentAttentionShape) -> None:
        self.builder, self.shape, self.latent = builder, shape, latent
        hidden, heads = shape.hidden, shape.heads
        width = heads * (latent.plain + latent.rotary)
        if latent.query_rank is None:
            self.compress_query, self.query_norm = None, None
            self.query = Linear(builder, width, hidden, bias=False, name="q_proj")
        else:
            self.compress_query = Linear(builder, latent.query_rank, hidden, bias=shape.query_bias, name="q_a_proj")
            self.query_norm = Norm(builder, "rms", latent.query_rank)
            self.query = Linear(builder, width, latent.query_rank, bias=False, name="q_b_proj")
        rank = latent.key_value_rank
        self.compress = Linear(builder, rank + latent.rotary, hidden, bias=shape.query_bias, name="kv_a_proj_with_mqa")
        self.compress_norm = Norm(builder, "rms", rank)
        self.expand = Linear(builder, heads * (latent.plain + latent.value), rank, bias=False, name="kv_b_proj")
        self.out = Linear(builder, hidden, heads * latent.value, bias=shape.out_bias, name="o_proj")

    def __call__(self, hidden: TapeTensor, angles: TapeTensor | None, mask: TapeTensor | None = None) -> TapeTensor:
        """Return the attended values of the tokens of ``hidden``. Eager scores add ``mask``."""
        tape, shape, latent = self.builder.tape, self.shape, self.latent
        batch, sequence, _ = hidden.shape
        source = hidden
        if self.compress_query is not None and self.query_norm is not None:
            source = self.query_norm(self.compress_query(hidden))
        query = self.query(source).view(batch, shape.heads, sequence, latent.plain + latent.rotary)
        del source
        widths = latent.key_value_rank, latent.rotary
        compress, rotated = attention_ops.split_last_axis(tape, self.compress(hidden), widths)
        compress = self.compress_norm(compress)
        rotated = rotated.view(batch, 1, sequence, latent.rotary)
        if angles is not None:
            query = attention_ops.rotate_positions(tape, query, angles, latent.rotary)
            rotated = attention_ops.rotate_positions(tape, rotated, angles, latent.rotary)
        absorbing = self.builder.paged and bool(self.builder.past)
        compress, rotated = self.builder.cache_tensors(
            compress.view(batch, 1, sequence, latent.key_value_rank), rotated
        )
        if absorbing:
            mixed = self._attend_latents(query, compress, rotated)
            return self.out(mixed.view(batch, sequence, shape.heads * latent.value))
        keys = rotated.shape[2]
        expanded = self.expand(compress.view(batch, keys, latent.key_value_rank))
        widths = shape.heads * latent.plain, shape.heads * latent.value
        plain, value = attention_ops.split_last_axis(tape, expanded, widths)
        del expanded, compress
        key = attention_ops.join_heads(tape, plain.view(batch, shape.heads, keys, latent.plain), rotated)
        value = value.view(batch, shape.heads, keys, latent.value)
        del plain, rotated
        if tape.autocast:
            query, key, value = (tape.cast(tensor, tape.autocast) for tensor in (query, key, value))
        if shape.eager:
            mixed, self.builder.scores = attention_ops.unfused_attention(
                tape, query, key, value, mask=mask, dropout=shape.dropout, softmax_type=shape.softmax
            )
            mixed = attention_ops.clone_both_ways(tape, mixed)
        else:
            mixed = attention_ops.fused_attention(tape, query, key, value, causal=shape.causal, cuda=self.builder.cuda)
        del query, key, value
        return self.out(mixed.view(batch, sequence, shape.heads * latent.value))

    def _attend_latents(self, query: TapeTensor, compress: TapeTensor, rotated: TapeTensor) -> TapeTensor:
        """Attend to latents: the expansion of keys is a product with the queries, that of values with the result.

        Each head multiplies by its part of the expansion, unpacked to 16 bits.
        """
        tape, latent = self.builder.tape, self.latent
        batch, heads, sequence, _ = query.shape
        rank, kv, dtype = latent.key_value_rank, compress.shape[2], query.dtype

        def expand(source: TapeTensor, n: int, k: int) -> TapeTensor:
            dims = {"b": heads, "m": batch * sequence, "n": n, "k": k}
            result = tape.new((batch, heads, sequence, n), dtype)
            read = 2.0 * heads * k * (batch * sequence + n)
            tape.op("latent_bmm", OpKind.GEMM, [source], [result], flops=2.0 * heads * batch * sequence * n * k,
                    dims=dims, read=read)  # fmt: skip
            return result

        query = expand(query, rank, latent.plain)
        mixed = tape.new((batch, heads, sequence, rank), dtype)
        tape.op("latent_attention", OpKind.ATTENTION, [query, compress, rotated], [mixed],
                flops=2.0 * batch * heads * sequence * kv * (2 * rank + latent.rotary),
                dims={"b": batch, "h": heads, "q": sequence, "kv": kv, "d": rank + latent.rotary})  # fmt: skip
        del query
        return expand(mixed, latent.value, rank)


class RelativeAttention:
    """Disentangled attention, which also scores queries against distances, keys against distances, or both."""

    def __init__(self, builder: ModelBuilder, shape: AttentionShape, relative: RelativeAttentionShape) -> None:
        self.builder, self.shape, self.relative = builder, shape, relative
        hidden, width = shape.hidden, shape.query_width
        self.qkv: Linear | None = None
        if relative.fused:
            self.qkv = Linear(builder, 3 * width, hidden, bias=False, name="qkv_proj")
            self.query_bias, self.value_bias = builder.weight(width), builder.weight(width)
        else:
            names = ("q_proj", "k_proj", "v_proj")
            self.query, self.key, self.value = (Linear(builder, width, hidden, name=name) for name in names)
        has_own_projections = not relative.shared
        self.position_key = (
            Linear(builder, width, hidden, bias=not relative.fused)
            if has_own_projections and relative.content_to_position
            else None
        )
        self.position_query = (
            Linear(builder, width, hidden) if has_own_projections and relative.position_to_content else None
        )
        self.out = Linear(builder, hidden, width, name="o_proj")

    def __call__(self, hidden: TapeTensor, distances: TapeTensor | None) -> TapeTensor:
        """Return the attended values, with the table of ``distances`` if the model has one."""
        shape, tape = self.shape, self.builder.tape
        batch, sequence, _ = hidden.shape
        parts = self._project(hidden)
        query, key, value = (part.view(batch, shape.heads, sequence, shape.head_dim) for part in parts)
        del parts
        scores = attention_ops.batched_product(tape, query, ops.scale_tensor(tape, key), transpose_right=True)
        if distances is not None:
            for compared, projected in self._positions(distances, sequence):
                table = (query if compared == "query" else key), projected
                scores = ops.add(tape, scores, self._distance_scores(*table, sequence))
        # The scores of padded tokens become the smallest number.
        masked = tape.pointwise("masked_fill", scores, cost=0.0)
        scores = tape.node_op(masked, scores, "masked_fill", OpKind.ELEMENTWISE)
        del masked
        probabilities = attention_ops.softmax(tape, tape.cast(scores, "float32") if tape.autocast else scores)
        del scores, query, key
        probabilities = ops.dropout(tape, probabilities, shape.dropout)
        mixed = attention_ops.batched_product(tape, probabilities, value)
        return self.out(mixed.view(batch, sequence, shape.query_width))

    def _project(self, hidden: TapeTensor) -> list[TapeTensor]:
        tape, width = self.builder.tape, self.shape.query_width
        if self.qkv is None:
            return [self.query(hidden), self.key(hidden), self.value(hidden)]
        query, key, value = attention_ops.split_last_axis(tape, self.qkv(hidden), (width, width, width))
        key = attention_ops.copy_tensor(tape, key, "clone")
        return [ops.add(tape, query, self.query_bias), key, ops.add(tape, value, self.value_bias)]

    def _positions(self, distances: TapeTensor, sequence: int) -> list[tuple[str, TapeTensor]]:
        """Return the projected rows of the table that queries, and keys, are compared with."""
        relative = self.relative
        rows = min(distances.shape[0], 2 * sequence) if relative.fused else distances.shape[0]
        table = TapeTensor((rows, distances.shape[1]), distances.dtype, distances.storage, distances.slot)
        comparisons = []
        if relative.content_to_position:
            comparisons.append(("query", (self.position_key or self.key)(table)))
        if relative.position_to_content:
            comparisons.append(("key", (self.position_query or self.query)(table)))
        return comparisons

    def _distance_scores(self, content: TapeTensor, table: TapeTensor, sequence: int) -> TapeTensor:
        """Score each token against every distance, and gather the distance of each pair."""
        tape, shape = self.builder.tape, self.shape
        batch, rows = content.shape[0], table.shape[0]
        spread = attention_ops.repeat(tape, table.view(1, shape.heads, rows, shape.head_dim), "repeat", batch=batch)
        scores = attention_ops.batched_product(tape, content, spread, transpose_right=True)
        gathered = tape.new((batch, shape.heads, sequence, sequence), scores.dtype)
        tape.op("gather", OpKind.INDEX, [scores], [gathered], read=9.0 * gathered.bytes / 4)
        slot = scores.slot

        def backward(gradient: TapeTensor) -> None:
            back = tape.new(scores.shape, gradient.dtype)  # gather saves its source, not its result
            tape.op("scatter_add_", OpKind.INDEX, [gradient], [back])
            tape.send(slot, back)

        return ops.scale_tensor(tape, tape.node(gathered, backward))
