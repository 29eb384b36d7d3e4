"""Arithmetic of XLA's custom calls to cuBLAS and cuDNN, from the compiler's configuration of them."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from leadline.core.graph import OpKind, TensorSpec
from leadline.graphs.hlo.flatten import FlatProgram, HloNode

Dims = dict[str, int]
Specs = Sequence[TensorSpec]


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """Kind, sizes and arithmetic of one call. ``workspace_bytes`` of its results are scratch memory."""

    kind: OpKind
    flops: float
    dims: Dims = field(default_factory=dict)
    workspace_bytes: float = 0.0


def library_call(program: FlatProgram, node: HloNode) -> LibraryCall | None:
    """Return the arithmetic of a custom call, or ``None`` if its name does not tell."""
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
    return None


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


def matrix_dims(left: TensorSpec, right: TensorSpec, contracted: Sequence[int], batch: Sequence[int]) -> Dims:
    """Return ``b, m, n, k`` of a product: batch, free on the left, free on the right, contracted."""
    b = math.prod(left.shape[axis] for axis in batch)
    k = math.prod(left.shape[axis] for axis in contracted)
    m, n = (side.elements // max(1, b * k) for side in (left, right))
    return {"b": b, "m": m, "n": n, "k": k}


def matrix_flops(dims: Dims) -> float:
    """Return the operations of a product of matrices."""
    return 2.0 * dims["b"] * dims["m"] * dims["n"] * dims["k"]


def _gemm(node: HloNode, inputs: Specs, outputs: Specs) -> LibraryCall | None:
    if len(inputs) < 2 or not outputs:
        return None
    numbers = _config_entry(node, "dot_dimension_numbers")
    contracted = [int(axis) for axis in numbers.get("lhs_contracting_dimensions", [-1])]
    batch = [int(axis) for axis in numbers.get("lhs_batch_dimensions", [])]
    dims = matrix_dims(inputs[0], inputs[1], contracted, batch)
    return LibraryCall(OpKind.GEMM, matrix_flops(dims), dims, _workspace_bytes(outputs))


def layout(node: HloNode) -> tuple[str, str, str]:
    """Return the labels of a convolution's dimensions: source, weight, result."""
    lhs, _, kernel_and_output = str(node.attributes.get("labels", "bf01_oi01->bf01")).partition("_")
    rhs, _, out = kernel_and_output.partition("->")
    return lhs, rhs, out


def spatial(spec: TensorSpec, labels: str) -> list[int]:
    """Return the spatial sizes of a tensor in the order of their labels."""
    return [spec.shape[labels.index(sign)] for sign in sorted(filter(str.isdigit, labels))]


def convolution_dims(node: HloNode, source: TensorSpec, weight: TensorSpec, result: TensorSpec) -> Dims:
    """Return the sizes of a convolution, as ``Op.dims`` documents them."""
    lhs, rhs, out = layout(node)
    taps, positions = spatial(weight, rhs), spatial(result, out)
    return {
        "n": source.shape[lhs.index("b")], "c": source.shape[lhs.index("f")], "k": result.shape[out.index("f")],
        "h": math.prod(positions[:-1]), "w": positions[-1] if positions else 1, "r": math.prod(taps[:-1]),
        "s": taps[-1] if taps else 1, "groups": node.number("feature_group_count"),
        "stride": (node.numbers("stride") or (1,))[0], "dilation": (node.numbers("rhs_dilate") or (1,))[0],
    }  # fmt: skip


def _convolution(target: str, node: HloNode, inputs: Specs, outputs: Specs) -> LibraryCall | None:
    """Return the sizes of the forward convolution, whose arithmetic both its gradients share."""
    if len(inputs) < 2 or not outputs:
        return None
    source, weight, result = inputs[0], inputs[1], outputs[0]
    if "BackwardInput" in target:
        source, result = result, source
    elif "BackwardFilter" in target:
        weight, result = result, weight
    flops = 2.0 * result.elements * weight.elements / max(1, weight.shape[layout(node)[1].index("o")])
    dims = convolution_dims(node, source, weight, result)
    return LibraryCall(OpKind.CONV, flops, dims, _workspace_bytes(outputs))


def _attention(target: str, node: HloNode, inputs: Specs, outputs: Specs) -> LibraryCall | None:
    """Return 4·b·h·q·kv·d operations forward and 10 backward, and half of them under a causal mask."""
    scores = _config_entry(node, "intermediate_tensor_shape")
    sizes = [int(size) for size in scores.get("dimensions", [])]
    if len(sizes) != 4 and len(inputs) > 1 and len(inputs[0].shape) == 4 and len(inputs[1].shape) == 4:
        sizes = [*inputs[0].shape[:2], inputs[0].shape[2], inputs[1].shape[2]]
    if len(sizes) != 4 or not inputs:
        return None
    b, h, q, kv = sizes
    d = inputs[0].shape[-1]
    products = 10.0 if re.search(r"[Bb]ackward|bwd", target) else 4.0
    share = 0.5 if "CAUSAL" in str(node.attributes.get("config", "")) else 1.0
    dims = {"b": b, "h": h, "q": q, "kv": kv, "d": d}
    return LibraryCall(OpKind.ATTENTION, products * b * h * q * kv * d * share, dims, _workspace_bytes(outputs))
