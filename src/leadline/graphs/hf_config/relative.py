"""Disentangled attention (DeBERTa): scores from contents and from distances, computed op by op."""

from leadline.core.graph import OpKind, StorageCategory
from leadline.graphs.hf_config import attending, layers
from leadline.graphs.hf_config.modules import Build, Linear
from leadline.graphs.hf_config.shape import AttentionShape, Relative
from leadline.graphs.hf_config.tape import Size, Tape

TEMPORARY = StorageCategory.TEMPORARY


class RelativeAttention:
    """Attention that scores each query against the distances, each key against them, or both."""

    __slots__ = (
        "build", "key", "out", "position_key", "position_query", "qkv", "query", "query_bias", "relative", "shape",
        "value", "value_bias",
    )  # fmt: skip

    def __init__(self, build: Build, shape: AttentionShape, relative: Relative) -> None:
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

    def __call__(self, hidden: Size, distances: Size | None) -> Size:
        """Return what each token gathered, with the table of ``distances`` where the model has one."""
        shape, tape = self.shape, self.build.tape
        batch, sequence, _ = hidden.shape
        parts = self._project(hidden)
        query, key, value = (part.view(batch, shape.heads, sequence, shape.head_dim) for part in parts)
        del parts
        scores = attending.product(tape, query, layers.scaled(tape, key), turned=True)
        if distances is not None:
            for other, own in self._positions(distances, sequence):
                table = (query if other == "query" else key), own
                scores = layers.add(tape, scores, self._distance_scores(*table, sequence))
        scores = _masked(tape, scores)
        chances = attending.softmax(tape, scores)
        del scores, query, key
        chances = layers.dropout(tape, chances, shape.dropout)
        mixed = attending.product(tape, chances, value)
        return self.out(mixed.view(batch, sequence, shape.query_width))

    def _project(self, hidden: Size) -> list[Size]:
        tape, width = self.build.tape, self.shape.query_width
        if self.qkv is None:
            return [self.query(hidden), self.key(hidden), self.value(hidden)]
        query, key, value = attending.split(tape, self.qkv(hidden), (width, width, width))
        key = attending.copied(tape, key, "clone")
        return [layers.add(tape, query, self.query_bias), key, layers.add(tape, value, self.value_bias)]

    def _positions(self, distances: Size, sequence: int) -> list[tuple[str, Size]]:
        """Return what queries, and what keys, are compared with: projected rows of the table."""
        relative = self.relative
        rows = min(distances.shape[0], 2 * sequence) if relative.fused else distances.shape[0]
        table = Size((rows, distances.shape[1]), distances.dtype, distances.storage, distances.slot)
        found = []
        if relative.content_to_position:
            found.append(("query", (self.position_key or self.key)(table)))
        if relative.position_to_content:
            found.append(("key", (self.position_query or self.query)(table)))
        return found

    def _distance_scores(self, content: Size, table: Size, sequence: int) -> Size:
        """Compare each token with every distance, and pick the distance of each pair."""
        tape, shape = self.build.tape, self.shape
        batch, rows = content.shape[0], table.shape[0]
        spread = attending.repeat_batch(tape, table.view(1, shape.heads, rows, shape.head_dim), batch)
        scores = attending.product(tape, content, spread, turned=True)
        picked = tape.new((batch, shape.heads, sequence, sequence), scores.dtype)
        tape.op("gather", OpKind.INDEX, [scores], [picked], read=9.0 * picked.bytes / 4)
        slot = scores.slot

        def backward(gradient: Size) -> None:
            back = tape.new(scores.shape, gradient.dtype, TEMPORARY)  # gathering saves what it gathered from
            tape.op("scatter_add_", OpKind.INDEX, [gradient], [back])
            tape.send(slot, back)

        return layers.scaled(tape, tape.node(picked, backward))


def _masked(tape: Tape, scores: Size) -> Size:
    """Set the scores of padded tokens to the least number."""
    result = tape.new(scores.shape, scores.dtype)
    tape.op("masked_fill", OpKind.ELEMENTWISE, [scores], [result])
    slot = scores.slot

    def backward(gradient: Size) -> None:
        back = tape.new(gradient.shape, gradient.dtype, TEMPORARY)
        tape.op("masked_fill", OpKind.ELEMENTWISE, [gradient], [back])
        tape.send(slot, back)

    return tape.node(result, backward)
