"""Kernels as columns of the sizes that decide their speed, for batched prediction."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput
from leadline.core.graph import BYTES_PER_ELEMENT, Op, OpKind
from leadline.estimators.ports import Array, Columns, IntArray

# Kinds of kernels: matrix product, batched product, convolution, element-wise, and row-wise (norm, softmax).
PRODUCT, BATCHED, CONVOLUTION, STREAM, NORM, SOFTMAX = range(6)
KERNEL_KINDS = ("product", "batched", "convolution", "stream", "norm", "softmax")
COMPUTING = (PRODUCT, BATCHED, CONVOLUTION)
# Group of products on matrix units, whatever their op.
MATRIX = len(KERNEL_KINDS)
COMPUTING_GROUPS = (*COMPUTING, MATRIX)
KERNEL_GROUPS = (*KERNEL_KINDS, "matrix")
# Half of the edge of the usual large tile: a library takes a smaller one where an odd number of halves is filled.
HALF_TILE = 64.0
DTYPES = ("float32", "float64", "tf32", "float16", "bfloat16", "int8", "float8")
_BY_KIND = {OpKind.NORM: NORM, OpKind.SOFTMAX: SOFTMAX}


class KernelTable(Columns):
    """n kernels by columns, each of shape (n,).

    ``law`` is a position in ``KERNEL_KINDS`` and ``dtype`` one in ``DTYPES``. ``b, m, n, k`` are the sizes of the
    equivalent matrix product, and ``work`` the number of such products. ``fast_m`` and ``fast_k`` are rows and inner
    sum of the 16 products of Winograd's F(2×2, 3×3) (Lavin and Gray 2016), and ``transform`` the bytes of its
    transforms; zero where it does not apply. ``side`` is the square root of a convolution's output pixels, else one.
    ``rows`` and ``columns`` are those of the largest operand. ``width`` is the bytes of an element, ``moved`` the
    traffic without caches, ``count`` the number of calls and ``launched`` the kernels of a call. ``name`` is a position
    in the table's ``names``.
    """

    law: IntArray
    dtype: IntArray
    name: IntArray
    b: Array
    m: Array
    n: Array
    k: Array
    work: Array
    fast_m: Array
    fast_k: Array
    transform: Array
    side: Array
    rows: Array
    columns: Array
    width: Array
    moved: Array
    flops: Array
    count: Array
    launched: Array

    def __len__(self) -> int:
        return len(self.law)


def distinct_rows(table: npt.NDArray[Any]) -> tuple[IntArray, IntArray]:
    """Return the positions of the distinct rows of a table (n, columns), and for each row the index of its own."""
    # As bytes, rows sort ten times as fast as by ``np.unique(axis=0)``.
    table = np.ascontiguousarray(table)
    rows = table.view(np.dtype((np.void, table.dtype.itemsize * table.shape[1]))).ravel()
    _, first, place = np.unique(rows, return_index=True, return_inverse=True)
    return first.astype(np.int64), place.ravel().astype(np.int64)


def tabulate_ops(ops: Iterable[Op], names: Mapping[str, int] | None = None) -> KernelTable:
    """Return the ops as columns, one row per op.

    ``names`` gives the positions of distinguished operator names; others are -1.

    Raises:
        InvalidInput: the arithmetic of an op runs in a dtype that no device has.
    """
    ops = list(ops)
    row_of = {number: _row(op, names or {}) for number, op in {id(op): op for op in ops}.items()}
    matrix = np.array([row_of[id(op)] for op in ops], dtype=np.float64).reshape(len(ops), 19)
    law, dtype, name = matrix[:, :3].astype(np.int64).T
    return KernelTable(law, dtype, name, *(matrix[:, i].copy() for i in range(3, 19)))


def _row(op: Op, names: Mapping[str, int]) -> tuple[float, ...]:
    width = BYTES_PER_ELEMENT.get(op.dtype, 4)
    moved = op.bytes_read + op.bytes_written
    law, sizes = _computed(op)
    rows, columns = _extent(op, moved, width)
    return (
        law, _dtype(op, law), names.get(op.name, -1), *sizes,
        rows, columns, width, moved, op.flops, op.count, op.kernels,
    )  # fmt: skip


def _dtype(op: Op, law: int) -> int:
    if law not in COMPUTING:
        return 0
    name = "float8" if op.dtype.startswith("float8") else op.dtype
    if name == "float32" and op.kind in (OpKind.CONV, OpKind.RNN):
        name = "tf32"  # PyTorch lets cuDNN use TF32 where the device has it, and cuBLAS not
    if name not in DTYPES:
        if op.kind is OpKind.GEMM and name.startswith(("int", "uint", "bool")):
            return DTYPES.index("float32")
        raise InvalidInput(f"{op.name} computes in {name}, which no device has training data for: cast it to float32")
    return DTYPES.index(name)


def _extent(op: Op, moved: float, width: int) -> tuple[float, float]:
    """Return rows and columns of the largest operand."""
    shapes = [spec.shape for spec in (*op.inputs, *op.outputs)]
    most = max(map(math.prod, shapes), default=0)
    if not most:
        return max(moved / 2 / width / 1024, 1.0), 1024.0
    largest = max(shapes, key=math.prod)
    columns = largest[-1] if largest else 1
    if len(largest) == 4 and op.kind is OpKind.NORM:
        columns = largest[2] * largest[3]
    return max(most / columns, 1.0), float(columns)


def _computed(op: Op) -> tuple[int, tuple[float, ...]]:
    """Return an op's kind, and ``b, m, n, k, work, fast_m, fast_k, transform, side`` of its product."""
    dims, kind = op.dims, op.kind
    if not op.flops or kind not in (OpKind.GEMM, OpKind.CONV, OpKind.ATTENTION, OpKind.RNN):
        # Batch norms do not count as norms: their channels are few and long, so no block waits for its row.
        streams = STREAM if "batch_norm" in op.name else _BY_KIND.get(kind, STREAM)
        return streams, (1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0)
    if kind is OpKind.CONV and "c" in dims:
        return CONVOLUTION, _convolved(op)
    if kind is OpKind.ATTENTION and "q" in dims:
        b, m, n, k = dims["b"] * dims["h"], dims["q"], dims["kv"], dims["d"]
    elif kind is OpKind.RNN and "hidden" in dims:
        b, m, n, k = 1, dims["batch"], 4 * dims["hidden"], dims["input"] + dims["hidden"]
    elif "m" in dims:
        b, m, n, k = dims.get("b", 1), dims["m"], dims["n"], dims["k"]
    else:
        b, m = 1, max(round((op.flops / 2) ** (1 / 3)), 1)
        n = k = m
    b, m, n, k = max(b, 1), max(m, 1), max(n, 1), max(k, 1)
    work = op.flops / (2.0 * b * m * n * k)
    return BATCHED if b > 1 else PRODUCT, (b, m, n, k, work, 0.0, 0.0, 0.0, 1.0)


def _convolved(op: Op) -> tuple[float, ...]:
    dims = op.dims
    groups = max(dims.get("groups", 1), 1)
    c, k = max(dims["c"] // groups, 1), max(dims["k"] // groups, 1)
    pixels = dims["n"] * dims["h"] * dims["w"]
    side = math.sqrt(dims["h"] * dims["w"])
    work = op.flops / (2.0 * groups * pixels * k * c * dims["r"] * dims["s"])
    fast = dims["r"] == dims["s"] == 3 and dims.get("stride", 1) == dims.get("dilation", 1) == groups == 1
    if not fast:
        return groups, pixels, k, c * dims["r"] * dims["s"], work, 0.0, 0.0, 0.0, side
    tiles = dims["n"] * math.ceil(dims["h"] / 2) * math.ceil(dims["w"] / 2)
    return groups, pixels, k, c * 9, work, tiles, c, 4.0 * (16 * tiles * (c + k) + 25 * c * k), side


def kernel_coordinates(group: int, kernels: KernelTable) -> Array:
    """Return log sizes (n, f), the coordinates of kernels in their group."""
    if group == CONVOLUTION:
        images = np.maximum(kernels.m / kernels.side**2, 1.0)
        sizes = [kernels.b, images, kernels.side, kernels.n, kernels.k]
    elif group in COMPUTING_GROUPS:
        sizes = [kernels.b, kernels.m, kernels.n, kernels.k]
    else:
        sizes = [kernels.rows, kernels.columns, np.maximum(kernels.moved / (kernels.rows * kernels.columns), 1e-3)]
    return np.column_stack([np.log(size) for size in sizes])


def gp_coordinates(group: int, kernels: KernelTable) -> Array:
    """Return ``kernel_coordinates`` with half-filled tiles and alignment, which also select kernels."""
    where = kernel_coordinates(group, kernels)
    if group not in COMPUTING_GROUPS:
        return where
    halves = (np.ceil(kernels.m / HALF_TILE) % 2, np.ceil(kernels.n / HALF_TILE) % 2)
    return np.column_stack([where, *halves, kernels.k % 4 == 0])
