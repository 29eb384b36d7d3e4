"""What the custom calls of XLA compute: cuBLAS and cuDNN by what the compiler wrote beside them."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from leadline.core.graph import OpKind, TensorSpec
from leadline.graphs.hlo.flatten import HloNode
from leadline.graphs.hlo.module import element_count, size_bytes


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """Kind, sizes and arithmetic of one call; ``workspace_bytes`` of its results are scratch."""

    kind: OpKind
    flops: float
    dims: dict[str, int] = field(default_factory=dict)
    workspace_bytes: float = 0.0


def library_call(node: HloNode, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> LibraryCall | None:
    """Return what a custom call computes; ``None`` where its name does not say."""
    target = str(node.attributes.get("target", ""))
    if "fmha" in target or "flash" in target:
        return _attention(target, node, inputs, outputs)
    if target.startswith(("__cublas$", "__onednn$matmul")) or "gemm" in target or "matmul" in target:
        return _gemm(node, inputs, outputs)
    if "$conv" in target:
        return _convolution(target, node, inputs, outputs)
    if target.startswith("__cudnn$norm"):
        return LibraryCall(OpKind.NORM, 8.0 * element_count(inputs[0]), {}, _scratch(outputs))
    if "topk" in target.lower() or "sort" in target.lower():
        return LibraryCall(OpKind.REDUCTION, float(element_count(inputs[0])), {}, _scratch(outputs))
    return None


def _config(node: HloNode) -> dict[str, Any]:
    """Return the compiler's notes beside a call; empty where there are none."""
    text = str(node.attributes.get("config", ""))
    if not text.startswith("{"):
        return {}
    try:
        found = json.loads(text)
    except json.JSONDecodeError:  # not every backend writes JSON there
        return {}
    return found if isinstance(found, dict) else {}


def _find(tree: object, name: str) -> Any:  # noqa: ANN401 - whatever stands in the notes
    """Return the first entry of that name, however deep it stands."""
    if isinstance(tree, dict):
        if name in tree:
            return tree[name]
        tree = list(tree.values())
    if isinstance(tree, list):
        return next((found for one in tree if (found := _find(one, name)) is not None), None)
    return None


def _scratch(outputs: Sequence[TensorSpec]) -> float:
    """Return the bytes of results of raw bytes beside the first: a library's workspace."""
    return float(sum(size_bytes(one) for one in outputs[1:] if one.dtype == "int8"))


def _gemm(node: HloNode, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> LibraryCall | None:
    if len(inputs) < 2 or not outputs:
        return None
    numbers = _find(_config(node), "dot_dimension_numbers") or {}
    left, right = inputs[0].shape, inputs[1].shape
    summed = [int(axis) for axis in numbers.get("lhs_contracting_dimensions", [len(left) - 1])]
    batch = [int(axis) for axis in numbers.get("lhs_batch_dimensions", [])]
    b = math.prod(left[axis] for axis in batch)
    k = math.prod(left[axis] for axis in summed)
    m, n = math.prod(left) // max(1, b * k), math.prod(right) // max(1, b * k)
    return LibraryCall(OpKind.GEMM, 2.0 * b * m * n * k, {"b": b, "m": m, "n": n, "k": k}, _scratch(outputs))


def _convolution(
    target: str, node: HloNode, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> LibraryCall | None:
    """Return the sizes of the forward convolution, whose products both its gradients have too."""
    if len(inputs) < 2 or not outputs:
        return None
    source, weight, result = inputs[0], inputs[1], outputs[0]
    if "BackwardInput" in target:
        source, weight, result = outputs[0], inputs[1], inputs[0]
    elif "BackwardFilter" in target:
        source, weight, result = inputs[0], outputs[0], inputs[1]
    lhs, _, rest = str(node.attributes.get("labels", "bf01_oi01->bf01")).partition("_")
    rhs, _, out = rest.partition("->")
    taps = [weight.shape[rhs.index(sign)] for sign in sorted(filter(str.isdigit, rhs))]
    places = [result.shape[out.index(sign)] for sign in sorted(filter(str.isdigit, out))]
    channels = weight.shape[rhs.index("o")]
    dims = {
        "n": source.shape[lhs.index("b")], "c": source.shape[lhs.index("f")], "k": result.shape[out.index("f")],
        "h": math.prod(places[:-1]), "w": places[-1] if places else 1, "r": math.prod(taps[:-1]),
        "s": taps[-1] if taps else 1, "groups": node.number("feature_group_count"),
        "stride": (node.numbers("stride") or (1,))[0], "dilation": (node.numbers("rhs_dilate") or (1,))[0],
    }  # fmt: skip
    flops = 2.0 * element_count(result) * element_count(weight) / max(1, channels)
    return LibraryCall(OpKind.CONV, flops, dims, _scratch(outputs))


def _attention(
    target: str, node: HloNode, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> LibraryCall | None:
    """Return 4·b·h·q·kv·d operations forward and 10 backward; half of them under a causal mask."""
    config = _config(node)
    scores = _find(config, "intermediate_tensor_shape") or {}
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
    return LibraryCall(OpKind.ATTENTION, products * b * h * q * kv * d * share, dims, _scratch(outputs))
