"""The building blocks of transformers on a tape. Each records the ops and memory of eager PyTorch."""

import math

from leadline.core.graph import OpKind, StorageCategory
from leadline.graphs.hf_config.tape import Tape, TapeTensor

GRADIENT = StorageCategory.GRADIENT


def linear(
    tape: Tape, source: TapeTensor, weight: TapeTensor, bias: TapeTensor | None = None, *, cast: bool = True
) -> TapeTensor:
    """Multiply ``source`` (…, k) by ``weight`` (n, k), or each expert's tokens by its own (experts, n, k).

    One GEMM forward and two backward, in autocast's dtype, or without ``cast`` in the weight's dtype.
    """
    source = tape.cast(source, tape.autocast if tape.autocast and cast else weight.dtype)
    matrix = tape.cast_weight(weight) if cast else weight
    cast_bias = tape.cast_weight(bias) if bias is not None and cast else bias
    *batch, n, k = weight.shape
    # Experts that no token chose are not read.
    if batch:
        matrix = TapeTensor((source.shape[0], n, k), matrix.dtype, matrix.storage, matrix.slot)
    b = source.shape[0] if batch else 1
    m = source.elements // (k * b)
    flops = 2.0 * b * m * n * k
    result = tape.new((*source.shape[:-1], n), source.dtype)
    inputs = [cast_bias, source, matrix] if cast_bias is not None else [source, matrix]
    tape.op("addmm" if cast_bias is not None else "mm", OpKind.GEMM, inputs, [result], flops=flops,
            dims={"b": b, "m": m, "n": n, "k": k}, dtype=source.dtype)  # fmt: skip
    source_slot, matrix_slot, bias_slot = source.slot, matrix.slot, cast_bias.slot if cast_bias is not None else None
    category = GRADIENT if tape.is_weight(matrix) else None
    saved = source if matrix_slot is not None else None, matrix if source_slot is not None else None
    shape, dtype, bias_shape = source.shape, source.dtype, cast_bias.shape if cast_bias is not None else ()

    def backward(gradient: TapeTensor) -> None:
        if saved[1] is not None:
            inputs, dims = [gradient, saved[1]], {"b": b, "m": m, "n": k, "k": n}
            back = tape.compute("mm", OpKind.GEMM, inputs, shape, dtype, flops=flops, dims=dims)
            tape.send(source_slot, back)
            del back
        if saved[0] is not None:
            inputs, dims = [gradient, saved[0]], {"b": b, "m": n, "n": k, "k": m}
            total = tape.compute("mm", OpKind.GEMM, inputs, weight.shape, dtype, category, flops=flops, dims=dims)
            tape.send(matrix_slot, total)
        if bias_slot is not None:
            bias_total = tape.sum_to(gradient, bias_shape, gradient.dtype, category)
            tape.send(bias_slot, bias_total)

    return tape.node(result, backward, source, matrix, cast_bias)


def layer_norm(
    tape: Tape, source: TapeTensor, weight: TapeTensor | None = None, bias: TapeTensor | None = None
) -> TapeTensor:
    """Normalize the last axis with the fused kernel, in float32 under autocast."""
    if tape.autocast:
        source = tape.cast(source, "float32")
    rows = source.elements // source.shape[-1]
    result = tape.new(source.shape, source.dtype)
    statistics = [tape.new((rows, 1), "float32"), tape.new((rows, 1), "float32")]
    affine = [tensor for tensor in (weight, bias) if tensor is not None]
    tape.op("native_layer_norm", OpKind.NORM, [source, *affine], [result, *statistics], flops=8.0 * source.elements)
    slot = source.slot

    def backward(gradient: TapeTensor) -> None:
        back = tape.new(source.shape, source.dtype)
        trained = [tensor for tensor in affine if tensor.slot is not None]
        gradients = [tape.new(tensor.shape, tensor.dtype, GRADIENT) for tensor in trained]
        tape.op("native_layer_norm_backward", OpKind.NORM, [gradient, source, *statistics, *affine], [back, *gradients],
                flops=12.0 * source.elements)  # fmt: skip
        tape.send(slot, back)
        for tensor, weight_gradient in zip(trained, gradients, strict=True):
            tape.send(tensor.slot, weight_gradient)

    return tape.node(result, backward, source, *affine)


def unfused_norm(tape: Tape, source: TapeTensor, weight: TapeTensor | None, *, centered: bool) -> TapeTensor:
    """Normalize by the root mean square op by op in float32, as the reference implementations do.

    If ``centered``, normalize by mean and variance instead. The difference from the mean is saved twice.
    """
    dtype = source.dtype
    wide = tape.cast(source, "float32")
    rows, n = source.elements // source.shape[-1], source.elements
    slot, shape = wide.slot, source.shape
    if centered:
        middle = tape.compute("mean", OpKind.REDUCTION, [wide], (rows, 1), "float32", flops=n)
        first, last = tape.new(source.shape, "float32"), tape.new(source.shape, "float32")
        for difference in (first, last):
            tape.op("sub", OpKind.ELEMENTWISE, [wide, middle], [difference], flops=n)
    else:
        first = last = wide
    square = tape.pointwise("pow", first, cost=4.0)
    scale = tape.compute("mean", OpKind.REDUCTION, [square], (rows, 1), "float32", flops=n)
    del square
    for name in ("add", "rsqrt"):
        tape.op(name, OpKind.ELEMENTWISE, [scale], [scale], flops=rows)
    scaled = tape.pointwise("mul", last, scale)

    def backward(gradient: TapeTensor) -> None:
        product = tape.pointwise("mul", gradient, last, shape=shape, dtype="float32")
        reduced = tape.sum_to(product, (rows, 1), "float32")
        del product
        direct = tape.pointwise("mul", gradient, scale, shape=shape, dtype="float32")
        tape.send(slot, direct)
        del direct
        for name in ("pow", "mul", "mul"):  # of the reciprocal root
            tape.op(name, OpKind.ELEMENTWISE, [reduced, scale], [reduced], flops=rows)
        reduced = tape.compute("div", OpKind.ELEMENTWISE, [reduced], shape, "float32", flops=n)  # of the mean
        power = tape.pointwise("pow", first)
        doubled = tape.pointwise("mul", power)
        del power
        indirect = tape.compute("mul", OpKind.ELEMENTWISE, [reduced, doubled], doubled.shape, "float32", flops=n)
        del doubled
        tape.send(slot, indirect)

    normal = tape.cast(tape.node(scaled, backward, wide), dtype)
    del scaled
    return normal if weight is None else multiply(tape, normal, weight)


def fused_rms_norm(tape: Tape, source: TapeTensor, weight: TapeTensor, *, in_place: bool) -> TapeTensor:
    """Normalize by the root mean square in one kernel, in the type of ``source``, as Liger Kernel does.

    It saves the source and a float32 scale for each row. The backward kernel writes over the gradient if ``in_place``,
    and two more kernels sum and cast the weight's gradients of all multiprocessors.
    """
    n, slot = source.elements, source.slot
    result, scale = tape.new(source.shape, source.dtype), tape.new((n // source.shape[-1], 1), "float32")
    tape.op("rms_norm", OpKind.NORM, [source, weight], [result, scale], flops=4.0 * n)

    def backward(gradient: TapeTensor) -> None:
        back = gradient if in_place else tape.new(source.shape, source.dtype)
        total = tape.new(weight.shape, weight.dtype, GRADIENT)
        tape.op("rms_norm_backward", OpKind.NORM, [gradient, source, scale, weight], [back, total], flops=9.0 * n,
                kernels=2 + (weight.dtype != "float32"))  # fmt: skip
        tape.send(slot, back)
        tape.send(weight.slot, total)

    return tape.node(result, backward, source, weight)


def fused_gated_activation(tape: Tape, gate: TapeTensor, inner: TapeTensor, name: str) -> TapeTensor:
    """Multiply ``inner`` by the activated ``gate`` in one kernel, as Liger Kernel's SwiGLU and GeGLU do.

    It saves its two operands, and the backward kernel writes their gradients over them.
    """
    kernel, cost, back_cost = ("swiglu", 6.0, 11.0) if name in ("silu", "swish") else ("geglu", 11.0, 17.0)
    result = tape.pointwise(kernel, gate, inner, cost=cost)

    def backward(gradient: TapeTensor) -> None:
        tape.op(f"{kernel}_backward", OpKind.ELEMENTWISE, [gradient, gate, inner], [gate, inner],
                flops=back_cost * gradient.elements)  # fmt: skip
        tape.send(gate.slot, gate)
        tape.send(inner.slot, inner)

    return tape.node(result, backward, gate, inner)


def multiply(tape: Tape, left: TapeTensor, right: TapeTensor) -> TapeTensor:
    """Multiply elementwise. ``right`` may be a weight that is broadcast over the rows."""
    dtype = _wider_dtype(left.dtype, right.dtype)
    result = tape.pointwise("mul", left, right, dtype=dtype)
    spread = right.elements != left.elements
    saved = left if right.slot is not None else None, right if left.slot is not None else None
    left_slot, left_shape, left_dtype = left.slot, left.shape, left.dtype
    right_slot, right_shape, right_dtype = right.slot, right.shape, right.dtype

    def backward(gradient: TapeTensor) -> None:
        if saved[0] is not None:
            full = tape.pointwise("mul", gradient, saved[0], shape=left_shape, dtype=dtype)
            if spread:
                total = tape.sum_to(full, right_shape, right_dtype, GRADIENT)
                full = total
            tape.send(right_slot, full)
            del full
        if saved[1] is not None:
            back = tape.pointwise("mul", gradient, saved[1], shape=left_shape, dtype=left_dtype)
            tape.send(left_slot, back)

    return tape.node(result, backward, left, right)


def clamped_swiglu(tape: Tape, gate: TapeTensor, inner: TapeTensor) -> TapeTensor:
    """Multiply the clamped gate, its sigmoid, and the clamped input plus one (gpt-oss), each step a kernel."""
    dtype, slots = gate.dtype, (gate.slot, inner.slot)
    low, high = tape.pointwise("clamp", gate), tape.pointwise("clamp", inner, dtype=dtype)
    share = tape.pointwise("sigmoid", tape.pointwise("mul", low))
    glu, high = tape.pointwise("mul", share), tape.pointwise("add", high)
    result = tape.pointwise("mul", glu)
    saved = [gate, inner, low, high, share, glu] if tape.training else []

    def backward(gradient: TapeTensor) -> None:
        for slot in slots:
            back = gradient
            for name in ("mul", "mul", "sigmoid_backward", "clamp_backward"):
                back = tape.pointwise(name, back, dtype=dtype)
            tape.send(slot, back)
        saved.clear()

    return tape.node(result, backward, gate, inner)


def add(tape: Tape, left: TapeTensor, right: TapeTensor) -> TapeTensor:
    """Add two tensors. The gradient of a ``right`` that is broadcast over the rows is summed."""
    dtype = _wider_dtype(left.dtype, right.dtype)
    result = tape.pointwise("add", left, right, dtype=dtype)
    arrivals = [(left.slot, left.dtype, left.shape), (right.slot, right.dtype, right.shape)]
    category = GRADIENT if tape.is_weight(right) else None

    def backward(gradient: TapeTensor) -> None:
        for slot, origin, shape in arrivals:
            if slot is None:
                continue
            back = gradient
            if math.prod(shape) != gradient.elements:
                back = tape.sum_to(gradient, shape, origin, category)
            elif origin != dtype:
                back = tape.compute("_to_copy", OpKind.COPY, [gradient], gradient.shape, origin)
            tape.send(slot, back)

    return tape.node(result, backward, left, right)


def scale_tensor(tape: Tape, source: TapeTensor) -> TapeTensor:
    """Multiply by a number, which saves nothing."""
    result = tape.pointwise("mul", source)
    return tape.node_op(result, source, "mul", OpKind.ELEMENTWISE, flops=source.elements)


def dropout(tape: Tape, source: TapeTensor, rate: float) -> TapeTensor:
    """Drop elements in training, with a mask of one byte each. Do nothing in inference."""
    if not rate or not tape.training:
        return source
    result, mask = tape.new(source.shape, source.dtype), tape.new(source.shape, "bool")
    tape.op("native_dropout", OpKind.ELEMENTWISE, [source], [result, mask], flops=3.0 * source.elements)
    return tape.node_op(result, source, "native_dropout_backward", OpKind.ELEMENTWISE, [mask], flops=source.elements)


def activation(tape: Tape, source: TapeTensor, name: str) -> TapeTensor:
    """Apply a pointwise function. It is one kernel, but ``gelu_new`` runs op by op."""
    if name in ("gelu_new", "gelu_fast"):
        return _unfused_gelu(tape, source)
    if name == "bloom_gelu":
        return _recomputed_gelu(tape, source)
    base = {"gelu_pytorch_tanh": "gelu", "swish": "silu", "relu2": "relu", "quick_gelu": "silu"}.get(name, name)
    cost, back_cost = {"gelu": (10, 14), "silu": (5, 8), "tanh": (6, 2), "sigmoid": (4, 2)}.get(base, (1, 1))
    result = tape.pointwise(base, source, cost=cost)
    saved, slot = (result if base in ("relu", "tanh", "sigmoid") else source), source.slot
    backward_name = "threshold_backward" if base == "relu" else f"{base}_backward"

    def backward(gradient: TapeTensor) -> None:
        back = tape.pointwise(backward_name, gradient, saved, cost=back_cost)
        tape.send(slot, back)

    return tape.node(result, backward, source)


def _unfused_gelu(tape: Tape, source: TapeTensor) -> TapeTensor:
    """0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), each step a kernel. Saves x, tanh and two factors."""
    n, slot = source.elements, source.slot
    # Under autocast, pow runs in float32, and so do the ops after it.
    dtype = "float32" if tape.autocast else source.dtype
    half = tape.pointwise("mul", source)
    wide = tape.cast(source, dtype)
    running = tape.pointwise("pow", wide, cost=4)
    for name, cost in (("mul", 1), ("add", 1), ("mul", 1), ("tanh", 6)):
        running = tape.pointwise(name, running, cost=cost)
    plus_one = tape.pointwise("add", running)
    saved = [running, wide] if tape.training else []
    del running, wide
    result = tape.pointwise("mul", half, plus_one, dtype=dtype)

    def backward(gradient: TapeTensor) -> None:
        left = tape.pointwise("mul", gradient, half, dtype=dtype)
        total = tape.pointwise("mul", gradient, plus_one, dtype=dtype)
        for name, saved_inputs in (("tanh_backward", saved[:1]), ("mul", []), ("mul", []), ("pow_backward", saved[1:])):
            left = tape.pointwise(name, left, *saved_inputs, cost=2)
        for _ in range(3):
            tape.op("add_", OpKind.ELEMENTWISE, [total, left], [total], flops=n)
        tape.send(slot, total)

    return tape.node(result, backward, source)


def _recomputed_gelu(tape: Tape, source: TapeTensor) -> TapeTensor:
    """BLOOM's GELU, op by op too. It only saves its input, from which the backward pass recomputes the rest."""
    slot = source.slot

    def steps(count: int, *operands: TapeTensor) -> TapeTensor:
        running = source
        for _ in range(count):
            running = tape.pointwise("mul", running, *operands, cost=2)
        return running

    half = steps(1)
    result = steps(8, half)
    del half

    def backward(gradient: TapeTensor) -> None:
        tanh = steps(6)
        left = steps(5, tanh)
        right = steps(4, tanh, left)
        del tanh
        total = tape.pointwise("add", left, right)
        del left, right
        back = tape.pointwise("mul", gradient, total, dtype=source.dtype)
        tape.send(slot, back)

    return tape.node(result, backward, source)


def embedding(tape: Tape, table: TapeTensor, tokens: TapeTensor) -> TapeTensor:
    """Look up rows of ``table``. The gradient of the table is dense."""
    result = tape.new((*tokens.shape, table.shape[1]), table.dtype)
    tape.op("embedding", OpKind.EMBEDDING, [table, tokens], [result], read=float(result.bytes + tokens.bytes))
    return tape.node_op(result, table, "embedding_dense_backward", OpKind.EMBEDDING, [tokens])


def _wider_dtype(left: str, right: str) -> str:
    return "float32" if "float32" in (left, right) else left
