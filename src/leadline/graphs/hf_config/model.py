"""A transformer on a tape: its weights, its layers in the order of the reference implementations, and its head."""

from collections.abc import Callable
from dataclasses import dataclass, field

from leadline.core.graph import OpKind, StorageCategory
from leadline.graphs.hf_config import experts, layers
from leadline.graphs.hf_config.shape import TransformerShape
from leadline.graphs.hf_config.tape import Size, Tape

Weights = dict[str, Size]


@dataclass(slots=True)
class Transformer:
    """One model: call ``forward`` for each micro-step and send a gradient to the loss it returns.

    ``dtype`` is that of the weights; ``cuda`` chooses the attention kernel. In inference ``cache`` keeps the keys and
    values of all layers, as a causal model does by default.
    """

    shape: TransformerShape
    tape: Tape
    dtype: str
    cuda: bool = True
    checkpointing: bool = False
    root: Weights = field(default_factory=dict)
    stack: list[Weights] = field(default_factory=list)
    cache: list[Size] = field(default_factory=list)

    def build(self) -> None:
        """Make all weights."""
        shape, make = self.shape, self._make
        if shape.vocab:
            self.root["tokens"] = make(shape.vocab, shape.hidden)
        if shape.positions:
            self.root["positions"] = make(shape.positions, shape.hidden)
        if shape.token_types:
            self.root["types"] = make(shape.token_types, shape.hidden)
        if shape.patch:
            self.root["patches"] = make(shape.hidden, shape.channels * shape.patch**2)
            self.root["patches.bias"] = make(shape.hidden)
            self.root["class"] = make(shape.hidden)
        if shape.embedding_norm:
            self._norm_weights(self.root, "embedding_norm")
        self.stack = [self._layer_weights() for _ in range(shape.layers)]
        if shape.final_norm:
            self._norm_weights(self.root, "final_norm")
        self._head_weights()

    def forward(self, batch: int, sequence: int) -> Size:
        """Run one micro-step; return the loss in training (the caller drops the logits), the answer in inference."""
        shape, tape = self.shape, self.tape
        hidden = self._embed_image(batch) if shape.patch else self._embed_tokens(batch, sequence)
        sequence = hidden.shape[1]
        angles = tape.new((batch, sequence, shape.head_dim), self.dtype) if shape.rotary else None
        for weights in self.stack:
            block = self._block(weights, angles)
            hidden = tape.checkpoint(block, hidden) if self.checkpointing else block(hidden)
        if shape.final_norm:
            hidden = self._norm(self.root, "final_norm", hidden)
        answer = self._answer(hidden, batch)
        del hidden
        return layers.cross_entropy(tape, answer) if tape.training else answer

    def _block(self, weights: Weights, angles: Size | None) -> Callable[[Size], Size]:
        if self.shape.post_norm:
            return lambda hidden: self._post_norm_layer(weights, hidden)
        if self.shape.parallel:
            return lambda hidden: self._parallel_layer(weights, angles, hidden)
        return lambda hidden: self._pre_norm_layer(weights, angles, hidden)

    def _pre_norm_layer(self, weights: Weights, angles: Size | None, hidden: Size) -> Size:
        tape, rate = self.tape, self.shape.dropout
        mixed = self._attention(weights, angles, self._norm(weights, "norm1", hidden))
        if "norm1b" in weights:
            mixed = self._norm(weights, "norm1b", mixed)
        hidden = layers.add(tape, hidden, layers.dropout(tape, mixed, rate))
        mixed = self._feed_forward(weights, self._norm(weights, "norm2", hidden))
        if "norm2b" in weights:
            mixed = self._norm(weights, "norm2b", mixed)
        return layers.add(tape, hidden, layers.dropout(tape, mixed, rate))

    def _parallel_layer(self, weights: Weights, angles: Size | None, hidden: Size) -> Size:
        tape, rate = self.tape, self.shape.dropout
        first = self._norm(weights, "norm1", hidden)
        second = self._norm(weights, "norm2", hidden) if "norm2" in weights else first
        mixed = layers.dropout(tape, self._attention(weights, angles, first), rate)
        fed = layers.dropout(tape, self._feed_forward(weights, second), rate)
        return layers.add(tape, layers.add(tape, fed, mixed), hidden)

    def _post_norm_layer(self, weights: Weights, hidden: Size) -> Size:
        tape, rate = self.tape, self.shape.dropout
        mixed = layers.dropout(tape, self._attention(weights, None, hidden), rate)
        hidden = self._norm(weights, "norm1", layers.add(tape, mixed, hidden))
        mixed = layers.dropout(tape, self._feed_forward(weights, hidden), rate)
        return self._norm(weights, "norm2", layers.add(tape, mixed, hidden))

    def _attention(self, weights: Weights, angles: Size | None, hidden: Size) -> Size:
        shape, tape = self.shape, self.tape
        batch, sequence, _ = hidden.shape
        query, key, value = self._project(weights, hidden)
        if "q_norm" in weights:
            query = layers.rms_norm(tape, query.view(-1, shape.head_dim), weights["q_norm"])
            key = layers.rms_norm(tape, key.view(-1, shape.head_dim), weights["k_norm"])
        query = query.view(batch, shape.heads, sequence, shape.head_dim)
        key, value = (one.view(batch, shape.kv_heads, sequence, shape.head_dim) for one in (key, value))
        if angles is not None:
            query, key = layers.rotary(tape, query, angles), layers.rotary(tape, key, angles)
        if shape.causal and not tape.training:
            self.cache += (key, value)
        times = shape.heads // shape.kv_heads
        key, value = layers.repeat_heads(tape, key, times), layers.repeat_heads(tape, value, times)
        if tape.autocast:
            query, key, value = (tape.cast(one, tape.autocast) for one in (query, key, value))
        mixed = layers.attention(tape, query, key, value, causal=shape.causal, window=shape.window, cuda=self.cuda)
        del query, key, value
        mixed = mixed.view(batch, sequence, shape.q_width)
        return layers.linear(tape, mixed, weights["out"], weights.get("out.bias"))

    def _project(self, weights: Weights, hidden: Size) -> tuple[Size, Size, Size]:
        shape, tape = self.shape, self.tape
        if "qkv" in weights:
            fused = layers.linear(tape, hidden, weights["qkv"], weights.get("qkv.bias"))
            query, key, value = layers.split(tape, fused, (shape.q_width, shape.kv_width, shape.kv_width))
            return query, key, value
        query, key, value = (
            layers.linear(tape, hidden, weights[name], weights.get(f"{name}.bias")) for name in ("q", "k", "v")
        )
        return query, key, value

    def _feed_forward(self, weights: Weights, hidden: Size) -> Size:
        shape, tape = self.shape, self.tape
        outer = hidden.shape
        if shape.experts > 1:
            chosen = experts.route(tape, hidden, weights["router"], shape.experts_used)
            hidden = experts.dispatch(tape, hidden, shape.experts, shape.experts_used)
        inner = layers.linear(tape, hidden, weights["up"], weights.get("up.bias"))
        if shape.gated:
            gate = layers.linear(tape, hidden, weights["gate"], weights.get("gate.bias"))
            gate = layers.activation(tape, gate, shape.activation)
            inner = layers.multiply(tape, gate, inner)
            del gate
        else:
            inner = layers.activation(tape, inner, shape.activation)
        result = layers.linear(tape, inner, weights["down"], weights.get("down.bias"))
        return experts.combine(tape, result, chosen, outer) if shape.experts > 1 else result

    def _embed_tokens(self, batch: int, sequence: int) -> Size:
        shape, tape = self.shape, self.tape
        tokens = tape.new((batch, sequence), "int64", StorageCategory.INPUT)
        hidden = layers.embedding(tape, self.root["tokens"], tokens)
        for name in ("types", "positions"):
            if name in self.root:
                hidden = layers.add(tape, hidden, layers.embedding(tape, self.root[name], tokens))
        if shape.embedding_norm:
            hidden = self._norm(self.root, "embedding_norm", hidden)
        return layers.dropout(tape, hidden, shape.dropout)

    def _embed_image(self, batch: int) -> Size:
        shape, tape = self.shape, self.tape
        image = tape.new((batch, shape.channels, shape.image, shape.image), self.dtype, StorageCategory.INPUT)
        side = shape.image // shape.patch
        patches = image.view(batch, side * side, shape.channels * shape.patch**2)
        hidden = layers.linear(tape, patches, self.root["patches"], self.root["patches.bias"])
        joined = tape.new((batch, side * side + 1, shape.hidden), hidden.dtype)
        tape.op("cat", OpKind.COPY, [hidden], [joined])
        slot, inner, dtype = hidden.slot, hidden.shape, hidden.dtype
        kinds = [self.root["class"], self.root["positions"]]

        def backward(gradient: Size) -> None:
            back = tape.new(inner, dtype, StorageCategory.TEMPORARY)
            tape.op("slice", OpKind.COPY, [gradient], [back])
            for weight in kinds:
                made = tape.new(weight.shape, weight.dtype, StorageCategory.GRADIENT)
                tape.op("sum", OpKind.REDUCTION, [gradient], [made], flops=gradient.elements)
                tape.send(weight.slot, made)
            tape.send(slot, back)

        return layers.dropout(tape, tape.node(joined, backward), shape.dropout)

    def _answer(self, hidden: Size, batch: int) -> Size:
        shape, tape, root = self.shape, self.tape, self.root
        if shape.head == "mlm":
            hidden = layers.linear(tape, hidden, root["transform"], root["transform.bias"])
            hidden = self._norm(root, "transform_norm", layers.activation(tape, hidden, shape.activation))
        if shape.head == "none":
            first = layers.first_token(tape, hidden)
            return layers.linear(tape, first, root["head"], root["head.bias"]).view(batch, shape.labels)
        weight = root["head"] if "head" in root else root["tokens"]
        return layers.linear(tape, hidden, weight, root.get("head.bias"))

    def _norm(self, weights: Weights, name: str, hidden: Size) -> Size:
        if self.shape.rms_norm:
            return layers.rms_norm(self.tape, hidden, weights[name])
        return layers.layer_norm(self.tape, hidden, weights[name], weights.get(f"{name}.bias"))

    def _layer_weights(self) -> Weights:
        shape, weights = self.shape, Weights()
        qkv = shape.q_width + 2 * shape.kv_width
        if shape.fused_qkv:
            self._linear_weights(weights, "qkv", qkv, shape.hidden, bias=shape.qkv_bias)
        else:
            widths = {"q": shape.q_width, "k": shape.kv_width, "v": shape.kv_width}
            for name, width in widths.items():
                self._linear_weights(weights, name, width, shape.hidden, bias=shape.qkv_bias)
        self._linear_weights(weights, "out", shape.hidden, shape.q_width, bias=shape.out_bias)
        if shape.qk_norm:
            weights["q_norm"], weights["k_norm"] = self._make(shape.head_dim), self._make(shape.head_dim)
        for name in ("norm1", "norm2", "norm1b", "norm2b")[: shape.norms_per_layer]:
            self._norm_weights(weights, name)
        experts = shape.experts if shape.experts > 1 else 0
        if experts:
            weights["router"] = self._make(experts, shape.hidden)
        for name in ("gate", "up") if shape.gated else ("up",):
            self._linear_weights(weights, name, shape.ffn, shape.hidden, bias=shape.ffn_bias, experts=experts)
        self._linear_weights(weights, "down", shape.hidden, shape.ffn, bias=shape.ffn_bias, experts=experts)
        return weights

    def _head_weights(self) -> None:
        shape, root = self.shape, self.root
        if shape.head == "lm":
            root["head"] = self._make(shape.vocab, shape.hidden)
        if shape.head_bias:
            root["head.bias"] = self._make(shape.vocab)
        if shape.head == "mlm":
            self._linear_weights(root, "transform", shape.hidden, shape.hidden, bias=True)
            self._norm_weights(root, "transform_norm")
            root["head.bias"] = self._make(shape.vocab)
        if shape.head == "none":
            self._linear_weights(root, "head", shape.labels, shape.hidden, bias=True)

    def _linear_weights(self, weights: Weights, name: str, n: int, k: int, *, bias: bool, experts: int = 0) -> None:
        weights[name] = self._make(experts, n, k) if experts else self._make(n, k)
        if bias:
            weights[f"{name}.bias"] = self._make(n)

    def _norm_weights(self, weights: Weights, name: str) -> None:
        weights[name] = self._make(self.shape.hidden)
        if not self.shape.rms_norm:
            weights[f"{name}.bias"] = self._make(self.shape.hidden)

    def _make(self, *shape: int) -> Size:
        return self.tape.parameter(*shape, dtype=self.dtype)
