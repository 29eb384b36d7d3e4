"""The sizes of an operator that decide its speed, as the calibration's sweep names and spaces them."""

import math
from collections.abc import Mapping

from leadline.core.graph import BYTES_PER_ELEMENT, Op, OpKind

PRODUCTS = ("addmm", "mm", "bmm")
RECURRENT = ("lstm", "gru", "rnn")
SCATTERS = ("index_put_", "index_add_", "scatter_add_")

_FAR = 2.0
"""Distance between kernels of different make: strided, transposed, one-dimensional."""


def sizes_of(op: Op, family: str) -> dict[str, int]:
    """Return the sizes of ``op`` by the names that the sweep gives them in ``family``."""
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


def coordinates(family: str, dims: Mapping[str, int]) -> tuple[float, ...]:
    """Return where a kernel lies among its family's: logarithms of its sizes over their lengths of correlation.

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
