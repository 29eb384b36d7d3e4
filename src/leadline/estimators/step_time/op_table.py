"""Ops of many graphs as arrays: kernel class, amount of work, and sizes that decide its speed."""

from collections.abc import Iterable, Mapping, Sequence
from math import log2, prod

import numpy as np

from leadline.core.frozen import Frozen
from leadline.core.graph import Op, OpKind, Stage, TensorSpec
from leadline.estimators.ports import Array, IntArray, Mask
from leadline.estimators.recent_cache import RecentCache
from leadline.estimators.step_time.kernel_families import OPERATORS, plain_name
from leadline.estimators.step_time.roofline import MATRIX_KINDS

_CLASSES: list[str] = OPERATORS["classes"]
KERNEL_CLASSES = (*_CLASSES, *(f"{name}_backward" for name in _CLASSES), "optimizer")
DTYPES = ("float32", "float16", "bfloat16", "tf32", "float64", "float8_e4m3fn", "int8")
# Columns of `OpTable.sizes`.
SIZE_COLUMNS = 16
# Tensors of more elements need 64-bit indices, for which fast convolutions have no kernel.
LARGEST_INDEX = 2**31

_INDEX = {name: number for number, name in enumerate(KERNEL_CLASSES)}

_COPIES: dict[str, str] = OPERATORS["copies"]
_POINTWISE: dict[str, str] = OPERATORS["pointwise"]


class OpTable(Frozen):
    """n ops of g graphs, grouped by graph; arrays are (n,) except ``sizes`` and ``first``.

    ``classes`` and ``dtypes`` are positions in ``KERNEL_CLASSES`` and ``DTYPES`` (−1: another dtype). ``matrix`` marks
    products. ``flops`` and ``bytes`` are of one call, ``count`` is the number of calls, and each launches ``kernels``.
    ``sizes`` is (n, SIZE_COLUMNS). ``first`` (g + 1,) is where each graph begins, and its last entry is n.
    """

    classes: IntArray
    dtypes: IntArray
    matrix: Mask
    flops: Array
    bytes: Array
    count: Array
    kernels: Array
    sizes: Array
    first: IntArray

    @property
    def graphs(self) -> int:
        """Return how many graphs the table holds."""
        return len(self.first) - 1

    @property
    def owner(self) -> IntArray:
        """Return the number of the graph of each op, of shape (n,)."""
        return np.repeat(np.arange(self.graphs), np.diff(self.first))

    def summed(self, values: Array) -> Array:
        """Return the sum over each graph of what each op has, of shape (g,)."""
        return np.bincount(self.owner, values, self.graphs).astype(float)

    @property
    def launches(self) -> Array:
        """Return how many kernels each graph launches, of shape (g,)."""
        return self.summed(self.count * self.kernels)

    @classmethod
    def from_graphs(cls, graphs: Iterable[Iterable[Op]]) -> "OpTable":
        """Return the ops of ``graphs`` that touch memory; views take no device time.

        Ops of the same sizes become one with their counts added, since a graph repeats its layers.
        """
        numbers: dict[tuple[float, ...], int] = {}
        counts = [_count_rows(graph, numbers)[0] for graph in graphs]
        return cls.from_rows(list(numbers), counts)

    @classmethod
    def from_counts(cls, ops: Sequence[Op], graphs: Sequence[Mapping[int, float]]) -> "OpTable":
        """Return graphs given as counts by position in ``ops``; an op's own count is ignored."""
        return cls.from_rows([_row(op) for op in ops], graphs)

    @classmethod
    def from_rows(cls, each: Sequence[tuple[float, ...]], graphs: Sequence[Mapping[int, float]]) -> "OpTable":
        """Return graphs given as counts by position in the rows of ``_row``."""
        rows = np.array(each, float).reshape(len(each), 6 + SIZE_COLUMNS)
        numbers = np.array([number for graph in graphs for number in graph], np.int64)
        count = np.array([count for graph in graphs for count in graph.values()], float)
        first = np.concatenate([[0], np.cumsum([len(graph) for graph in graphs])]).astype(np.int64)
        classes, dtypes, matrix, flops, moved, kernels = rows[numbers, :6].T
        return cls(
            classes.astype(np.int64), dtypes.astype(np.int64), matrix > 0, flops, moved, count, kernels,
            rows[numbers, 6:], first,
        )  # fmt: skip


@RecentCache
def index_ops(ops: Sequence[Op]) -> tuple[OpTable, IntArray]:
    """Return the table of one graph, and for each op its row there, of shape (n,): −1 for a view.

    The last results are kept, so that one graph is laid out once for all devices.
    """
    numbers: dict[tuple[float, ...], int] = {}
    counts, where = _count_rows(ops, numbers)
    return OpTable.from_rows(list(numbers), [counts]), np.array(where, np.int64)


def _count_rows(ops: Iterable[Op], numbers: dict[tuple[float, ...], int]) -> tuple[dict[int, float], list[int]]:
    """Return a graph's calls by number of row, and each op's number, −1 for a view; new rows enter ``numbers``."""
    counts: dict[int, float] = {}
    where = []
    for op in ops:
        if op.bytes_read + op.bytes_written:
            number = numbers.setdefault(_row(op), len(numbers))
            counts[number] = counts.get(number, 0.0) + op.count
            where.append(number)
        else:
            where.append(-1)
    return counts, where


class Cells(Frozen):
    """Ops of a table by graph and class: ``cell`` (n,) is a position in ``graph`` and ``classes``.

    ``owner`` (n,) is the graph of each op.
    """

    owner: IntArray
    cell: IntArray
    graph: IntArray
    classes: IntArray

    @classmethod
    def of(cls, table: OpTable) -> "Cells":
        """Return the cells of ``table``."""
        owner = table.owner
        present, cell = np.unique(owner * len(KERNEL_CLASSES) + table.classes, return_inverse=True)
        return cls(owner, cell, present // len(KERNEL_CLASSES), present % len(KERNEL_CLASSES))


def kernel_class(op: Op) -> str:
    """Return the name in ``KERNEL_CLASSES`` of the kernel that ``op`` runs."""
    if op.stage is Stage.OPTIMIZER:
        return "optimizer"
    name = plain_name(op.name)
    backward = op.stage is Stage.BACKWARD or "backward" in name
    return _forward_class(op, name) + ("_backward" if backward else "")


def _forward_class(op: Op, name: str) -> str:  # noqa: PLR0911 - a table of kinds
    match op.kind:
        case OpKind.CONV:
            return _conv_class(op.dims)
        case OpKind.GEMM:
            return "batched_gemm" if op.dims.get("b", 1) > 1 else "gemm"
        case OpKind.ATTENTION | OpKind.RNN | OpKind.SOFTMAX | OpKind.REDUCTION | OpKind.EMBEDDING | OpKind.INDEX:
            return op.kind.value
        case OpKind.NORM:
            return next((norm for norm in ("batch_norm", "layer_norm", "group_norm") if norm in name), "other_norm")
        case OpKind.POOL:
            return _pool_class(name)
        case OpKind.COPY:
            return _COPIES.get(name, "fill")
        case OpKind.ELEMENTWISE:
            if any(word in name for word in OPERATORS["transcendental"]):
                return "transcendental"
            return _POINTWISE.get(name.rstrip("_"), "pointwise")
        case _:
            return "other"


def _conv_class(dims: dict[str, int]) -> str:
    groups = dims.get("groups", 1)
    if groups > 1:
        return "conv_depthwise" if groups >= dims.get("c", 0) else "conv_grouped"
    return "conv_pointwise" if dims.get("r", 1) == dims.get("s", 1) == 1 else "conv_dense"


def _pool_class(name: str) -> str:
    if "upsample" in name:
        return "upsample"
    return "adaptive_pool" if "adaptive" in name else "max_pool" if "max" in name else "average_pool"


def _row(op: Op) -> tuple[float, ...]:
    """Return class, dtype, whether it is a product, FLOPs, bytes, kernels, and the sizes."""
    dtype = DTYPES.index(op.dtype) if op.dtype in DTYPES else -1
    matrix = op.kind in MATRIX_KINDS and op.stage is not Stage.OPTIMIZER
    sizes = _product_sizes(op) if matrix else _stream_sizes(op)
    moved = op.bytes_read + op.bytes_written
    return (_INDEX[kernel_class(op)], dtype, matrix, op.flops, moved, max(op.kernels, 1), *sizes)


def _product_sizes(op: Op) -> list[float]:
    """Return the log2 sizes of a product (depth, columns, batch, rows), then disturbances."""
    dims, sizes = op.dims, [0.0] * SIZE_COLUMNS
    sizes[11], sizes[14] = float(op.dtype == "float32"), _beyond_index(op)
    if op.kind is OpKind.CONV and "c" in dims:
        groups = max(dims.get("groups", 1), 1)
        depth, columns = dims["c"] // groups, dims["k"] // groups
        even = (dims["c"], dims["k"]) if depth == 1 else (depth, columns)
        height, width = dims.get("r", 1), dims.get("s", 1)
        sizes[:5] = [_log(depth), _log(columns), _log(groups), _log(dims["h"] * dims["w"]), _log(height * width)]
        sizes[5:8] = [dims.get("stride", 1) - 1.0, float(even[0] % 8 != 0), float(even[1] % 8 != 0)]
        sizes[8:11] = [float(dims.get("gradients", 2) == 1), _log(dims["n"]), float(dims.get("dilation", 1) > 1)]
        sizes[12:14] = [abs(log2(height / width)), float(height * width >= 25)]
        sizes[15] = float(groups > 1 and depth & (depth - 1) != 0)
    elif op.kind is OpKind.GEMM and "m" in dims:
        depth, columns, rows = dims["k"], dims["n"], dims["m"]
        sizes[:4] = [_log(depth), _log(columns), _log(dims.get("b", 1)), _log(rows)]
        sizes[6:9] = [float(depth % 8 != 0), float(columns % 8 != 0), float(rows % 8 != 0)]
    elif op.kind is OpKind.ATTENTION and "q" in dims:
        sizes[:4] = [_log(dims["d"]), _log(dims["kv"]), _log(dims["b"] * dims["h"]), _log(dims["q"])]
        sizes[6] = float(dims["d"] % 8 != 0)
    return sizes


def _stream_sizes(op: Op) -> list[float]:
    """Return the sizes of a streaming op: row length, pixels, elements, operands and differences."""
    sizes = [0.0] * SIZE_COLUMNS
    sizes[11], sizes[14] = float(op.dtype == "float32"), _beyond_index(op)
    inputs = [_numel(spec) for spec in op.inputs[:2]]
    shape = (op.inputs or op.outputs)[0].shape if op.inputs or op.outputs else ()
    elements = inputs[0] if inputs else _numel(op.outputs[0]) if op.outputs else 1
    image = len(shape) == 4
    sizes[0] = _log(shape[1] if image else shape[-1] if shape else 1)
    sizes[1] = _log(shape[2] * shape[3]) if image else 0.0
    sizes[2:5] = [float(image), _log(elements), float(len(op.inputs))]
    if len(inputs) > 1:
        sizes[5] = float(_log(inputs[1]) < _log(elements) - 0.5)
    if op.outputs:
        sizes[6] = _log(_numel(op.outputs[0])) - _log(elements)
        sizes[7] = float(bool(op.inputs) and op.inputs[0].dtype != op.outputs[0].dtype)
    if op.kind is OpKind.NORM and len(op.outputs) > 1:
        sizes[9] = _log(elements) - _log(_numel(op.outputs[1]))
    return sizes


def _beyond_index(op: Op) -> float:
    """Return 1 if an operand has more elements than a 32-bit index reaches, else 0."""
    return float(any(_numel(spec) >= LARGEST_INDEX for spec in (*op.inputs[:1], *op.outputs[:1])))


def _numel(spec: TensorSpec) -> int:
    return prod(spec.shape)


def _log(size: float) -> float:
    return log2(size) if size > 1 else 0.0
