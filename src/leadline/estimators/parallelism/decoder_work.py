"""The work of one microbatch of a transformer, read from its op graph: products, attention, memory traffic, weights.

Tensor parallelism divides a layer as in Megatron-LM (Shoeybi et al. 2019): a product into the residual stream is cut
along its inner side, and a reduction follows. Any other product is cut along its output.
"""

import math
from enum import StrEnum

from msgspec.structs import replace

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.graph import Op, OpGraph, OpKind, Stage
from leadline.estimators.parallelism.tensor import residual_width

BATCHED = "aten.bmm"
"""Product of two activations. One of activations and the weights of several experts has another name."""


class Cut(StrEnum):
    """Side along which tensor parallelism cuts a product."""

    OUTPUT = "output"
    INNER = "inner"  # partial sums are reduced
    HEAD = "head"  # scores of the vocabulary, cut along the output


class Product(Frozen):
    """Forward products ``(m × k) · (k × n)`` of a microbatch: ``count`` of them, each for so many ``experts``.

    ``experts`` is 0 for weights that every token uses, and ``m`` are the tokens of one expert.
    """

    cut: Cut
    m: int
    n: int
    k: int
    count: float
    experts: int = 0

    @property
    def weights(self) -> float:
        """Number of weights in all of them."""
        return float(self.n) * self.k * self.count * max(self.experts, 1)


class DecoderWork(Frozen):
    """The work of one microbatch on a GPU that holds the whole model.

    Attributes:
        width: Width of the residual stream.
        tokens: Tokens of a microbatch.
        sequence: Tokens of a sample.
        attention_flops: FLOPs of the forward pass.
        attention_blocks: Number of attention layers.
        key_width: Mean width of the keys of an attention layer.
        scores: Elements of all attention scores of the forward pass if they are written to memory; 0 if fused.
        stream_bytes: Bytes that pass through memory in ops on the residual stream, forward and backward.
        inner_bytes: The same in other ops of the layers.
        head_bytes: The same in ops on the vocabulary's scores.
        kernels: Kernels of all layers, forward and backward, as the framework launches them.
        update_kernels: Kernels of the optimizer for all weights.
        parameters: Number of weights.
        trained: Number of weights with a gradient.
        head_width: Width of a head of attention.
    """

    width: int
    tokens: int
    sequence: int
    products: tuple[Product, ...]
    attention_flops: float
    attention_blocks: float
    key_width: float
    scores: float
    stream_bytes: float
    inner_bytes: float
    head_bytes: float
    kernels: float
    parameters: float
    trained: float
    head_width: float = 128.0
    update_kernels: float = 0.0

    @property
    def reductions(self) -> float:
        """Number of forward products whose partial sums tensor parallelism reduces, experts aside."""
        dense = [product for product in self.products if not product.experts]
        inner = sum(product.count for product in dense if product.cut is Cut.INNER)
        square = sum(product.count for product in dense if product.n == product.k == self.width)
        # A square product may be attention's last one, which cannot be told from its first.
        return inner + (self.attention_blocks if square >= self.attention_blocks else 0.0)

    @property
    def expert_layers(self) -> float:
        """Number of layers with experts."""
        return sum(product.count for product in self.products if product.experts and product.cut is Cut.INNER)

    @property
    def routed_tokens(self) -> float:
        """Tokens that all expert layers of a microbatch receive, each counted once for each of its experts."""
        return sum(p.count * p.m * p.experts for p in self.products if p.experts and p.cut is Cut.INNER)

    @property
    def expert_weights(self) -> float:
        """Number of weights in experts."""
        return sum(product.weights for product in self.products if product.experts)

    @property
    def layer_weights(self) -> float:
        """Number of weights in the products of layers, experts aside."""
        return sum(p.weights for p in self.products if not p.experts and p.cut is not Cut.HEAD)


def read_work(graph: OpGraph, microbatches: int) -> DecoderWork:
    """Return the work of one of ``microbatches`` equal microbatches of a step.

    Raises:
        InvalidInput: the graph has no products with weights along a residual stream.
    """
    width = residual_width(graph)
    forward = [op for op in graph.ops if op.stage is Stage.FORWARD]
    weighing = [op for op in forward if op.kind is OpKind.GEMM and "n" in op.dims and op.name != BATCHED]
    if not width or not weighing:
        raise InvalidInput("this graph has no products along a residual stream, so it has no layers to divide")
    head = weighing[-1] if weighing[-1].dims["k"] == width and weighing[-1].dims["n"] > 2 * width else None
    products = tuple(_product(op, width, op is head, microbatches) for op in weighing)
    tokens = max(product.m for product in products if not product.experts)
    fused = [op for op in forward if op.kind is OpKind.ATTENTION]
    written = [op for op in forward if op.name == BATCHED]
    scores = [op for op in written if writes_scores(op)]
    traffic, kernels = _traffic(graph, width, head.dims["n"] if head else 0)
    trained = (graph.trained_bytes or graph.parameter_bytes) / max(graph.parameter_bytes, 1)
    lengths = [op.dims["q"] for op in fused] + [op.dims["m"] for op in scores]
    return DecoderWork(
        width=width,
        tokens=tokens,
        sequence=max(lengths, default=1),
        products=products,
        attention_flops=sum(op.flops * op.count for op in (*fused, *written)) / microbatches,
        attention_blocks=sum(op.count for op in (*fused, *scores)) / microbatches,
        key_width=_key_width(fused) or float(width),
        scores=float(sum(op.dims["b"] * op.dims["m"] * op.dims["n"] * op.count for op in scores)) / microbatches,
        stream_bytes=traffic["stream"] / microbatches,
        inner_bytes=traffic["inner"] / microbatches,
        head_bytes=traffic["head"] / microbatches,
        kernels=kernels / microbatches,
        parameters=float(graph.parameters),
        trained=float(graph.parameters) * trained,
        head_width=float(next((op.dims["d"] for op in fused if "d" in op.dims), 128)),
        update_kernels=float(sum(op.kernels * op.count for op in graph.ops if op.stage is Stage.OPTIMIZER)),
    )


def extend_batch(one: DecoderWork, two: DecoderWork, batch: int) -> DecoderWork:
    """Return the work of a microbatch of ``batch`` samples from that of one and of two: all of it grows in lines."""
    sizes = ("tokens", "attention_flops", "scores", "stream_bytes", "inner_bytes", "head_bytes")
    grown = {name: (2 - batch) * getattr(one, name) + (batch - 1) * getattr(two, name) for name in sizes}
    products = tuple(
        replace(product, m=(2 - batch) * product.m + (batch - 1) * other.m)
        for product, other in zip(one.products, two.products, strict=True)
    )
    return replace(one, products=products, **grown)


def writes_scores(op: Op) -> bool:
    """Return whether an op is the first product of an attention without a fused kernel.

    The second one sums over the keys, which are mostly more than the width of a head.
    """
    return op.name == BATCHED and op.dims["n"] >= op.dims["k"]


def _key_width(fused: list[Op]) -> float:
    """Return the mean width of keys over attention layers; 0 where no input shows it."""
    shapes = [(op.inputs[1].shape, op.count) for op in fused if len(op.inputs) > 1 and len(op.inputs[1].shape) == 4]
    count = sum(times for _, times in shapes)
    return sum(shape[1] * shape[3] * times for shape, times in shapes) / count if count else 0.0


def _product(op: Op, width: int, is_head: bool, microbatches: int) -> Product:
    m, n, k, experts = op.dims["m"], op.dims["n"], op.dims["k"], op.dims.get("b", 1)
    # The last product of experts ends in the residual stream even if they are as wide as it.
    cut = Cut.HEAD if is_head else Cut.INNER if n == width and (k != width or experts > 1) else Cut.OUTPUT
    return Product(cut, m, n, k, op.count / microbatches, experts if experts > 1 else 0)


def _traffic(graph: OpGraph, width: int, vocabulary: int) -> tuple[dict[str, float], float]:
    """Return the bytes of ops that move data, by the tensors they work on, and the number of kernels."""
    traffic = {"stream": 0.0, "inner": 0.0, "head": 0.0}
    kernels = 0.0
    for op in graph.ops:
        if op.stage not in (Stage.FORWARD, Stage.BACKWARD):
            continue
        kernels += op.kernels * op.count
        if op.kind in (OpKind.GEMM, OpKind.ATTENTION, OpKind.COMMUNICATION):
            continue
        shapes = [spec.shape for spec in (*op.outputs, *op.inputs) if spec.shape]
        largest = max(shapes, key=math.prod, default=(0,))
        on_stream = largest[-1] == width and len(largest) <= 3
        side = "head" if vocabulary in largest else "stream" if on_stream else "inner"
        traffic[side] += (op.bytes_read + op.bytes_written) * op.count
    return traffic, kernels
