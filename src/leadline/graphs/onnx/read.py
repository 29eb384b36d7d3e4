"""Read an ONNX file into the op graph of one forward pass; it holds no backward, so it is for inference only."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leadline.core.errors import InvalidInput, MissingExtra
from leadline.core.graph import (
    BYTES_PER_ELEMENT,
    LoopFacts,
    Op,
    OpGraph,
    OpKind,
    Stage,
    StorageCategory,
    StorageEvent,
    TensorSpec,
    TracedJob,
)
from leadline.core.workload import Phase, Workload
from leadline.graphs.onnx.sizes import find_sizes

Message = Any
"""A protobuf message of the onnx package (model, graph or node), which brings no types of its own."""

KINDS = {
    OpKind.GEMM: "Gemm MatMul MatMulInteger QLinearMatMul FusedMatMul Einsum",
    OpKind.CONV: "Conv ConvTranspose ConvInteger QLinearConv",
    OpKind.ATTENTION: "Attention MultiHeadAttention GroupQueryAttention",
    OpKind.RNN: "LSTM GRU RNN",
    OpKind.NORM: "BatchNormalization LayerNormalization InstanceNormalization GroupNormalization RMSNormalization "
    "SkipLayerNormalization SimplifiedLayerNormalization LpNormalization LRN MeanVarianceNormalization",
    OpKind.SOFTMAX: "Softmax LogSoftmax",
    OpKind.POOL: "MaxPool AveragePool GlobalAveragePool GlobalMaxPool LpPool Resize Upsample RoiAlign MaxRoiPool",
    OpKind.REDUCTION: "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ArgMax "
    "ArgMin TopK CumSum NonMaxSuppression",
    OpKind.INDEX: "Gather GatherElements GatherND ScatterElements ScatterND Scatter NonZero OneHot Where Compress",
    OpKind.COPY: "Cast Concat Split Slice Transpose Pad Tile Expand DepthToSpace SpaceToDepth CastLike",
}
"""Operators by the class of kernel they run as; what is not named is elementwise."""

_KIND = {name: kind for kind, names in KINDS.items() for name in names.split()}
VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
"""Operators that return their first input's memory."""

ARITHMETIC = {OpKind.NORM: 8, OpKind.SOFTMAX: 5, OpKind.COPY: 0, OpKind.INDEX: 0}
"""Operations an element by kind, where it is not one."""

BOOKKEEPING_ELEMENTS = 64
"""Integer tensors up to this size are shapes that the runtime computes on the host."""


def read_onnx(workload: Workload, *, device_type: str = "cuda") -> TracedJob:
    """Return one forward pass of the ONNX file that ``workload`` names (implements ``GraphSource``).

    A symbolic first dimension of an input is the batch (1 by default), the second the sequence; ``workload.inputs``
    decides all dimensions where it is given. A precision narrower than the file's float32 converts all its tensors.

    Raises:
        MissingExtra: the onnx package is not installed.
        InvalidInput: training was asked for, the file cannot be read, or a size stays unknown.
    """
    reference = workload.model.reference
    if workload.phase is Phase.TRAINING:
        raise InvalidInput(
            f"{reference} can only be estimated for inference, an ONNX file has no backward: add --phase inference"
        )
    model = _load(reference)
    batch = workload.batch or (workload.inputs[0].shape[0] if workload.inputs else 1)
    _fix_inputs(model, workload, batch)
    reader = _Reader(find_sizes(model, reference), workload.precision.weights if workload.precision else "float32")
    reader.read(model.graph)
    notes = ["ops are priced as the file has them: a runtime that fuses them is faster"]
    if workload.batch is None and not workload.inputs:
        notes.append("assumed: batch 1")
    graph = OpGraph(
        ops=tuple(reader.ops),
        events=tuple(reader.events),
        parameters=reader.parameters,
        parameter_bytes=reader.parameter_bytes,
        device_type=device_type,
        source="onnx",
    )
    return TracedJob(graph, LoopFacts(batch=batch), notes=tuple(notes))


def _load(reference: str) -> Message:
    try:
        import onnx  # noqa: PLC0415 - an extra, loaded when it is used
    except ImportError as error:
        raise MissingExtra(f"reading {reference}", "onnx") from error
    if not Path(reference).is_file():
        raise InvalidInput(f"{reference} cannot be read: there is no such file")
    try:
        return onnx.load(reference, load_external_data=False)
    except Exception as error:
        raise InvalidInput(f"{reference} is not an ONNX model: {error}") from error


def _fix_inputs(model: Message, workload: Workload, batch: int) -> None:
    """Write a number into each symbolic dimension of the inputs, and forget the shapes that were derived from them."""
    weights = {one.name for one in model.graph.initializer}
    inputs = [one for one in model.graph.input if one.name not in weights]
    if workload.inputs and len(workload.inputs) > len(inputs):
        raise InvalidInput(
            f"{len(workload.inputs)} inputs were given, but {workload.model.reference} has {len(inputs)}"
        )
    for position, one in enumerate(inputs):
        dims = one.type.tensor_type.shape.dim
        given = workload.inputs[position].shape if position < len(workload.inputs) else None
        if given is not None and len(given) != len(dims):
            raise InvalidInput(
                f"input {one.name} of {workload.model.reference} has {len(dims)} dimensions, not {len(given)}"
            )
        for axis, dim in enumerate(dims):
            if given is not None:
                dim.dim_value = given[axis]
            elif axis == 0 and (dim.dim_value == 0 or workload.batch):
                dim.dim_value = batch
            elif dim.dim_value == 0:
                dim.dim_value = _symbolic(workload, one.name, dim.dim_param, axis)
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")


def _symbolic(workload: Workload, name: str, symbol: str, axis: int) -> int:
    if axis == 1 and workload.sequence:
        return workload.sequence
    raise InvalidInput(
        f"dimension {symbol or axis} of input {name} of {workload.model.reference} has no size: give --input, or --seq"
    )


@dataclass(slots=True)
class _Reader:
    """Turns nodes into ops, and tensors into memory that goes with its last reader."""

    sizes: dict[str, TensorSpec]
    dtype: str
    ops: list[Op] = field(default_factory=list)
    events: list[StorageEvent] = field(default_factory=list)
    parameters: int = 0
    parameter_bytes: int = 0
    _made_by: dict[str, int] = field(default_factory=dict)
    _memory: dict[str, int] = field(default_factory=dict)
    _held: dict[int, int] = field(default_factory=dict)
    _taken: dict[int, StorageEvent] = field(default_factory=dict)

    def read(self, graph: Message) -> None:
        """Read all nodes in the file's order, which is an execution order."""
        for one in graph.initializer:
            size = self._size(one.name)
            if size is not None and "float" in size.dtype:
                self.parameters += math.prod(size.shape)
                self.parameter_bytes += _bytes(size)
            self._take(one.name, StorageCategory.PARAMETER)
        weights = set(self._memory)
        for one in graph.input:
            if one.name not in weights:
                self._take(one.name, StorageCategory.INPUT)
        last = {name: place for place, node in enumerate(graph.node) for name in node.input}
        kept = weights | {one.name for one in graph.output} | {one.name for one in graph.input}
        for place, node in enumerate(graph.node):
            self._node(node)
            for name in {*node.input, *node.output}:
                if last.get(name, place) == place and name not in kept:
                    self._give(name)

    def _node(self, node: Message) -> None:
        outputs = [name for name in node.output if name]
        if node.op_type in VIEWS and node.input[0] in self._memory:
            self._memory[outputs[0]] = self._memory[node.input[0]]
            self._held[self._memory[outputs[0]]] += 1
            if node.input[0] in self._made_by:
                self._made_by[outputs[0]] = self._made_by[node.input[0]]
            return
        if all(self._is_bookkeeping(name) for name in outputs) or node.op_type == "Constant":
            return
        for name in outputs:
            self._take(name, StorageCategory.ACTIVATION)
            self._made_by[name] = len(self.ops)
        self.ops.append(self._op(node, outputs))

    def _op(self, node: Message, names: list[str]) -> Op:
        inputs = [size for size in map(self._size, node.input) if size is not None]
        outputs = [size for size in map(self._size, names) if size is not None]
        if not outputs:
            raise InvalidInput(
                f"the size of {names[0]!r} ({node.op_type}) cannot be inferred: simplify the ONNX file, or give --input"
            )
        kind = _KIND.get(node.op_type, OpKind.ELEMENTWISE)
        if node.op_type == "Gather" and len(inputs[0].shape) == 2 and node.input[0] not in self._made_by:
            kind = OpKind.EMBEDDING
        dims = _dims(kind, node, inputs, outputs)
        written = float(sum(_bytes(size) for size in outputs))
        gathers = kind in (OpKind.EMBEDDING, OpKind.INDEX)
        return Op(
            name=f"onnx.{node.op_type}",
            kind=kind,
            stage=Stage.FORWARD,
            dtype=next((size.dtype for size in (*inputs, *outputs) if "float" in size.dtype), outputs[0].dtype),
            flops=_flops(kind, dims, inputs, outputs),
            bytes_read=written if gathers else float(sum(_bytes(size) for size in inputs)),
            bytes_written=written,
            inputs=tuple(inputs[:8]),
            outputs=tuple(outputs[:8]),
            dims=dims,
            sources=tuple(sorted({self._made_by[name] for name in node.input if name in self._made_by})),
        )

    def _size(self, name: str) -> TensorSpec | None:
        size = self.sizes.get(name)
        if size is not None and size.dtype == "float32" and self.dtype != "float32":
            return TensorSpec(size.shape, self.dtype)
        return size

    def _is_bookkeeping(self, name: str) -> bool:
        size = self.sizes.get(name)
        return size is not None and "int" in size.dtype and math.prod(size.shape) <= BOOKKEEPING_ELEMENTS

    def _take(self, name: str, category: StorageCategory) -> None:
        size = self._size(name)
        if size is None or name in self._memory:
            return
        storage = len(self._held) + 1
        self._memory[name], self._held[storage] = storage, 1
        self._taken[storage] = StorageEvent(len(self.ops), storage, max(1, _bytes(size)), category)
        self.events.append(self._taken[storage])

    def _give(self, name: str) -> None:
        """Drop one name; the memory goes with its last one."""
        storage = self._memory.get(name)
        if storage is None or self._held[storage] == 0:
            return
        self._held[storage] -= 1
        if self._held[storage] == 0:
            taken = self._taken[storage]
            self.events.append(StorageEvent(len(self.ops), storage, -taken.size_bytes, taken.category))


def _bytes(size: TensorSpec) -> int:
    return math.prod(size.shape) * BYTES_PER_ELEMENT.get(size.dtype, 4)


def _dims(kind: OpKind, node: Message, inputs: list[TensorSpec], outputs: list[TensorSpec]) -> dict[str, int]:
    if kind is OpKind.GEMM and len(inputs) >= 2 and len(inputs[0].shape) >= 2 and len(outputs[0].shape) >= 2:
        attributes = {one.name: one.i for one in node.attribute}
        depth = inputs[0].shape[0 if attributes.get("transA") else -1]
        *lead, rows, columns = outputs[0].shape
        if len(inputs[1].shape) == 2:
            return {"b": 1, "m": math.prod(lead) * rows, "n": columns, "k": depth}
        return {"b": math.prod(lead), "m": rows, "n": columns, "k": depth}
    if kind is OpKind.CONV and len(inputs) >= 2:
        return _conv_dims(node, inputs, outputs)
    if kind is OpKind.ATTENTION and len(inputs) >= 2 and len(inputs[0].shape) == 4:
        b, h, q, d = inputs[0].shape
        return {"b": b, "h": h, "q": q, "kv": inputs[1].shape[2], "d": d}
    return {}


def _conv_dims(node: Message, inputs: list[TensorSpec], outputs: list[TensorSpec]) -> dict[str, int]:
    """Return the sizes of a convolution; a transposed one is the backward of one on its own output."""
    attributes = {one.name: one for one in node.attribute}
    groups = attributes["group"].i if "group" in attributes else 1
    source, weight, result = inputs[0].shape, inputs[1].shape, outputs[0].shape
    spatial = source[2:] if node.op_type == "ConvTranspose" else result[2:]
    taps = weight[2:]
    strides = attributes["strides"].ints if "strides" in attributes else [1]
    dilations = attributes["dilations"].ints if "dilations" in attributes else [1]
    return {
        "n": source[0], "c": source[1], "k": result[1], "h": math.prod(spatial[:-1]), "w": spatial[-1],
        "r": math.prod(taps[:-1]), "s": taps[-1], "groups": groups, "stride": strides[0], "dilation": dilations[0],
    }  # fmt: skip


def _flops(kind: OpKind, dims: dict[str, int], inputs: list[TensorSpec], outputs: list[TensorSpec]) -> float:
    if kind is OpKind.GEMM and dims:
        return 2.0 * dims["b"] * dims["m"] * dims["n"] * dims["k"]
    if kind is OpKind.CONV and dims:
        window = dims["r"] * dims["s"] * dims["c"] * dims["k"] / dims["groups"]
        return 2.0 * dims["n"] * dims["h"] * dims["w"] * window
    if kind is OpKind.ATTENTION and dims:
        return 4.0 * dims["b"] * dims["h"] * dims["q"] * dims["kv"] * dims["d"]
    if kind is OpKind.RNN and len(inputs) >= 3:
        steps, batch = inputs[0].shape[:2]
        return 2.0 * steps * batch * (math.prod(inputs[1].shape) + math.prod(inputs[2].shape))
    per_element = ARITHMETIC.get(kind, 1)
    return float(per_element * max(math.prod(size.shape) for size in (*inputs, *outputs)))
