"""Arithmetic, sizes and kind of one instruction."""

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import field

from leadline.core.frozen import Frozen
from leadline.core.graph import OpKind, TensorSpec
from leadline.graphs.hlo.flatten import FlatProgram, HloNode
from leadline.graphs.hlo.module import OPCODE_TABLE, OPCODES

Dims = dict[str, int]
Specs = Sequence[TensorSpec]
KINDS = {
    **dict.fromkeys(OPCODES["collectives"], OpKind.COMMUNICATION),
    **{opcode: OpKind(kind) for kind, opcodes in OPCODE_TABLE["kinds"].items() for opcode in opcodes},
    **dict.fromkeys(OPCODES["moves"] | OPCODES["aliases"], OpKind.COPY),
}


def base_opcode(node: HloNode) -> str:
    """Return the opcode, without the ``start`` of an asynchronous one."""
    return node.opcode.removesuffix("_start")


def node_kind(program: FlatProgram, node: HloNode) -> OpKind:
    """Return the kernel class of an instruction by itself."""
    opcode = base_opcode(node)
    if opcode == "custom_call":
        return _library_call(program, node).kind
    if opcode == "gather" and _reads_table(program, node):
        return OpKind.EMBEDDING
    if opcode == "convolution" and _is_batched_product(node):
        return OpKind.GEMM
    return KINDS.get(opcode, OpKind.ELEMENTWISE)


def _reads_table(program: FlatProgram, node: HloNode) -> bool:
    """Return whether a gather takes whole rows of a matrix, as an embedding does."""
    sizes = node.attributes.get("slice_sizes")
    table = program.values[node.inputs[0]]
    return len(table.shape) == 2 and (not sizes or sizes == (1, table.shape[1]))


def node_flops(program: FlatProgram, node: HloNode) -> float:
    """Return the floating-point operations of one run. For a fusion, this is the sum over its instructions."""
    if node.inner is not None:
        return sum(node_flops(node.inner, spec) * spec.count for spec in node.inner.nodes)
    opcode = base_opcode(node)
    inputs, outputs = program.operands(node), program.results(node)
    if not outputs or any(opcode in OPCODES[name] for name in ("moves", "aliases", "collectives", "uncounted")):
        return 0.0
    if opcode == "custom_call":
        return _library_call(program, node).flops
    if opcode in _FLOPS:
        return _FLOPS[opcode](node, inputs, outputs)
    if not any("float" in spec.dtype or "complex" in spec.dtype for spec in (*inputs, *outputs)):
        return 0.0
    return float(max(spec.elements for spec in outputs) * OPCODE_TABLE["flops"].get(opcode, 1))


def _window_flops(node: HloNode, inputs: Specs, outputs: Specs) -> float:
    window = node.numbers("size")
    # A running sum has a window as long as the axis. Every compiler turns it into a scan.
    if outputs[0].shape == inputs[0].shape and any(
        size > 16 and size == whole for size, whole in zip(window, inputs[0].shape, strict=False)
    ):
        return 2.0 * outputs[0].elements
    elements = outputs[0] if node.opcode == "reduce_window" else inputs[1]
    return float(elements.elements * max(1, math.prod(window) - 1))


def _fft_flops(_: HloNode, __: Specs, outputs: Specs) -> float:
    """Return 5·n·log2 of the last axis, the usual count for transforms (FFTW's)."""
    return 5.0 * outputs[0].elements * math.log2(max(2, outputs[0].shape[-1] if outputs[0].shape else 2))


def node_dims(program: FlatProgram, node: HloNode) -> Dims:
    """Return the sizes that decide the speed, as ``Op.dims`` documents them."""
    inputs, outputs = program.operands(node), program.results(node)
    if node.opcode == "dot":
        return _dot_dims(node, inputs)
    if node.opcode == "convolution":
        return (_product_dims if _is_batched_product(node) else _conv_dims)(node, inputs, outputs[0])
    if node.opcode == "custom_call":
        return _library_call(program, node).dims
    if base_opcode(node) in OPCODES["collectives"]:
        moved = max(sum(spec.size_bytes for spec in specs) for specs in (inputs, outputs))
        return {"bytes": moved, "ranks": node.number("ranks", 0)}
    return {}


def node_traffic(program: FlatProgram, node: HloNode) -> tuple[float, float]:
    """Return the bytes read and written by an instruction that runs as a kernel of its own.

    Instructions that select read what they return. Updates in place touch what they change, not the whole tensor.
    Values in a TPU's on-chip memory cost nothing.
    """
    if node.inner is not None:
        return _fusion_traffic(program, node, node.inner)
    sizes = [_device_bytes(program, value) for value in node.inputs]
    results = [_device_bytes(program, value) for value in node.outputs]
    opcode = base_opcode(node)
    if opcode in _TRAFFIC:
        return _TRAFFIC[opcode](sizes, results)
    if opcode == "custom_call":
        if node.attributes.get("target") in OPCODES["memory_calls"]:
            return 0.0, 0.0
        return sum(sizes), sum(results) - _library_call(program, node).workspace_bytes
    return sum(_device_bytes(program, value) for value in dict.fromkeys(node.inputs)), sum(results)


def _device_bytes(program: FlatProgram, value: int) -> float:
    return 0.0 if value in program.near else float(program.values[value].size_bytes)


def _scatter_traffic(sizes: list[float], results: list[float]) -> tuple[float, float]:
    """Return the traffic of reading indices, updates and the changed elements, and writing the latter."""
    changed = sum(sizes[len(results) + 1 :])
    return 2 * changed + sizes[len(results)], changed


def _fusion_traffic(program: FlatProgram, node: HloNode, inner: FlatProgram) -> tuple[float, float]:
    """Return the traffic of a fusion. An operand that is only sliced is read by its slices."""
    readers: dict[int, list[HloNode]] = {}
    for inner_node in inner.nodes:
        for value in inner_node.inputs:
            readers.setdefault(value, []).append(inner_node)
    inputs = zip(inner.arguments, node.inputs, strict=False)
    outputs = zip(inner.outputs, node.outputs, strict=False)
    read = sum(_read_bytes(inner, value, readers) for value, outer in inputs if outer not in program.near)
    return read, sum(_written_bytes(inner, value) for value, outer in outputs if outer not in program.near)


def _read_bytes(inner: FlatProgram, value: int, readers: dict[int, list[HloNode]]) -> float:
    whole, total = float(inner.values[value].size_bytes), 0.0
    for reader in readers.get(value, []):
        if reader.opcode in ("dynamic_slice", "slice", "gather") and reader.inputs[0] == value:
            total += inner.values[reader.outputs[0]].size_bytes
        elif reader.opcode in ("dynamic_update_slice", "scatter") and reader.inputs[0] == value:
            continue
        elif reader.opcode in OPCODES["aliases"]:
            total += _read_bytes(inner, reader.outputs[0], readers)
        else:
            return whole
    return min(whole, total)


def _written_bytes(inner: FlatProgram, value: int) -> float:
    maker = inner.makers[value]
    while maker >= 0 and inner.nodes[maker].opcode in OPCODES["aliases"]:
        value = inner.nodes[maker].inputs[0]
        maker = inner.makers[value]
    if maker >= 0 and inner.nodes[maker].opcode == "dynamic_update_slice":
        value = inner.nodes[maker].inputs[1]
    return float(inner.values[value].size_bytes)


def _dot_dims(node: HloNode, inputs: Specs) -> Dims:
    contracted = node.numbers("lhs_contracting") if inputs[0].shape else ()
    return _matrix_dims(inputs[0], inputs[1], contracted, node.numbers("lhs_batch"))


def _convolution_flops(node: HloNode, inputs: Specs, outputs: Specs) -> float:
    """Return 2 × output images and channels × input channels × multiplications a channel, axis by axis."""
    if _is_batched_product(node):
        return _matrix_flops(_product_dims(node, inputs, outputs[0]))
    lhs, rhs, out = _layout(node)
    channels = outputs[0].shape[out.index("b")] * outputs[0].shape[out.index("f")] * inputs[1].shape[rhs.index("i")]
    sizes = [_spatial(inputs[0], lhs), _spatial(inputs[1], rhs), _spatial(outputs[0], out)]
    steps = [node.numbers(name) or (1,) * len(sizes[0]) for name in ("stride", "lhs_dilate", "rhs_dilate")]
    return 2.0 * channels * math.prod(_multiplications(*axis) for axis in zip(*sizes, *steps, strict=False))


def _multiplications(source: int, taps: int, result: int, stride: int, dilation: int, spread: int) -> int:
    """Return the multiplications along one axis: those of the forward convolution, for its gradients too.

    Frameworks count result × taps forward, with positions in the padding. The gradient of the source is a convolution
    over separated or fully padded elements, and the gradient of a transposed convolution's filter has the result for
    its filter. Zeros between elements and beyond the edges are not multiplied, so the smallest product is the count.
    Sizes do not tell a gradient from the forward pass where the filter is larger than the image: it counts fewer.
    """
    window = (taps - 1) * spread + 1
    is_padded_less = (result - 1) * stride < source
    # A filter beyond the size of a small image is forward if the padding keeps that size.
    is_forward = taps <= source or result == -(-source // stride)
    if dilation == 1 and ((is_padded_less and is_forward) or result > source + window - 1):
        return result * taps
    return min(source * taps, source * result, result * taps)


def _is_batched_product(node: HloNode) -> bool:
    """Return whether a convolution is a TPU's way to write a product of several batches.

    Its left side is dilated by one more than the stride, so that output ``i`` sees nothing but element ``i``.
    """
    pairs = zip(node.numbers("stride"), node.numbers("lhs_dilate"), strict=False)
    return any(dilation > 1 and dilation == stride + 1 for stride, dilation in pairs if stride > 1)


def _product_dims(node: HloNode, inputs: Specs, output: TensorSpec) -> Dims:
    _, rhs, out = _layout(node)
    return {
        "b": math.prod(_spatial(output, out)), "m": output.shape[out.index("b")],
        "n": output.shape[out.index("f")], "k": inputs[1].shape[rhs.index("i")],
    }  # fmt: skip


def _conv_dims(node: HloNode, inputs: Specs, output: TensorSpec) -> Dims:
    dims = _convolution_dims(node, inputs[0], inputs[1], output)
    dims["groups"] *= node.number("batch_group_count")
    dilated = math.prod(node.numbers("lhs_dilate")) > 1
    if dilated:
        positions = _spatial(inputs[0], _layout(node)[0])
        dims |= {"h": math.prod(positions[:-1]), "w": positions[-1], "stride": node.numbers("lhs_dilate")[0]}
    if dims["r"] * dims["s"] > dims["h"] * dims["w"]:
        # A weight gradient has the sizes of its forward convolution, as PyTorch's backward has. Its batch are the
        # images' channels, its channels the images, and its filter the output's gradient.
        return {
            **dims, "n": dims["c"], "c": dims["n"], "h": dims["r"], "w": dims["s"], "r": dims["h"], "s": dims["w"],
            "stride": dims["dilation"], "dilation": (node.numbers("stride") or (1,))[0],
        }  # fmt: skip
    return {**dims, "transposed": 1} if dilated else dims


class LibraryCall(Frozen):
    """Kind, sizes and arithmetic of a custom call. ``workspace_bytes`` of its results are scratch memory."""

    kind: OpKind = OpKind.OTHER
    flops: float = 0.0
    dims: Dims = field(default_factory=dict)
    workspace_bytes: float = 0.0


def _library_call(program: FlatProgram, node: HloNode) -> LibraryCall:
    """Return the arithmetic of a custom call to cuBLAS or cuDNN, from the compiler's configuration of it.

    Other calls have no known arithmetic.
    """
    inputs, outputs = program.operands(node), program.results(node)
    target = str(node.attributes.get("target", ""))
    if "fmha" in target or "flash" in target:
        return _attention(target, node, inputs, outputs)
    if target.startswith(("__cublas$", "__onednn$matmul")) or "gemm" in target or "matmul" in target:
        return _gemm(node, inputs, outputs)
    if "$conv" in target:
        return _convolution(target, node, inputs, outputs)
    if target.startswith("__cudnn$norm"):
        return LibraryCall(OpKind.NORM, 8.0 * inputs[0].elements, {}, _workspace_bytes(outputs))
    if "topk" in target.lower() or "sort" in target.lower():
        return LibraryCall(OpKind.REDUCTION, float(inputs[0].elements), {}, _workspace_bytes(outputs))
    return LibraryCall()


def _config_entry(node: HloNode, name: str) -> Any:  # noqa: ANN401 - the configuration has any type
    """Return the first entry of that name in the compiler's configuration of a call, or {}."""
    try:
        return _find_entry(json.loads(str(node.attributes.get("config", ""))), name) or {}
    except json.JSONDecodeError:  # not every backend writes JSON there
        return {}


def _find_entry(tree: object, name: str) -> Any:  # noqa: ANN401 - the configuration has any type
    """Return the first entry of that name, at any depth."""
    if isinstance(tree, dict):
        if name in tree:
            return tree[name]
        tree = list(tree.values())
    if isinstance(tree, list):
        return next((entry for branch in tree if (entry := _find_entry(branch, name)) is not None), None)
    return None


def _workspace_bytes(outputs: Specs) -> float:
    """Return the bytes of raw results after the first: a library's workspace."""
    return float(sum(spec.size_bytes for spec in outputs[1:] if spec.dtype == "int8"))


def _matrix_dims(left: TensorSpec, right: TensorSpec, contracted: Sequence[int], batch: Sequence[int]) -> Dims:
    """Return ``b, m, n, k`` of a product: batch, free on the left, free on the right, contracted."""
    b = math.prod(left.shape[axis] for axis in batch)
    k = math.prod(left.shape[axis] for axis in contracted)
    m, n = (side.elements // max(1, b * k) for side in (left, right))
    return {"b": b, "m": m, "n": n, "k": k}


def _matrix_flops(dims: Dims) -> float:
    """Return the operations of a product of matrices."""
    return 2.0 * dims["b"] * dims["m"] * dims["n"] * dims["k"]


def _gemm(node: HloNode, inputs: Specs, outputs: Specs) -> LibraryCall:
    if len(inputs) < 2 or not outputs:
        return LibraryCall()
    numbers = _config_entry(node, "dot_dimension_numbers")
    contracted = [int(axis) for axis in numbers.get("lhs_contracting_dimensions", [-1])]
    batch = [int(axis) for axis in numbers.get("lhs_batch_dimensions", [])]
    dims = _matrix_dims(inputs[0], inputs[1], contracted, batch)
    return LibraryCall(OpKind.GEMM, _matrix_flops(dims), dims, _workspace_bytes(outputs))


def _layout(node: HloNode) -> tuple[str, str, str]:
    """Return the labels of a convolution's dimensions: source, weight, result."""
    lhs, _, kernel_and_output = str(node.attributes.get("labels", "bf01_oi01->bf01")).partition("_")
    rhs, _, out = kernel_and_output.partition("->")
    return lhs, rhs, out


def _spatial(spec: TensorSpec, labels: str) -> list[int]:
    """Return the spatial sizes of a tensor in the order of their labels."""
    return [spec.shape[labels.index(sign)] for sign in sorted(filter(str.isdigit, labels))]


def _convolution_dims(node: HloNode, source: TensorSpec, weight: TensorSpec, result: TensorSpec) -> Dims:
    """Return the sizes of a convolution, as ``Op.dims`` documents them."""
    lhs, rhs, out = _layout(node)
    taps, positions = _spatial(weight, rhs), _spatial(result, out)
    return {
        "n": source.shape[lhs.index("b")], "c": source.shape[lhs.index("f")], "k": result.shape[out.index("f")],
        "h": math.prod(positions[:-1]), "w": positions[-1] if positions else 1, "r": math.prod(taps[:-1]),
        "s": taps[-1] if taps else 1, "groups": node.number("feature_group_count"),
        "stride": (node.numbers("stride") or (1,))[0], "dilation": (node.numbers("rhs_dilate") or (1,))[0],
    }  # fmt: skip


def _convolution(target: str, node: HloNode, inputs: Specs, outputs: Specs) -> LibraryCall:
    """Return the sizes of the forward convolution, whose arithmetic both its gradients share."""
    if len(inputs) < 2 or not outputs:
        return LibraryCall()
    source, weight, result = inputs[0], inputs[1], outputs[0]
    if "BackwardInput" in target:
        source, result = result, source
    elif "BackwardFilter" in target:
        weight, result = result, weight
    flops = 2.0 * result.elements * weight.elements / max(1, weight.shape[_layout(node)[1].index("o")])
    return LibraryCall(OpKind.CONV, flops, _convolution_dims(node, source, weight, result), _workspace_bytes(outputs))


def _attention(target: str, node: HloNode, inputs: Specs, outputs: Specs) -> LibraryCall:
    """Return 4·b·h·q·kv·d operations forward and 10 backward, and half of them under a causal mask."""
    scores = _config_entry(node, "intermediate_tensor_shape")
    sizes = [int(size) for size in scores.get("dimensions", [])]
    if len(sizes) != 4 and len(inputs) > 1 and len(inputs[0].shape) == 4 and len(inputs[1].shape) == 4:
        sizes = [*inputs[0].shape[:2], inputs[0].shape[2], inputs[1].shape[2]]
    if len(sizes) != 4 or not inputs:
        return LibraryCall()
    b, h, q, kv = sizes
    d = inputs[0].shape[-1]
    products = 10.0 if re.search(r"[Bb]ackward|bwd", target) else 4.0
    share = 0.5 if "CAUSAL" in str(node.attributes.get("config", "")) else 1.0
    dims = {"b": b, "h": h, "q": q, "kv": kv, "d": d}
    return LibraryCall(OpKind.ATTENTION, products * b * h * q * kv * d * share, dims, _workspace_bytes(outputs))


_FLOPS: dict[str, Callable[[HloNode, Specs, Specs], float]] = {
    "dot": lambda node, inputs, _: _matrix_flops(_dot_dims(node, inputs)), "convolution": _convolution_flops,
    "reduce": lambda _, inputs, outputs: float(max(0, inputs[0].elements - outputs[0].elements)) * len(outputs),
    "reduce_window": _window_flops, "select_and_scatter": _window_flops, "fft": _fft_flops,
    "scatter": lambda node, inputs, _: float(inputs[-1].elements) if "add" in node.applied else 0.0,
}  # fmt: skip
"""Opcodes whose arithmetic is not one operation per element."""

_TRAFFIC: dict[str, Callable[[list[float], list[float]], tuple[float, float]]] = {
    **dict.fromkeys(("gather", "dynamic_slice", "slice"), lambda read, out: (out[0] + sum(read[1:]), out[0])),
    **dict.fromkeys(("iota", "constant", "rng_bit_generator"), lambda _, out: (0.0, sum(out))),
    "dynamic_update_slice": lambda read, _: (read[1], read[1]), "scatter": _scatter_traffic,
    "copy": lambda read, written: (read[0], written[0]),
}  # fmt: skip
"""Opcodes that do not read all of their operands or write all of their results."""
