"""Attention on a tape: rotary positions, shared heads, and the kernels that mix tokens."""

from leadline.core.graph import OpKind, StorageCategory
from leadline.graphs.hf_config import ops
from leadline.graphs.hf_config.tape import Tape, TapeTensor

ALIGNMENT = 32
"""The memory-efficient kernel pads its log-sums to a multiple of this many queries (``kAlignLSE`` in PyTorch)."""


def rotate_positions(tape: Tape, source: TapeTensor, angles: TapeTensor, width: int) -> TapeTensor:
    """Rotate ``width`` dimensions of queries or keys by their positions, each step a kernel: x·cos + half-turn(x)·sin.

    If only a part of each head is rotated, it is joined with the other part again.
    """
    shape, slot = source.shape, source.slot
    dtype = "float32" if angles.dtype == "float32" else source.dtype
    part = (*shape[:-1], width)
    n = source.elements // shape[-1] * width

    def rotate(unrotated: TapeTensor, *, backward: bool = False) -> TapeTensor:
        left = tape.new(part, dtype)
        tape.op("mul", OpKind.ELEMENTWISE, [unrotated, angles], [left], flops=n, read=float(left.bytes + angles.bytes))
        half = tape.new((*shape[:-1], width // 2), dtype)
        tape.op("neg", OpKind.ELEMENTWISE, [half], [half], flops=n // 2)
        if backward:  # the gradient of each half is widened by zeros, and both are added
            halves = [tape.compute("slice_backward", OpKind.COPY, [half], part, dtype) for _ in range(2)]
            half_turned = tape.pointwise("add", *halves)
            del halves
        else:
            half_turned = tape.compute("cat", OpKind.COPY, [left], part, dtype)
        del half
        right = tape.pointwise("mul", half_turned, angles)
        del half_turned
        total = tape.pointwise("add", left, right)
        return total if width == shape[-1] else tape.compute("cat", OpKind.COPY, [unrotated], shape, dtype)

    return tape.node(rotate(source), lambda gradient: tape.send(slot, rotate(gradient, backward=True)), source)


def rotate_in_place(tape: Tape, source: TapeTensor, angles: TapeTensor) -> TapeTensor:
    """Rotate queries or keys by their positions with Liger Kernel, which writes over them and over their gradients."""
    n, slot = source.elements, source.slot
    tape.op("rope", OpKind.ELEMENTWISE, [source, angles], [source], flops=3.0 * n)

    def backward(gradient: TapeTensor) -> None:
        tape.op("rope", OpKind.ELEMENTWISE, [gradient, angles], [gradient], flops=3.0 * n)
        tape.send(slot, gradient)

    return tape.node(source.view(*source.shape), backward, source)


def fused_attention(
    tape: Tape,
    query: TapeTensor,
    key: TapeTensor,
    value: TapeTensor,
    *,
    causal: bool,
    window: int | None = None,
    cuda: bool = True,
    bias: TapeTensor | None = None,
    sinks: TapeTensor | None = None,
) -> TapeTensor:
    """Attend with a fused kernel: (b, h, q, d) to (b, h, kv, d). Nothing of size q x kv is held.

    As in CUDA, half precision runs flash attention. The memory-efficient kernel runs float32, any ``bias`` on the
    scores, and values of another width than keys. A CPU has its own flash kernel. A causal mask halves the arithmetic,
    and a sliding window narrower than the keys reduces it further. A single query sees all keys. Only flash kernels
    take ``sinks``, a weight per head.
    """
    b, h, q, d = query.shape
    kv, values = key.shape[2], value.shape[3]
    visible = min(kv, window) if window else kv
    causal = causal and q > 1
    share = (0.5 if causal and visible == kv else 1.0) * visible / kv
    flops = 2.0 * b * h * q * kv * (d + values) * share
    dims = {"b": b, "h": h, "q": q, "kv": kv, "d": d}
    name = _attention_kernel(query.dtype, cuda=cuda, plain=bias is None and values == d)
    result = tape.new((b, h, q, values), query.dtype)
    sums = tape.new((b, h, -(-q // ALIGNMENT) * ALIGNMENT if "efficient" in name else q), "float32")
    inputs = [query, key, value, *(tensor for tensor in (bias, sinks) if tensor is not None)]
    tape.op(name, OpKind.ATTENTION, inputs, [result, sums], flops=flops, dims=dims)
    slots = [(tensor.slot, tensor.shape) for tensor in inputs]

    def backward(gradient: TapeTensor) -> None:
        gradients = [tape.new(shape, query.dtype) for slot, shape in slots if slot is not None]
        tape.op(f"{name}_backward", OpKind.ATTENTION, [gradient, *inputs, result, sums], gradients,
                flops=2.5 * flops, dims=dims, kernels=2)  # fmt: skip
        for slot, gradient_in in zip([slot for slot, _ in slots if slot is not None], gradients, strict=True):
            tape.send(slot, gradient_in)

    return tape.node(result, backward, *inputs)


def unfused_attention(
    tape: Tape, query: TapeTensor, key: TapeTensor, value: TapeTensor, *, bias: TapeTensor | None = None,
    mask: TapeTensor | None = None, sinks: TapeTensor | None = None, capped: bool = False, dropout: float = 0.0,
    softmax_type: str = "own",
) -> tuple[TapeTensor, TapeTensor]:  # fmt: skip
    """Attend op by op, and hold the scores (b, h, q, kv) that the softmax and the product with the values save.

    A causal mask or a window saves nothing: all scores are computed, and a ``mask`` is added. ``softmax_type`` is
    that of ``AttentionShape``.

    Returns:
        The mixed values, and the attention probabilities.
    """
    scores = ops.scale_tensor(tape, batched_product(tape, query, key, transpose_right=True))
    if capped:
        scores = ops.scale_tensor(tape, scores)
        scores = ops.activation(tape, scores, "tanh")
        scores = ops.scale_tensor(tape, scores)
    if bias is not None:
        scores = ops.add(tape, scores, bias)
    if mask is not None:
        scores = ops.add(tape, scores, mask)
    if sinks is not None:
        scores = _join_sinks(tape, scores, sinks)
    wide = bool(tape.autocast) or softmax_type == "wide"
    probabilities = softmax(tape, tape.cast(scores, "float32") if wide else scores)
    del scores
    if sinks is not None:
        probabilities = _drop_sinks(tape, probabilities)
    if softmax_type != "bare":
        probabilities = tape.cast(probabilities, value.dtype)
    probabilities = ops.dropout(tape, probabilities, dropout)
    return batched_product(tape, probabilities, value), probabilities


def batched_product(tape: Tape, left: TapeTensor, right: TapeTensor, *, transpose_right: bool = False) -> TapeTensor:
    """Multiply batches of matrices (b, h, m, k) by (b, h, k, n), or by (b, h, n, k) with ``transpose_right``."""
    b, h, m, k = left.shape
    n = right.shape[2] if transpose_right else right.shape[3]
    if tape.autocast:
        left, right = tape.cast(left, tape.autocast), tape.cast(right, tape.autocast)
    flops, dims = 2.0 * b * h * m * n * k, {"b": b * h, "m": m, "n": n, "k": k}
    result = tape.compute("bmm", OpKind.GEMM, [left, right], (b, h, m, n), left.dtype, flops=flops, dims=dims)
    slots = left.slot, right.slot

    def backward(gradient: TapeTensor) -> None:
        for slot, operand, other_operand, rows in ((slots[0], left, right, m), (slots[1], right, left, n)):
            if slot is None:
                continue
            back = tape.new(operand.shape, operand.dtype)
            tape.op("bmm", OpKind.GEMM, [gradient, other_operand], [back], flops=flops,
                    dims={"b": b * h, "m": rows, "n": k, "k": n if operand is left else m})  # fmt: skip
            tape.send(slot, back)

    return tape.node(result, backward, left, right)


def softmax(tape: Tape, scores: TapeTensor, name: str = "_softmax") -> TapeTensor:
    """Turn scores into probabilities, or their logarithms with that ``name``. The result is saved."""
    n, dtype = scores.elements, scores.dtype
    result = tape.compute(name, OpKind.SOFTMAX, [scores], scores.shape, dtype, flops=5.0 * n)
    return tape.node_op(result, scores, f"{name}_backward_data", OpKind.SOFTMAX, [result], dtype=dtype, flops=4.0 * n)


def position_bias(tape: Tape, table: TapeTensor, heads: int, q: int, kv: int) -> TapeTensor:
    """Look up a learned bias for each distance between a query and a key: (1, heads, q, kv)."""
    tokens = tape.new((q, kv), "int64", StorageCategory.TEMPORARY)
    tape.op("bucketize", OpKind.ELEMENTWISE, [tokens], [tokens], flops=10.0 * tokens.elements, kernels=10)
    return ops.embedding(tape, table, tokens).view(1, heads, q, kv)


def copy_tensor(
    tape: Tape,
    source: TapeTensor,
    name: str,
    dtype: str | None = None,
    category: StorageCategory = StorageCategory.ACTIVATION,
) -> TapeTensor:
    """Copy with the kernel ``name``, into ``dtype`` if given. A gradient of the same type is passed on uncopied."""
    result = tape.compute(name, OpKind.COPY, [source], source.shape, dtype or source.dtype, category)
    slot, origin = source.slot, source.dtype
    if result.dtype != origin:
        return tape.node_op(result, source, "_to_copy", OpKind.COPY, dtype=origin)
    return tape.node(result, lambda gradient: tape.send(slot, gradient), source)


def clone_both_ways(tape: Tape, source: TapeTensor, *, forward: bool = True) -> TapeTensor:
    """Copy a tensor into another order of its axes, and its gradient back; without ``forward``, the gradient alone."""
    result = (
        tape.compute("clone", OpKind.COPY, [source], source.shape, source.dtype)
        if forward
        else source.view(*source.shape)
    )
    return tape.node_op(result, source, "clone", OpKind.COPY)


def causal_mask(tape: Tape, batch: int, q: int, kv: int, dtype: str, *, window: bool = False) -> TapeTensor:
    """Make the mask that eager attention adds to its scores: (batch, 1, q, kv), without a gradient."""
    allowed = tape.compute("le", OpKind.ELEMENTWISE, [], (batch, 1, q, kv), "bool")
    if window:
        near = tape.compute("gt", OpKind.ELEMENTWISE, [], allowed.shape, "bool")
        tape.op("bitwise_and", OpKind.ELEMENTWISE, [allowed, near], [allowed])
    return tape.compute("where", OpKind.ELEMENTWISE, [allowed], allowed.shape, dtype)


def join_heads(tape: Tape, per_head: TapeTensor, shared: TapeTensor) -> TapeTensor:
    """Join each head's part (b, h, s, d) with a part that all heads share (b, 1, s, e): (b, h, s, d + e)."""
    b, h, s, d = per_head.shape
    joined = (b, h, s, d + shared.shape[3])
    result = tape.compute("cat", OpKind.COPY, [per_head, shared], joined, per_head.dtype)
    slots = (per_head.slot, per_head.shape), (shared.slot, shared.shape)

    def backward(gradient: TapeTensor) -> None:
        for slot, shape in slots:
            back = tape.new(shape, gradient.dtype)
            tape.op("sum", OpKind.REDUCTION, [gradient], [back], flops=back.elements, read=float(back.bytes))
            tape.send(slot, back)

    return tape.node(result, backward, per_head, shared)


def repeat(tape: Tape, source: TapeTensor, name: str, *, batch: int = 1, heads: int = 1) -> TapeTensor:
    """Write a tensor (b, h, s, d) several times: a sample for a batch, or keys for the heads that share them.

    The gradients of the copies are summed.
    """
    b, h, s, d = source.shape
    result = tape.compute(name, OpKind.COPY, [source], (b * batch, h * heads, s, d), source.dtype)
    return tape.node_op(result, source, "sum", OpKind.REDUCTION, flops=result.elements)


def split_last_axis(tape: Tape, fused: TapeTensor, widths: tuple[int, ...]) -> list[TapeTensor]:
    """Split the last axis into views. The backward pass joins their gradients into one tensor."""
    slot, shape, dtype = fused.slot, fused.shape, fused.dtype
    gradients: list[TapeTensor] = []

    def collect(gradient: TapeTensor) -> None:
        gradients.append(gradient)
        if len(gradients) == len(widths):
            joined = tape.compute("cat", OpKind.COPY, list(gradients), shape, dtype)
            gradients.clear()
            tape.send(slot, joined)

    return [tape.node(TapeTensor((*shape[:-1], width), dtype, fused.storage), collect, fused) for width in widths]


def _join_sinks(tape: Tape, scores: TapeTensor, sinks: TapeTensor) -> TapeTensor:
    """Join each row of scores with its head's sink, less the row's maximum. The softmax drops the sink."""
    joined = tape.compute("cat", OpKind.COPY, [scores, sinks], scores.shape, scores.dtype)
    slot, shape, rows = scores.slot, scores.shape, (*scores.shape[:3], 1)
    most = tape.compute("max", OpKind.REDUCTION, [joined], rows, scores.dtype, flops=joined.elements)
    result = tape.pointwise("sub", joined, most)
    del joined, most

    def backward(gradient: TapeTensor) -> None:
        reduced = tape.sum_to(gradient, rows, gradient.dtype)
        spread = tape.compute("value_selecting_reduction_backward", OpKind.INDEX, [reduced], shape, gradient.dtype)
        gradient = tape.pointwise("add", gradient, spread)
        del reduced, spread
        if sinks.slot is not None:
            sink_gradient = tape.sum_to(gradient, sinks.shape, sinks.dtype, StorageCategory.GRADIENT)
            tape.send(sinks.slot, sink_gradient)
        back = tape.compute("slice", OpKind.COPY, [gradient], shape, gradient.dtype)
        tape.send(slot, back)

    return tape.node(result, backward, scores, sinks)


def _drop_sinks(tape: Tape, probabilities: TapeTensor) -> TapeTensor:
    """Return a view of the probabilities without those of the sinks."""
    result = probabilities.view(*probabilities.shape)
    return tape.node_op(result, probabilities, "slice_backward", OpKind.COPY, dtype=probabilities.dtype)


def _attention_kernel(dtype: str, *, cuda: bool, plain: bool) -> str:
    if not cuda:
        return "_scaled_dot_product_flash_attention_for_cpu"
    flash = dtype in ("float16", "bfloat16") and plain
    return "_scaled_dot_product_flash_attention" if flash else "_scaled_dot_product_efficient_attention"
