"""Mapping of operators to the kernels of the calibration sweep, and the sizes that decide speed."""

import math
import tomllib
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from leadline.core.graph import BYTES_PER_ELEMENT, Op, OpKind

OPERATORS: dict[str, Any] = tomllib.loads((Path(__file__).parent / "operators.toml").read_text(encoding="utf-8"))
STANDS_FOR: dict[str, str] = {name: swept for swept, names in OPERATORS["alike"].items() for name in names}
BY_KIND = {OpKind(kind): family for kind, family in OPERATORS["representatives"].items()}


def kernel_family(op: Op, measured: Container[tuple[str, str]]) -> str:
    """Return the sweep kernel that represents ``op``.

    ``measured`` holds (kernel, dtype). A measured operator represents itself.
    """
    name = plain_name(op.name)
    backward = "backward" in name
    if op.kind is OpKind.ATTENTION:
        return "attention_backward" if backward else "attention"
    if op.kind is OpKind.RNN:
        stem = next((stem for stem in ("gru", "rnn") if name.startswith(stem)), "lstm")
        return f"{stem}_backward" if backward else stem
    return _named(op, name, measured)


def _named(op: Op, name: str, measured: Container[tuple[str, str]]) -> str:
    """Return the kernel of that name, a similar kernel, or the representative of its kind."""
    if name == "native_batch_norm" and len(op.outputs) > 1 and 0 in op.outputs[1].shape:
        return "native_batch_norm_inference"
    if name in ("sum", "mean") and op.inputs and op.outputs:
        return _reduction(op, name)
    for candidate in (name, f"{name}_", name.removesuffix("_")):
        if (candidate, "float32") in measured:
            return candidate
        if candidate in STANDS_FOR:
            return STANDS_FOR[candidate]
    family = BY_KIND[op.kind]
    return f"{family}_backward" if "backward" in name and (f"{family}_backward", "float32") in measured else family


def plain_name(name: str) -> str:
    """Return the operator without namespace and overload: ``aten.add_.Tensor`` is ``add_``."""
    parts = name.replace("::", ".").split(".")
    return parts[1] if len(parts) > 1 and parts[0] in ("aten", "torchvision", "prims") else parts[0]


def _reduction(op: Op, name: str) -> str:
    """Return the kind of sum: whole, over rows, columns, an image's channels or its pixels."""
    source, result = op.inputs[0].shape, op.outputs[0].shape
    if len(source) == 4:
        return "mean_window" if name == "mean" else "sum_channels"
    if len(result) == 0 or all(size == 1 for size in result):
        return "sum"
    return "mean" if name == "mean" else "sum_dim"


PRODUCTS = ("addmm", "mm", "bmm")
RECURRENT = ("lstm", "gru", "rnn")
SCATTERS = ("index_put_", "index_add_", "scatter_add_")

# Distance between kernels of different make: strided, transposed, one-dimensional.
_FAR = 2.0


def kernel_sizes(op: Op, family: str) -> dict[str, int]:
    """Return the sizes of ``op`` under the sweep's names for ``family``."""
    if op.kind is OpKind.RNN:
        return _recurrent(op)
    if op.dims and op.kind in (OpKind.GEMM, OpKind.CONV, OpKind.ATTENTION):
        return dict(op.dims)
    shapes = [spec.shape for spec in (*op.inputs, *op.outputs)]
    if op.kind in (OpKind.EMBEDDING, OpKind.INDEX) and "backward" not in op.name:
        shapes = [spec.shape for spec in (op.inputs[1:] if family in SCATTERS else op.outputs[:1])]
    elements = max((math.prod(shape) for shape in shapes), default=0)
    if not shapes:
        elements = int((op.bytes_read + op.bytes_written) / 2 / BYTES_PER_ELEMENT.get(op.dtype, 4))
    widest = max(shapes, key=math.prod, default=())
    image = len(widest) == 4 and not family.startswith("_")
    columns = max(math.prod(widest[2:]) if image else (widest[-1] if widest else 1), 1)
    return {"columns": columns, "elements": max(elements, 1), "rows": max(elements // columns, 1)}


def family_coordinates(family: str, dims: Mapping[str, int]) -> tuple[float, ...]:
    """Return a kernel's coordinates in its family: log sizes over their correlation lengths.

    The lengths were chosen once, by cross-validation on kernels of random sizes.
    """
    if family in PRODUCTS:
        return tuple(_log(dims, name) / 3 for name in ("b", "m", "n", "k"))
    if family.startswith("convolution"):
        return _convolution(dims)
    if family.startswith("attention"):
        return (*(_log(dims, name) / 3 for name in ("q", "kv", "d")), (_log(dims, "b") + _log(dims, "h")) / 3)
    if family.removesuffix("_backward") in RECURRENT:
        return tuple(_log(dims, name) / 3 for name in ("b", "q", "c", "k"))
    if "rows" in dims:
        return (_log(dims, "rows") / 3, _log(dims, "columns") / 3)
    return (_log(dims, "elements"),)


def _convolution(dims: Mapping[str, int]) -> tuple[float, ...]:
    groups = max(dims.get("groups", 1), 1)
    return (
        _log(dims, "n") / 3.5,
        0.5 * (_log(dims, "h") + _log(dims, "w")) / 1.8,
        math.log(max(dims["c"] // groups, 1)) / 4,
        math.log(max(dims["k"] // groups, 1)) / 4,
        math.log(groups) / 4,
        0.5 * (_log(dims, "r") + _log(dims, "s")) / 2,
        _log(dims, "stride") / 2,
        _FAR * dims.get("transposed", 0),
        _FAR * (dims["w"] == 1 or dims["h"] == 1),
    )


def _recurrent(op: Op) -> dict[str, int]:
    """Return batch, steps, features in (the mean over stacked layers) and features held of a recurrent op."""
    if op.dims:
        hidden, layers = op.dims["hidden"], max(op.dims.get("layers", 1), 1)
        stacked = hidden * op.dims.get("directions", 1) * (layers - 1)
        return {"b": op.dims["batch"], "q": op.dims["seq"], "c": (op.dims["input"] + stacked) // layers, "k": hidden}
    shape = max((spec.shape for spec in op.inputs if len(spec.shape) == 3), key=math.prod, default=(1, 1, 1))
    hidden = op.outputs[0].shape[-1] if op.outputs and op.outputs[0].shape else shape[-1]
    return {"b": shape[1], "q": shape[0], "c": shape[2], "k": hidden}


def _log(dims: Mapping[str, int], name: str) -> float:
    return math.log(max(dims.get(name, 1), 1))
