"""The building blocks of transformers on a tape. Each records the ops and memory of eager PyTorch."""

import math

from leadline.core.graph import OpKind, StorageCategory
from leadline.graphs.hf_config.tape import Tape, TapeTensor

TEMPORARY = StorageCategory.TEMPORARY


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
    if batch:  # experts that no token chose are not read
        matrix = TapeTensor((source.shape[0], n, k), matrix.dtype, matrix.storage, matrix.slot)
    b = source.shape[0] if batch else 1
    m = source.elements // (k * b)
    flops = 2.0 * b * m * n * k
    result = tape.new((*source.shape[:-1], n), source.dtype)
    inputs = [cast_bias, source, matrix] if cast_bias is not None else [source, matrix]
    tape.op("addmm" if cast_bias is not None else "mm", OpKind.GEMM, inputs, [result], flops=flops,
            dims={"b": b, "m": m, "n": n, "k": k}, dtype=source.dtype)  # fmt: skip
    source_slot, matrix_slot, bias_slot = source.slot, matrix.slot, cast_bias.slot if cast_bias is not None else None
    category = StorageCategory.GRADIENT if tape.is_weight(matrix) else TEMPORARY
    saved = source if matrix_slot is not None else None, matrix if source_slot is not None else None
    shape, dtype, bias_shape = source.shape, source.dtype, cast_bias.shape if cast_bias is not None else ()

    def backward(gradient: TapeTensor) -> None:
        if saved[1] is not None:
            back = tape.new(shape, dtype, TEMPORARY)
            tape.op("mm", OpKind.GEMM, [gradient, saved[1]], [back], flops=flops, dims={"b": b, "m": m, "n": k, "k": n})
            tape.send(source_slot, back)
            del back
        if saved[0] is not None:
            weight_gradient = tape.new(weight.shape, dtype, category)
            tape.op(
                "mm",
                OpKind.GEMM,
                [gradient, saved[0]],
                [weight_gradient],
                flops=flops,
                dims={"b": b, "m": n, "n": k, "k": m},
            )
            tape.send(matrix_slot, weight_gradient)
        if bias_slot is not None:
            total = tape.new(bias_shape, gradient.dtype, category)
            tape.op("sum", OpKind.REDUCTION, [gradient], [total], flops=gradient.elements)
            tape.send(bias_slot, total)

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
    affine = [weight_or_bias for weight_or_bias in (weight, bias) if weight_or_bias is not None]
    tape.op("native_layer_norm", OpKind.NORM, [source, *affine], [result, *statistics], flops=8.0 * source.elements)
    slot = source.slot

    def backward(gradient: TapeTensor) -> None:
        back = tape.new(source.shape, source.dtype, TEMPORARY)
        trained = [weight_or_bias for weight_or_bias in affine if weight_or_bias.slot is not None]
        gradients = [
            tape.new(weight_or_bias.shape, weight_or_bias.dtype, StorageCategory.GRADIENT) for weight_or_bias in trained
        ]
        tape.op("native_layer_norm_backward", OpKind.NORM, [gradient, source, *statistics, *affine], [back, *gradients],
                flops=12.0 * source.elements)  # fmt: skip
        tape.send(slot, back)
        for weight_or_bias, weight_gradient in zip(trained, gradients, strict=True):
            tape.send(weight_or_bias.slot, weight_gradient)

    return tape.node(result, backward, source, *affine)


def rms_norm(tape: Tape, source: TapeTensor, weight: TapeTensor | None = None, *, wide: bool = False) -> TapeTensor:
    """Normalize by the root mean square op by op in float32, as the reference implementations do.

    With ``wide`` the weight is multiplied in float32 too, before the result has the type of ``source`` again.
    """
    if wide and weight is not None:
        normal = _unfused_norm(tape, tape.cast(source, "float32"), None, centred=False)
        return tape.cast(multiply(tape, normal, weight), source.dtype)
    return _unfused_norm(tape, source, weight, centred=False)


def unfused_layer_norm(
    tape: Tape, source: TapeTensor, weight: TapeTensor, bias: TapeTensor | None = None
) -> TapeTensor:
    """Normalize by mean and variance op by op, in float32. The difference from the mean is saved twice."""
    normal = _unfused_norm(tape, source, weight, centred=True)
    return normal if bias is None else add(tape, normal, bias)


def _unfused_norm(tape: Tape, source: TapeTensor, weight: TapeTensor | None, *, centred: bool) -> TapeTensor:
    dtype = source.dtype
    wide = tape.cast(source, "float32")
    rows, n = source.elements // source.shape[-1], source.elements
    slot, shape = wide.slot, source.shape
    if centred:
        middle = tape.new((rows, 1), "float32")
        tape.op("mean", OpKind.REDUCTION, [wide], [middle], flops=n)
        first, last = tape.new(shape, "float32"), tape.new(shape, "float32")
        for difference in (first, last):
            tape.op("sub", OpKind.ELEMENTWISE, [wide, middle], [difference], flops=n)
    else:
        first = last = wide
    square = tape.new(shape, "float32")
    tape.op("pow", OpKind.ELEMENTWISE, [first], [square], flops=4.0 * n)
    scale = tape.new((rows, 1), "float32")
    tape.op("mean", OpKind.REDUCTION, [square], [scale], flops=n)
    del square
    for name in ("add", "rsqrt"):
        tape.op(name, OpKind.ELEMENTWISE, [scale], [scale], flops=rows)
    scaled = tape.new(shape, "float32")
    tape.op("mul", OpKind.ELEMENTWISE, [last, scale], [scaled], flops=n)

    def backward(gradient: TapeTensor) -> None:
        product = tape.new(shape, "float32", TEMPORARY)
        tape.op("mul", OpKind.ELEMENTWISE, [gradient, last], [product], flops=n)
        reduced = tape.new((rows, 1), "float32", TEMPORARY)
        tape.op("sum", OpKind.REDUCTION, [product], [reduced], flops=n)
        del product
        direct = tape.new(shape, "float32", TEMPORARY)
        tape.op("mul", OpKind.ELEMENTWISE, [gradient, scale], [direct], flops=n)
        tape.send(slot, direct)
        del direct
        power = tape.new(shape, "float32", TEMPORARY)
        tape.op("pow", OpKind.ELEMENTWISE, [first], [power], flops=n)
        doubled = tape.new(shape, "float32", TEMPORARY)
        tape.op("mul", OpKind.ELEMENTWISE, [power], [doubled], flops=n)
        del power
        indirect = tape.new(shape, "float32", TEMPORARY)
        tape.op("mul", OpKind.ELEMENTWISE, [reduced, doubled], [indirect], flops=n)
        del doubled
        tape.send(slot, indirect)

    normal = tape.cast(tape.node(scaled, backward, wide), dtype)
    del scaled
    return normal if weight is None else multiply(tape, normal, weight)


def multiply(tape: Tape, left: TapeTensor, right: TapeTensor) -> TapeTensor:
    """Multiply elementwise. ``right`` may be a weight that is broadcast over the rows."""
    dtype = _wider_dtype(left.dtype, right.dtype)
    result = tape.new(left.shape, dtype)
    tape.op("mul", OpKind.ELEMENTWISE, [left, right], [result], flops=left.elements)
    spread, n = right.elements != left.elements, left.elements
    saved = left if right.slot is not None else None, right if left.slot is not None else None
    (left_slot, left_shape, left_dtype), (right_slot, right_shape, right_dtype) = (
        (operand.slot, operand.shape, operand.dtype) for operand in (left, right)
    )

    def backward(gradient: TapeTensor) -> None:
        if saved[0] is not None:
            full = tape.new(left_shape, dtype, TEMPORARY)
            tape.op("mul", OpKind.ELEMENTWISE, [gradient, saved[0]], [full], flops=n)
            if spread:
                total = tape.new(right_shape, right_dtype, StorageCategory.GRADIENT)
                tape.op("sum", OpKind.REDUCTION, [full], [total], flops=n)
                full = total
            tape.send(right_slot, full)
            del full
        if saved[1] is not None:
            back = tape.new(left_shape, left_dtype, TEMPORARY)
            tape.op("mul", OpKind.ELEMENTWISE, [gradient, saved[1]], [back], flops=n)
            tape.send(left_slot, back)

    return tape.node(result, backward, left, right)


def clamped_swiglu(tape: Tape, gate: TapeTensor, inner: TapeTensor) -> TapeTensor:
    """Multiply the clamped gate, its sigmoid, and the clamped input plus one (gpt-oss), each step a kernel."""
    shape, dtype, n = gate.shape, gate.dtype, gate.elements
    slots = gate.slot, inner.slot

    def step(name: str, source: TapeTensor, category: StorageCategory = StorageCategory.ACTIVATION) -> TapeTensor:
        stepped = tape.new(shape, dtype, category)
        tape.op(name, OpKind.ELEMENTWISE, [source], [stepped], flops=n)
        return stepped

    low, high = step("clamp", gate), step("clamp", inner)
    share = step("sigmoid", step("mul", low))
    glu, high = step("mul", share), step("add", high)
    result = step("mul", glu)
    saved = [gate, inner, low, high, share, glu] if tape.training else []

    def backward(gradient: TapeTensor) -> None:
        for slot in slots:
            back = gradient
            for name in ("mul", "mul", "sigmoid_backward", "clamp_backward"):
                back = step(name, back, TEMPORARY)
            tape.send(slot, back)
        saved.clear()

    return tape.node(result, backward, gate, inner)


def add(tape: Tape, left: TapeTensor, right: TapeTensor) -> TapeTensor:
    """Add two tensors. The gradient of a ``right`` that is broadcast over the rows is summed."""
    dtype = _wider_dtype(left.dtype, right.dtype)
    result = tape.new(left.shape, dtype)
    tape.op("add", OpKind.ELEMENTWISE, [left, right], [result], flops=left.elements)
    arrivals = [(left.slot, left.dtype, left.shape), (right.slot, right.dtype, right.shape)]

    def backward(gradient: TapeTensor) -> None:
        for slot, origin, shape in arrivals:
            if slot is None:
                continue
            back = gradient
            if math.prod(shape) != gradient.elements:
                back = tape.new(shape, origin, TEMPORARY)
                tape.op("sum", OpKind.REDUCTION, [gradient], [back], flops=gradient.elements)
            elif origin != dtype:
                back = tape.new(gradient.shape, origin, TEMPORARY)
                tape.op("_to_copy", OpKind.COPY, [gradient], [back])
            tape.send(slot, back)

    return tape.node(result, backward, left, right)


def scale_tensor(tape: Tape, source: TapeTensor) -> TapeTensor:
    """Multiply by a number, which saves nothing."""
    result = tape.new(source.shape, source.dtype)
    tape.op("mul", OpKind.ELEMENTWISE, [source], [result], flops=source.elements)
    slot, shape = source.slot, source.shape

    def backward(gradient: TapeTensor) -> None:
        back = tape.new(shape, gradient.dtype, TEMPORARY)
        tape.op("mul", OpKind.ELEMENTWISE, [gradient], [back], flops=back.elements)
        tape.send(slot, back)

    return tape.node(result, backward, source)


def dropout(tape: Tape, source: TapeTensor, rate: float) -> TapeTensor:
    """Drop elements in training, with a mask of one byte each. Do nothing in inference."""
    if not rate or not tape.training:
        return source
    result, mask = tape.new(source.shape, source.dtype), tape.new(source.shape, "bool")
    tape.op("native_dropout", OpKind.ELEMENTWISE, [source], [result, mask], flops=3.0 * source.elements)
    slot = source.slot

    def backward(gradient: TapeTensor) -> None:
        back = tape.new(gradient.shape, gradient.dtype, TEMPORARY)
        tape.op("native_dropout_backward", OpKind.ELEMENTWISE, [gradient, mask], [back], flops=gradient.elements)
        tape.send(slot, back)

    return tape.node(result, backward, source)


def activation(tape: Tape, source: TapeTensor, name: str) -> TapeTensor:
    """Apply a pointwise function. It is one kernel, but ``gelu_new`` runs op by op."""
    if name in ("gelu_new", "gelu_fast"):
        return _unfused_gelu(tape, source)
    if name == "bloom_gelu":
        return _recomputed_gelu(tape, source)
    base = {"gelu_pytorch_tanh": "gelu", "swish": "silu", "relu2": "relu", "quick_gelu": "silu"}.get(name, name)
    cost, back_cost = {"gelu": (10, 14), "silu": (5, 8), "tanh": (6, 2), "sigmoid": (4, 2)}.get(base, (1, 1))
    result = tape.new(source.shape, source.dtype)
    tape.op(base, OpKind.ELEMENTWISE, [source], [result], flops=cost * source.elements)
    saved, slot = (result if base in ("relu", "tanh", "sigmoid") else source), source.slot

    def backward(gradient: TapeTensor) -> None:
        back = tape.new(gradient.shape, gradient.dtype, TEMPORARY)
        backward_name = "threshold_backward" if base == "relu" else f"{base}_backward"
        tape.op(backward_name, OpKind.ELEMENTWISE, [gradient, saved], [back], flops=back_cost * gradient.elements)
        tape.send(slot, back)

    return tape.node(result, backward, source)


def _unfused_gelu(tape: Tape, source: TapeTensor) -> TapeTensor:
    """0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), each step a kernel. Saves x, tanh and two factors."""
    shape, n, slot = source.shape, source.elements, source.slot
    # Under autocast, pow runs in float32, and so do the ops after it.
    dtype = "float32" if tape.autocast else source.dtype
    half = tape.new(shape, source.dtype)
    tape.op("mul", OpKind.ELEMENTWISE, [source], [half], flops=n)
    wide = tape.cast(source, dtype)
    running = tape.new(shape, dtype)
    tape.op("pow", OpKind.ELEMENTWISE, [wide], [running], flops=4 * n)
    for name, cost in (("mul", 1), ("add", 1), ("mul", 1), ("tanh", 6)):
        step = tape.new(shape, dtype)
        tape.op(name, OpKind.ELEMENTWISE, [running], [step], flops=cost * n)
        running = step
    del step
    plus_one = tape.new(shape, dtype)
    tape.op("add", OpKind.ELEMENTWISE, [running], [plus_one], flops=n)
    saved = [running, wide] if tape.training else []
    del running, wide
    result = tape.new(shape, dtype)
    tape.op("mul", OpKind.ELEMENTWISE, [half, plus_one], [result], flops=n)

    def backward(gradient: TapeTensor) -> None:
        left = tape.new(shape, dtype, TEMPORARY)
        tape.op("mul", OpKind.ELEMENTWISE, [gradient, half], [left], flops=n)
        total = tape.new(shape, dtype, TEMPORARY)
        tape.op("mul", OpKind.ELEMENTWISE, [gradient, plus_one], [total], flops=n)
        for name, saved_inputs in (("tanh_backward", saved[:1]), ("mul", []), ("mul", []), ("pow_backward", saved[1:])):
            step = tape.new(shape, dtype, TEMPORARY)
            tape.op(name, OpKind.ELEMENTWISE, [left, *saved_inputs], [step], flops=2 * n)
            left = step
        for _ in range(3):
            tape.op("add_", OpKind.ELEMENTWISE, [total, left], [total], flops=n)
        tape.send(slot, total)

    return tape.node(result, backward, source)


def _recomputed_gelu(tape: Tape, source: TapeTensor) -> TapeTensor:
    """BLOOM's GELU, op by op too. It only saves its input, from which the backward pass recomputes the rest."""
    shape, dtype, n, slot = source.shape, source.dtype, source.elements, source.slot

    def steps(count: int, operands: list[TapeTensor], category: StorageCategory) -> TapeTensor:
        running = source
        for _ in range(count):
            step = tape.new(shape, dtype, category)
            tape.op("mul", OpKind.ELEMENTWISE, [running, *operands], [step], flops=2 * n)
            running = step
        return running

    half = steps(1, [], StorageCategory.ACTIVATION)
    result = steps(8, [half], StorageCategory.ACTIVATION)
    del half

    def backward(gradient: TapeTensor) -> None:
        tanh = steps(6, [], TEMPORARY)
        left = steps(5, [tanh], TEMPORARY)
        right = steps(4, [tanh, left], TEMPORARY)
        del tanh
        total = tape.new(shape, dtype, TEMPORARY)
        tape.op("add", OpKind.ELEMENTWISE, [left, right], [total], flops=n)
        del left, right
        back = tape.new(shape, dtype, TEMPORARY)
        tape.op("mul", OpKind.ELEMENTWISE, [gradient, total], [back], flops=n)
        tape.send(slot, back)

    return tape.node(result, backward, source)


def embedding(tape: Tape, table: TapeTensor, tokens: TapeTensor, dtype: str | None = None) -> TapeTensor:
    """Look up rows of ``table``. The gradient of the table is dense."""
    result = tape.new((*tokens.shape, table.shape[1]), dtype or table.dtype)
    read = float(result.bytes + tokens.bytes)
    tape.op("embedding", OpKind.EMBEDDING, [table, tokens], [result], read=read)
    slot, shape = table.slot, table.shape

    def backward(gradient: TapeTensor) -> None:
        table_gradient = tape.new(shape, gradient.dtype, StorageCategory.GRADIENT)
        tape.op("embedding_dense_backward", OpKind.EMBEDDING, [gradient, tokens], [table_gradient])
        tape.send(slot, table_gradient)

    return tape.node(result, backward, table)


def _wider_dtype(left: str, right: str) -> str:
    return "float32" if "float32" in (left, right) else left
