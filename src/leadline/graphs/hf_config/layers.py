"""The ops of one step of a transformer, identical layers folded into one op with a count."""

from dataclasses import dataclass

from leadline.core.graph import BYTES_PER_ELEMENT, Op, OpKind, Stage
from leadline.core.workload import Optimizer, Precision
from leadline.graphs.hf_config.shape import TransformerShape


@dataclass(frozen=True, slots=True)
class StepSizes:
    """What decides the cost of a step beside the model: samples, tokens, number format, optimizer."""

    batch: int
    sequence: int
    precision: Precision
    optimizer: Optimizer
    training: bool = True
    accumulation: int = 1
    checkpointing: bool = False
    fused_attention: bool = True
    activation: str = ""

    @property
    def tokens(self) -> int:
        """Tokens of one micro-step."""
        return self.batch * self.sequence

    @property
    def width(self) -> int:
        """Bytes of one element of the matrix arithmetic."""
        return BYTES_PER_ELEMENT[self.precision.compute]

    @property
    def weight_width(self) -> int:
        """Bytes of one stored weight."""
        return BYTES_PER_ELEMENT[self.precision.weights]

    @property
    def stream_width(self) -> int:
        """Bytes of one element of the residual stream: float32 under autocast, else the compute dtype."""
        return 4 if self.precision.autocast else self.width


ADAM_PASSES = {Optimizer.SGD: 3, Optimizer.MOMENTUM: 6, Optimizer.ADAM: 18, Optimizer.ADAMW: 20,
               Optimizer.ADAGRAD: 9, Optimizer.RMSPROP: 11, Optimizer.LION: 11}  # fmt: skip
"""Reads and writes of a parameter-sized tensor in one foreach update, counted in torch.optim's own sequence of ops."""

FOREACH_OPS = {Optimizer.SGD: 1, Optimizer.MOMENTUM: 3, Optimizer.ADAM: 8, Optimizer.ADAMW: 9, Optimizer.ADAGRAD: 4,
               Optimizer.RMSPROP: 5, Optimizer.LION: 6}  # fmt: skip
"""Foreach calls of one update."""

TENSORS_PER_KERNEL = 30
"""Tensors that one foreach kernel takes along, about (its argument block is limited)."""


class StepBuilder:
    """Collects the ops of one optimizer step, accumulation included."""

    def __init__(self, shape: TransformerShape, sizes: StepSizes) -> None:
        self.shape, self.sizes = shape, sizes
        self.ops: list[Op] = []
        self._repeat = 1

    def build(self) -> list[Op]:
        """Return the ops in execution order: forward, backward, optimizer."""
        self._repeat = self.sizes.accumulation
        self._embedding(Stage.FORWARD)
        self._layers(Stage.FORWARD)
        self._head(Stage.FORWARD)
        if not self.sizes.training:
            return self.ops
        self._head(Stage.BACKWARD)
        if self.sizes.checkpointing:
            self._layers(Stage.FORWARD, as_stage=Stage.BACKWARD)
        self._layers(Stage.BACKWARD)
        self._embedding(Stage.BACKWARD)
        self._repeat = 1
        self._optimizer()
        return self.ops

    def _embedding(self, stage: Stage) -> None:
        shape, sizes = self.shape, self.sizes
        size = sizes.tokens * shape.hidden * sizes.stream_width
        if shape.patch:
            self._patches(stage)
        elif stage is Stage.FORWARD:
            tables = 1 + bool(shape.positions) + bool(shape.token_types)
            self._add(
                "aten.embedding", OpKind.EMBEDDING, stage, read=size * tables, write=size * tables, kernels=tables
            )
        else:
            table = shape.vocab * shape.hidden * sizes.weight_width
            self._add(
                "aten.embedding_dense_backward", OpKind.EMBEDDING, stage, read=size, write=table + size, kernels=3
            )
        if shape.embedding_norm:
            self._norm(stage, 1)

    def _patches(self, stage: Stage) -> None:
        shape, sizes = self.shape, self.sizes
        side = shape.image // shape.patch
        inputs = sizes.batch * shape.channels * shape.image**2 * sizes.width
        outputs = sizes.batch * shape.patches * shape.hidden * sizes.width
        flops = 2.0 * sizes.batch * shape.patches * shape.hidden * shape.channels * shape.patch**2
        dims = {"n": sizes.batch, "c": shape.channels, "k": shape.hidden, "h": side, "w": side, "r": shape.patch,
                "s": shape.patch, "groups": 1, "stride": shape.patch, "dilation": 1}  # fmt: skip
        name = "aten.convolution" if stage is Stage.FORWARD else "aten.convolution_backward"
        self._add(name, OpKind.CONV, stage, flops=flops, read=inputs, write=outputs, dims=dims)

    def _layers(self, stage: Stage, as_stage: Stage | None = None) -> None:
        """Add one layer, counted as often as the model has layers."""
        shape, sizes = self.shape, self.sizes
        count, where = shape.layers, as_stage or stage
        query, keys = shape.q_width, shape.kv_width
        self._norm(where, count * shape.norms_per_layer)
        self._linear("qkv", where, shape.hidden, query + 2 * keys, count, parts=3, backward=stage is Stage.BACKWARD)
        if not shape.positions:
            self._elementwise("rotary", where, (query + keys) * 4, count, kernels=10)
        self._attention(where, count, backward=stage is Stage.BACKWARD)
        self._linear("out", where, query, shape.hidden, count, backward=stage is Stage.BACKWARD)
        used = shape.experts_used
        wide = shape.ffn * used
        if shape.experts > 1:
            self._linear("router", where, shape.hidden, shape.experts, count, backward=stage is Stage.BACKWARD)
            self._elementwise("dispatch", where, shape.hidden * used * 4, count, kernels=4 * shape.experts)
        self._linear("up", where, shape.hidden, wide * (1 + shape.gated), count, parts=1 + shape.gated,
                     backward=stage is Stage.BACKWARD)  # fmt: skip
        passes = 5 if shape.gated else 14 if sizes.activation == "gelu_new" else 2
        self._elementwise("activation", where, wide * passes, count, kernels=max(1, passes // 2))
        self._linear("down", where, wide, shape.hidden, count, backward=stage is Stage.BACKWARD)
        dropouts = 2 * bool(shape.dropout) * sizes.training
        self._elementwise("residual", where, shape.hidden * (6 + 3 * dropouts), count, kernels=2 + dropouts)

    def _head(self, stage: Stage) -> None:
        shape, sizes = self.shape, self.sizes
        backward = stage is Stage.BACKWARD
        if shape.final_norm:
            self._norm(stage, 1)
        if shape.head == "none":
            self._linear(
                "classifier", stage, shape.hidden, max(1, shape.labels), 1, backward=backward, rows=sizes.batch
            )
            return
        if shape.head == "mlm":
            self._linear("transform", stage, shape.hidden, shape.hidden, 1, backward=backward)
            self._norm(stage, 1)
        self._linear("lm_head", stage, shape.hidden, shape.vocab, 1, backward=backward)
        if sizes.training:
            logits = float(sizes.tokens * shape.vocab)
            self._add("aten.cross_entropy", OpKind.SOFTMAX, stage, flops=6 * logits, dtype="float32",
                      read=logits * (sizes.width + 4), write=logits * (8 if not backward else 4 + sizes.width),
                      kernels=4)  # fmt: skip

    def _norm(self, stage: Stage, count: int) -> None:
        """Add norms: one fused kernel for LayerNorm, a chain of elementwise ones for the RMS norm of transformers."""
        sizes, elements = self.sizes, self.sizes.tokens * self.shape.hidden
        if self.shape.rms_norm:
            casts = 4 * (sizes.stream_width != 4)
            touched = elements * (24 + casts * 2) * (2 if stage is Stage.BACKWARD else 1)
            kernels = 6 + casts // 2 + (4 if stage is Stage.BACKWARD else 0)
        else:
            touched = elements * sizes.stream_width * (5 if stage is Stage.BACKWARD else 2)
            kernels = 1 + (stage is Stage.BACKWARD)
        self._add("norm", OpKind.NORM, stage, flops=8.0 * elements, read=touched / 2, write=touched / 2, count=count,
                  kernels=kernels, dtype="float32")  # fmt: skip

    def _linear(
        self, name: str, stage: Stage, inputs: int, outputs: int, count: int, *,
        parts: int = 1, backward: bool = False, rows: int | None = None,
    ) -> None:  # fmt: skip
        """Add a product of ``rows`` tokens with an ``inputs × outputs`` weight; in backward its two gradients."""
        sizes, tokens = self.sizes, rows or self.sizes.tokens
        traffic = float(sizes.width * (tokens * inputs + inputs * outputs))
        written = float(sizes.width * tokens * outputs)
        flops = 2.0 * tokens * inputs * outputs
        dims = {"b": 1, "m": tokens, "n": outputs // parts, "k": inputs}
        if sizes.precision.autocast and stage is Stage.FORWARD:
            weights = inputs * outputs
            self._add(f"{name}.cast", OpKind.COPY, stage, read=4.0 * weights, write=2.0 * weights, count=count,
                      kernels=parts)  # fmt: skip
        if not backward:
            self._split(name, stage, parts, flops, traffic, written, dims, count)
            return
        self._split(f"{name}.grad_input", stage, parts, flops, traffic, written,
                    {"b": 1, "m": tokens, "n": inputs, "k": outputs // parts}, count)  # fmt: skip
        self._split(f"{name}.grad_weight", stage, parts, flops, traffic, written,
                    {"b": 1, "m": outputs // parts, "n": inputs, "k": tokens}, count)  # fmt: skip

    def _split(
        self, name: str, stage: Stage, parts: int, flops: float, read: float, write: float, dims: dict[str, int],
        count: int,
    ) -> None:  # fmt: skip
        """Add a product that the model runs as ``parts`` separate ones."""
        self._add(f"aten.mm:{name}", OpKind.GEMM, stage, flops=flops / parts, read=read / parts, write=write / parts,
                  dims=dims, count=count * parts, dtype=self.sizes.precision.compute)  # fmt: skip

    def _attention(self, stage: Stage, count: int, *, backward: bool) -> None:
        shape, sizes = self.shape, self.sizes
        span = sizes.sequence / 2 if shape.causal and sizes.fused_attention else sizes.sequence
        flops = 4.0 * sizes.tokens * span * shape.q_width * (2.5 if backward else 1)
        moved = sizes.tokens * (2 * shape.q_width + 2 * shape.kv_width) * sizes.width * (2 if backward else 1)
        if not sizes.fused_attention:
            moved += 3 * sizes.batch * shape.heads * sizes.sequence**2 * sizes.width
        dims = {"b": sizes.batch, "h": shape.heads, "q": sizes.sequence, "kv": sizes.sequence, "d": shape.head_dim}
        self._add("aten.scaled_dot_product_attention", OpKind.ATTENTION, stage, flops=flops, read=0.75 * moved,
                  write=0.25 * moved, dims=dims, count=count, dtype=sizes.precision.compute,
                  kernels=1 if sizes.fused_attention else 5)  # fmt: skip

    def _elementwise(self, name: str, stage: Stage, per_token: float, count: int, *, kernels: int) -> None:
        """Add elementwise work that touches ``per_token`` elements of each token, half as many more in backward."""
        touched = per_token * self.sizes.tokens * self.sizes.width * (1.5 if stage is Stage.BACKWARD else 1.0)
        self._add(f"elementwise:{name}", OpKind.ELEMENTWISE, stage, flops=touched / self.sizes.width,
                  read=touched * 0.6, write=touched * 0.4, count=count, kernels=kernels)  # fmt: skip

    def _optimizer(self) -> None:
        optimizer = self.sizes.optimizer
        parameters = self.shape.parameters()
        moved = float(parameters * self.sizes.weight_width * ADAM_PASSES[optimizer])
        tensors = self.shape.layers * (9 + 6 * self.shape.qkv_bias) + 4
        calls = FOREACH_OPS[optimizer]
        self._add(f"foreach:{optimizer.value}", OpKind.OPTIMIZER, Stage.OPTIMIZER, flops=1.5 * parameters,
                  read=0.65 * moved / calls, write=0.35 * moved / calls, count=calls,
                  kernels=max(1, tensors // TENSORS_PER_KERNEL), dtype="float32")  # fmt: skip

    def _add(
        self, name: str, kind: OpKind, stage: Stage, *, flops: float = 0.0, read: float = 0.0, write: float = 0.0,
        dims: dict[str, int] | None = None, count: int = 1, kernels: int = 1, dtype: str | None = None,
    ) -> None:  # fmt: skip
        sources = (len(self.ops) - 1,) if self.ops else ()
        self.ops.append(Op(name, kind, stage, dtype or self.sizes.precision.compute, flops, read, write,
                           dims=dims or {}, sources=sources, count=count * self._repeat, kernels=kernels))  # fmt: skip
