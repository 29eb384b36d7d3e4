"""Arithmetic, sizes and kind of one instruction."""

import math
from collections.abc import Callable

from leadline.core.graph import OpKind, TensorSpec
from leadline.graphs.hlo import OPCODE_TABLE, OPCODES
from leadline.graphs.hlo.flatten import FlatProgram, HloNode
from leadline.graphs.hlo.library_calls import (
    Dims,
    Specs,
    convolution_dims,
    layout,
    library_call,
    matrix_dims,
    matrix_flops,
    spatial,
)

KINDS = {opcode: OpKind(kind) for kind, opcodes in OPCODE_TABLE["kinds"].items() for opcode in opcodes}


def base_opcode(node: HloNode) -> str:
    """Return the opcode, without the ``start`` of an asynchronous one."""
    return node.opcode.removesuffix("_start")


def node_kind(program: FlatProgram, node: HloNode) -> OpKind:
    """Return the kernel class of an instruction by itself."""
    opcode = base_opcode(node)
    if opcode in OPCODES["collectives"]:
        return OpKind.COMMUNICATION
    if opcode in OPCODES["moves"] or opcode in OPCODES["aliases"]:
        return OpKind.COPY
    if opcode == "custom_call" and (call := library_call(program, node)):
        return call.kind
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
        call = library_call(program, node)
        return call.flops if call else 0.0
    if opcode in _FLOPS:
        return _FLOPS[opcode](node, inputs, outputs)
    if not any("float" in spec.dtype or "complex" in spec.dtype for spec in (*inputs, *outputs)):
        return 0.0
    return float(max(spec.elements for spec in outputs) * OPCODE_TABLE["flops"].get(opcode, 1))


def _reduce_flops(_: HloNode, inputs: Specs, outputs: Specs) -> float:
    return float(max(0, inputs[0].elements - outputs[0].elements)) * len(outputs)


def _window_flops(node: HloNode, inputs: Specs, outputs: Specs) -> float:
    window = node.numbers("size")
    # A running sum has a window as long as the axis. Every compiler turns it into a scan.
    if outputs[0].shape == inputs[0].shape and any(
        size > 16 and size == whole for size, whole in zip(window, inputs[0].shape, strict=False)
    ):
        return 2.0 * outputs[0].elements
    elements = outputs[0] if node.opcode == "reduce_window" else inputs[1]
    return float(elements.elements * max(1, math.prod(window) - 1))


def _scatter_flops(node: HloNode, inputs: Specs, _: Specs) -> float:
    return float(inputs[-1].elements) if "add" in node.applied else 0.0


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
        call = library_call(program, node)
        return call.dims if call else {}
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
        call = library_call(program, node)
        return sum(sizes), sum(results) - (call.workspace_bytes if call else 0.0)
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
    return matrix_dims(inputs[0], inputs[1], contracted, node.numbers("lhs_batch"))


def _convolution_flops(node: HloNode, inputs: Specs, outputs: Specs) -> float:
    """Return 2 × outputs × taps × channels, or 2 × operand × taps × output channels for a dilated operand.

    The elements of a dilated left operand (the gradient of a strided convolution) are separated by zeros, which no
    library multiplies. Positions in the padding count, as they do for PyTorch's convolutions.
    """
    if _is_batched_product(node):
        return matrix_flops(_product_dims(node, inputs, outputs[0]))
    rhs = layout(node)[1]
    taps = math.prod(spatial(inputs[1], rhs))
    if math.prod(node.numbers("lhs_dilate")) > 1:
        groups = node.number("feature_group_count")
        return 2.0 * inputs[0].elements * taps * inputs[1].shape[rhs.index("o")] / groups
    return 2.0 * outputs[0].elements * taps * inputs[1].shape[rhs.index("i")]


def _is_batched_product(node: HloNode) -> bool:
    """Return whether a convolution is a TPU's way to write a product of several batches.

    Its left side is dilated by one more than the stride, so that output ``i`` sees nothing but element ``i``.
    """
    pairs = zip(node.numbers("stride"), node.numbers("lhs_dilate"), strict=False)
    return any(dilation > 1 and dilation == stride + 1 for stride, dilation in pairs if stride > 1)


def _product_dims(node: HloNode, inputs: Specs, output: TensorSpec) -> Dims:
    _, rhs, out = layout(node)
    return {
        "b": math.prod(spatial(output, out)), "m": output.shape[out.index("b")],
        "n": output.shape[out.index("f")], "k": inputs[1].shape[rhs.index("i")],
    }  # fmt: skip


def _conv_dims(node: HloNode, inputs: Specs, output: TensorSpec) -> Dims:
    dims = convolution_dims(node, inputs[0], inputs[1], output)
    dims["groups"] *= node.number("batch_group_count")
    dilated = math.prod(node.numbers("lhs_dilate")) > 1
    if dilated:
        positions = spatial(inputs[0], layout(node)[0])
        dims |= {"h": math.prod(positions[:-1]), "w": positions[-1], "stride": node.numbers("lhs_dilate")[0]}
    if dims["r"] * dims["s"] > dims["h"] * dims["w"]:
        # A weight gradient has the sizes of its forward convolution, as PyTorch's backward has. Its batch are the
        # images' channels, its channels the images, and its filter the output's gradient.
        return {
            **dims, "n": dims["c"], "c": dims["n"], "h": dims["r"], "w": dims["s"], "r": dims["h"], "s": dims["w"],
            "stride": dims["dilation"], "dilation": (node.numbers("stride") or (1,))[0],
        }  # fmt: skip
    return {**dims, "transposed": 1} if dilated else dims


_FLOPS: dict[str, Callable[[HloNode, Specs, Specs], float]] = {
    "dot": lambda node, inputs, _: matrix_flops(_dot_dims(node, inputs)), "convolution": _convolution_flops,
    "reduce": _reduce_flops, "reduce_window": _window_flops, "select_and_scatter": _window_flops,
    "scatter": _scatter_flops, "fft": _fft_flops,
}  # fmt: skip
"""Opcodes whose arithmetic is not one operation per element."""

_TRAFFIC: dict[str, Callable[[list[float], list[float]], tuple[float, float]]] = {
    **dict.fromkeys(("gather", "dynamic_slice", "slice"), lambda read, out: (out[0] + sum(read[1:]), out[0])),
    **dict.fromkeys(("iota", "constant", "rng_bit_generator"), lambda _, out: (0.0, sum(out))),
    "dynamic_update_slice": lambda read, _: (read[1], read[1]), "scatter": _scatter_traffic,
    "copy": lambda read, written: (read[0], written[0]),
}  # fmt: skip
"""Opcodes that do not read all of their operands or write all of their results."""
