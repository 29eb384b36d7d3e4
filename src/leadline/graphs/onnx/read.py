"""Read an ONNX file into the op graph of one forward pass. The file holds no backward, so it is for inference only."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from leadline.core.documents import refuse_damaged
from leadline.core.errors import InvalidInput, MissingExtra
from leadline.core.graph import LoopFacts, Op, OpGraph, OpKind, Stage, StorageCategory, TensorSpec, TracedJob
from leadline.core.workload import Phase, Workload
from leadline.files.read import read_input
from leadline.graphs.hf_config.tape import Storage, Tape
from leadline.graphs.onnx import OPERATORS, Message

KINDS = {name: OpKind(kind) for kind, names in OPERATORS["kinds"].items() for name in names}

FLOPS_PER_ELEMENT = {OpKind.NORM: 8, OpKind.SOFTMAX: 5, OpKind.COPY: 0, OpKind.INDEX: 0}
"""Operations per element by kind, where it is not one."""

BOOKKEEPING_ELEMENTS = 64
"""Integer tensors up to this size are shapes that the runtime computes on the host."""


def read_onnx(workload: Workload, *, device_type: str = "cuda") -> TracedJob:
    """Return one forward pass of the ONNX file that ``workload`` names (implements ``GraphSource``).

    A symbolic first dimension of an input is the batch (1 by default), the second the sequence. ``workload.inputs``
    overrides all dimensions. A precision narrower than the file's float32 converts all its tensors.

    Raises:
        MissingExtra: The onnx package is not installed.
        InvalidInput: The workload trains, the file cannot be read, or a size stays unknown.
    """
    reference = workload.model.reference
    if workload.phase is Phase.TRAINING:
        raise InvalidInput(
            f"{reference} can only be estimated for inference, as an ONNX file has no backward: add --phase inference"
        )
    model = _load(reference)
    from leadline.graphs.onnx.sizes import find_sizes  # noqa: PLC0415 - needs the extra, which is known to be there

    batch = workload.batch or (workload.inputs[0].shape[0] if workload.inputs else 1)
    with refuse_damaged(f"{reference} is damaged, export it again: its parts do not fit together"):
        _fix_inputs(model, workload, batch)
        dtype = workload.precision.weights if workload.precision else "float32"
        reader = _GraphReader(find_sizes(model, reference), dtype)
        reader.read(model.graph)
    notes = ["every op of the file is a kernel of its own: a runtime that fuses ops is faster"]
    if workload.batch is None and not workload.inputs:
        notes.append("assumed: batch 1")
    graph = OpGraph(
        ops=tuple(reader.ops),
        events=tuple(reader.tape.events),
        parameters=reader.parameters,
        parameter_bytes=reader.parameter_bytes,
        device_type=device_type,
        source="onnx",
    )
    return TracedJob(graph, LoopFacts(batch=batch), notes=tuple(notes))


def _load(reference: str) -> Message:
    try:
        import onnx  # noqa: PLC0415 - an extra, loaded when it is used
        from google.protobuf.message import DecodeError  # noqa: PLC0415 - onnx needs it
    except ImportError as error:
        raise MissingExtra(f"reading {reference}", "onnx") from error
    try:
        return onnx.load_model_from_string(read_input(Path(reference), most=2**31))
    except (DecodeError, ValueError) as error:
        raise InvalidInput(f"{reference} is not an ONNX model: {error}") from error


def _fix_inputs(model: Message, workload: Workload, batch: int) -> None:
    """Set a number for each symbolic dimension of the inputs, and drop the shapes derived from them."""
    weights = {value.name for value in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    if workload.inputs and len(workload.inputs) > len(inputs):
        raise InvalidInput(
            f"{len(workload.inputs)} inputs were given, but {workload.model.reference} has {len(inputs)}"
        )
    for position, value in enumerate(inputs):
        dims = value.type.tensor_type.shape.dim
        shape = workload.inputs[position].shape if position < len(workload.inputs) else None
        if shape is not None and len(shape) != len(dims):
            raise InvalidInput(
                f"input {value.name} of {workload.model.reference} has {len(dims)} dimensions, not {len(shape)}"
            )
        for axis, dim in enumerate(dims):
            if shape is not None:
                dim.dim_value = shape[axis]
            elif axis == 0 and (dim.dim_value == 0 or workload.batch):
                dim.dim_value = batch
            elif dim.dim_value == 0 and axis == 1 and workload.sequence:
                dim.dim_value = workload.sequence
            elif dim.dim_value == 0:
                raise InvalidInput(
                    f"dimension {dim.dim_param or axis} of input {value.name} of {workload.model.reference} has no "
                    "size: give --input, or --seq"
                )
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")


@dataclass(slots=True)
class _GraphReader:
    """Turns nodes into ops, and tensors into memory on a tape, which is freed after its last reader."""

    sizes: dict[str, TensorSpec]
    dtype: str
    ops: list[Op] = field(default_factory=list)
    tape: Tape = field(default_factory=Tape)
    parameters: int = 0
    parameter_bytes: int = 0
    _producers: dict[str, int] = field(default_factory=dict)
    _memory: dict[str, Storage] = field(default_factory=dict)

    def read(self, graph: Message) -> None:
        """Read all nodes in the file's order, which is an execution order."""
        for value in graph.initializer:
            size = self._size(value.name)
            if size is not None and "float" in size.dtype:
                self.parameters += size.elements
                self.parameter_bytes += size.size_bytes
            self._allocate(value.name, StorageCategory.PARAMETER)
        weights = set(self._memory)
        for value in graph.input:
            if value.name not in weights:
                self._allocate(value.name, StorageCategory.INPUT)
        last = {name: position for position, node in enumerate(graph.node) for name in node.input}
        permanent = weights | {value.name for value in graph.output} | {value.name for value in graph.input}
        for position, node in enumerate(graph.node):
            self._node(node)
            for name in dict.fromkeys((*node.input, *node.output)):
                if last.get(name, position) == position and name not in permanent:
                    self._memory.pop(name, None)

    def _node(self, node: Message) -> None:
        outputs = [name for name in node.output if name]
        if node.op_type in OPERATORS["views"] and node.input[0] in self._memory:
            self._memory[outputs[0]] = self._memory[node.input[0]]
            if node.input[0] in self._producers:
                self._producers[outputs[0]] = self._producers[node.input[0]]
            return
        if all(self._is_bookkeeping(name) for name in outputs) or node.op_type == "Constant":
            return
        for name in outputs:
            self._allocate(name, StorageCategory.ACTIVATION)
            self._producers[name] = len(self.ops)
        self.ops.append(self._op(node, outputs))
        self.tape.position = len(self.ops)

    def _op(self, node: Message, names: list[str]) -> Op:
        inputs = [size for size in map(self._size, node.input) if size is not None]
        outputs = [size for size in map(self._size, names) if size is not None]
        if not outputs:
            raise InvalidInput(
                f"the size of {names[0]!r} ({node.op_type}) cannot be inferred: simplify the ONNX file, or give --input"
            )
        kind = KINDS.get(node.op_type, OpKind.ELEMENTWISE)
        if node.op_type == "Gather" and len(inputs[0].shape) == 2 and node.input[0] not in self._producers:
            kind = OpKind.EMBEDDING
        dims = _dims(kind, node, inputs, outputs)
        written = float(sum(size.size_bytes for size in outputs))
        gathers = kind in (OpKind.EMBEDDING, OpKind.INDEX)
        return Op(
            name=f"onnx.{node.op_type}",
            kind=kind,
            stage=Stage.FORWARD,
            dtype=next((size.dtype for size in (*inputs, *outputs) if "float" in size.dtype), outputs[0].dtype),
            flops=_flops(kind, dims, inputs, outputs),
            bytes_read=written if gathers else float(sum(size.size_bytes for size in inputs)),
            bytes_written=written,
            inputs=tuple(inputs[:8]),
            outputs=tuple(outputs[:8]),
            dims=dims,
            sources=tuple(sorted({self._producers[name] for name in node.input if name in self._producers})),
        )

    def _size(self, name: str) -> TensorSpec | None:
        size = self.sizes.get(name)
        if size is not None and size.dtype == "float32" and self.dtype != "float32":
            return TensorSpec(size.shape, self.dtype)
        return size

    def _is_bookkeeping(self, name: str) -> bool:
        size = self.sizes.get(name)
        return size is not None and "int" in size.dtype and size.elements <= BOOKKEEPING_ELEMENTS

    def _allocate(self, name: str, category: StorageCategory) -> None:
        size = self._size(name)
        if size is not None and name not in self._memory:
            self._memory[name] = Storage(self.tape, max(1, size.size_bytes), category)


def _dims(kind: OpKind, node: Message, inputs: list[TensorSpec], outputs: list[TensorSpec]) -> dict[str, int]:
    if kind is OpKind.GEMM and len(inputs) >= 2 and len(inputs[0].shape) >= 2 and len(outputs[0].shape) >= 2:
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
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
    """Return the sizes of a convolution. A transposed one is the backward of one on its own output."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    groups = attributes["group"].i if "group" in attributes else 1
    stride, dilation = (attributes[name].ints[0] if name in attributes else 1 for name in ("strides", "dilations"))
    source, weight, result = inputs[0].shape, inputs[1].shape, outputs[0].shape
    spatial = source[2:] if node.op_type == "ConvTranspose" else result[2:]
    taps = weight[2:]
    return {
        "n": source[0], "c": source[1], "k": result[1], "h": math.prod(spatial[:-1]), "w": spatial[-1],
        "r": math.prod(taps[:-1]), "s": taps[-1], "groups": groups, "stride": stride, "dilation": dilation,
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
        return 2.0 * steps * batch * (inputs[1].elements + inputs[2].elements)
    return float(FLOPS_PER_ELEMENT.get(kind, 1) * max(size.elements for size in (*inputs, *outputs)))
