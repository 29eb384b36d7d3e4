"""Transformers that were traced op by op for public timings, as op graphs."""

import ast
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.dnn.kernel_data import product_op, streamed_op
from benchmarks.tables import Columns, read_table, select_rows
from leadline.core.errors import InvalidInput
from leadline.core.graph import Op, OpGraph, OpKind

Shape = tuple[int, ...]

LAYER = re.compile(r"\b(?:h|layer|layers)\.0\.")
"""A module of the one layer in the trace; the other layers are equal."""

VIEWS = frozenset(
    (
        "view",
        "permute",
        "transpose",
        "size",
        "getitem",
        "getattr",
        "split",
        "unsqueeze",
        "expand",
        "dim",
        "finfo",
        "type",
    )
) | {"type_as", "eq", "reshape"}
MAPS = {
    "add": "aten.add", "sub": "aten.add", "mul": "aten.mul", "truediv": "aten.div", "pow": "aten.pow",
    "tanh": "aten.tanh", "gelu": "aten.gelu", "relu": "aten.relu", "where": "aten.mul", "max": "aten.mul",
    "masked_fill": "aten.mul", "masked_fill_": "aten.mul", "contiguous": "aten.clone", "lt": "aten.add",
    "bool": "aten.clone", "to": "aten.clone",
}  # fmt: skip
"""Functions that work element by element → the operator whose measured kernels are like theirs."""


@dataclass(frozen=True, slots=True)
class TracedTransformer:
    """One measured run: the graph, the seconds of the run, and the sum of its ops measured one by one."""

    device: str
    name: str
    training: bool
    graph: OpGraph
    elapsed_s: float
    summed_s: float


def traced_transformers(data: Path) -> list[TracedTransformer]:
    """Return the measured runs of whole models whose ops were traced, those of split or fused models left out."""
    runs, labels = read_table(data, "neusight_e2e"), read_table(data, "neusight_op_labels")
    runs_traced = []
    for i in range(len(runs["name"])):
        of_run = np.flatnonzero((labels["device"] == runs["device"][i]) & (labels["run"] == runs["name"][i]))
        if runs["option"][i] or not len(of_run):
            continue
        training = str(runs["mode"][i]) == "train"
        ops, summed_ms = _graph(select_rows(labels, of_run), int(runs["num_layer"][i]), training=training)
        name = f"{runs['name'][i]}"
        runs_traced.append(
            TracedTransformer(
                str(runs["device"][i]).replace("_", " ", 2),
                name,
                training,
                OpGraph(tuple(ops), source="trace"),
                float(runs["e2e_latency"][i]) / 1e3,
                summed_ms / 1e3,
            )
        )
    return runs_traced


def layer_ops(labels: Columns, row: int) -> list[Op]:
    """Return the kernels of the forward pass of one traced row of the table of op labels."""
    return _ops(_LabelRow.of(labels, row), training=False)


def _graph(labels: Columns, layers: int, *, training: bool) -> tuple[list[Op], float]:
    """Return the ops of a run and their total measured milliseconds; the traced layer counts for all layers."""
    order = np.argsort(labels["idx"])
    labels = select_rows(labels, order)
    marked = [i for i, target in enumerate(labels["target"]) if LAYER.search(f"{target}.")]
    if not marked:
        raise InvalidInput("a traced graph names no layer: fetch the table of op labels again")
    first, last = marked[0], marked[-1]
    while last + 1 < len(labels["op"]) and labels["op"][last + 1] != "call_module":
        last += 1
    ops: list[Op] = []
    summed_ms = 0.0
    for i in range(len(labels["op"])):
        count = layers if first <= i <= last else 1
        kernels = _ops(_LabelRow.of(labels, i), training=training)
        ops += [replace(op, count=count) for op in kernels]
        summed_ms += count * float(labels["fw_latency"][i] + labels["bw_latency"][i] + labels["acc_latency"][i])
    return ops, summed_ms


@dataclass(frozen=True, slots=True)
class _LabelRow:
    kind: str
    target: str
    inputs: tuple[Shape, ...]
    output: Shape
    dtype: str

    @classmethod
    def of(cls, labels: Columns, i: int) -> "_LabelRow":
        inputs = tuple(tuple(shape) for shape in ast.literal_eval(str(labels["input_shapes"][i])))
        text = str(labels["output_shape"][i])
        output = ast.literal_eval(text) if text.startswith("(") else ()
        shape = tuple(output) if all(isinstance(size, int) for size in output) else ()
        target = str(labels["target"][i])
        named = re.search(r"(?:built-in (?:function|method)|function|class) '?([\w.]+)", target)
        return cls(str(labels["op"][i]), named.group(1) if named else target, inputs, shape, str(labels["dtype"][i]))


def _ops(row: _LabelRow, *, training: bool) -> list[Op]:
    """Return the kernels of a row, backward ones after forward ones; none for host code."""
    size = int(np.prod(row.output)) if row.output else 0
    same = row.target == "to" and row.dtype == "torch.float32"  # nothing is cast
    if size <= 1 or same or not row.kind.startswith("call") or row.target in VIEWS:
        return []
    if row.kind == "call_module" or row.target in ("dropout", "embedding"):
        return _module(row, training=training)
    if row.target in ("addmm", "matmul", "bmm"):
        first, second = row.inputs[-2:]
        return _matrix(first, second, training=training, weights=row.target == "addmm")
    if row.target == "softmax":
        return _mapped("aten._softmax", OpKind.SOFTMAX, row.output, 1, backward=2 if training else 0)
    return _by_element(row, size, training=training) if row.target in MAPS else []


def _by_element(row: _LabelRow, size: int, *, training: bool) -> list[Op]:
    operands = max(sum(np.prod(shape) == size for shape in row.inputs), 1)
    name = MAPS[row.target]
    kind = OpKind.COPY if name == "aten.clone" else OpKind.ELEMENTWISE
    if name in ("aten.add", "aten.mul", "aten.div"):
        name += ".Scalar" if operands == 1 else ".Tensor"
    passes = _backward_passes(row.target, operands) if training else 0
    return _mapped(name, kind, row.output, operands, backward=passes)


def _backward_passes(function: str, operands: int) -> int:
    """Return the number of tensors that all kernels of a function's backward pass read."""
    if function in ("add", "sub", "contiguous", "bool", "to", "lt"):
        return 0
    if function == "pow":
        return 5
    return 1 if function in ("where", "max", "masked_fill", "truediv") else 2 * operands - (operands == 1)


def _module(row: _LabelRow, *, training: bool) -> list[Op]:
    name = row.target.rsplit(".", maxsplit=1)[-1].lower()
    if "drop" in name:
        return _mapped("aten.native_dropout", OpKind.ELEMENTWISE, row.output, 1, backward=2) if training else []
    if "norm" in name or name.startswith("ln_"):
        return _mapped("aten.native_layer_norm", OpKind.NORM, row.output, 1, backward=2 if training else 0)
    if "embed" in name or name in ("wte", "wpe"):
        return _mapped("aten.embedding", OpKind.EMBEDDING, row.output, 1, backward=1 if training else 0)
    if name.startswith("act"):
        return _mapped("aten.gelu", OpKind.ELEMENTWISE, row.output, 1, backward=2 if training else 0)
    first = row.inputs[0]
    return _matrix(first, (first[-1], row.output[-1]), training=training, weights=True)


def _matrix(first: Shape, second: Shape, *, training: bool, weights: bool) -> list[Op]:
    """Return a product, the products of its two gradients, and the sum that accumulates the weights' gradient."""
    n, k = second[-1], first[-1]
    b = 1 if weights else int(np.prod(first[:-2]))
    m = int(np.prod(first[:-1])) // b
    ops = [product_op(m, n, k, b=b)]
    if training:
        ops += [product_op(m, k, n, b=b), product_op(n, k, m, b=b)]
    if training and weights:
        ops.append(streamed_op("aten.add.Tensor", OpKind.ELEMENTWISE, (k, n), 2))
    return ops


def _mapped(name: str, kind: OpKind, shape: Shape, operands: int, *, backward: int) -> list[Op]:
    ops = [streamed_op(name, kind, shape, operands)]
    if backward:
        ops.append(streamed_op(name, kind, shape, backward))
    return ops
