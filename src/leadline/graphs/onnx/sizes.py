"""Find the size of every tensor of an ONNX graph, also where sizes are computed by the graph itself.

The onnx package infers shapes from shapes. Exported transformers compute shapes from values (the length of the input,
sliced, compared, counted up), so that small values are followed here too, node by node.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leadline.core.errors import InvalidInput
from leadline.core.graph import BYTES_PER_ELEMENT, TensorSpec

Message = Any
"""A protobuf message of the onnx package (model, graph, node or type), which brings no types of its own."""

Values = Any
"""A small tensor whose elements are known, as numpy holds it."""

NAMES = (
    "Abs Add And Cast CastLike Ceil Clip Concat ConstantOfShape CumSum Div Equal Expand Flatten Floor Gather GatherND "
    "Greater GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul Neg Not Or Pad Pow Range ReduceMax ReduceMin "
    "ReduceProd ReduceSum Reshape ScatterND Slice Split Sqrt Squeeze Sub Sum Tile Transpose Unsqueeze Where"
)
FOLLOWED = frozenset(NAMES.split())
"""Operators that are carried out when all their inputs are known."""

LONGEST = 4096
"""Elements up to which a tensor's values are followed: more than a shape, at least a range of positions."""


def find_sizes(model: Message, reference: str) -> dict[str, TensorSpec]:
    """Return shape and dtype of every tensor whose shape can be told; ``reference`` is the file's path.

    Raises:
        InvalidInput: the shapes in the file contradict each other.
    """
    import onnx  # noqa: PLC0415 - an extra, loaded when it is used

    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except onnx.shape_inference.InferenceError as error:
        raise InvalidInput(f"the shapes of {reference} do not fit together: {error}") from error
    types = {one.name: one.type for one in (*graph.input, *graph.value_info, *graph.output)}
    for one in graph.initializer:
        types[one.name] = onnx.helper.make_tensor_type_proto(one.data_type, one.dims)
    if any(not _known(types.get(name)) for node in graph.node for name in node.output if name):
        _Follower(types, {one.domain: one.version for one in model.opset_import}, Path(reference).parent).follow(graph)
    return {name: _spec(one) for name, one in types.items() if _known(one)}


class _Follower:
    """Goes through the nodes in order, and fills the types of what they make into ``types``."""

    def __init__(self, types: dict[str, Message], versions: dict[str, int], folder: Path) -> None:
        self.types, self.versions, self.folder = types, versions, folder
        self.values: dict[str, Values] = {}

    def follow(self, graph: Message) -> None:
        """Fill in all that can be told."""
        for one in graph.initializer:
            if math.prod(one.dims) <= LONGEST:
                self._remember_weight(one)
        for node in graph.node:
            for name, made in self._carry_out(node):
                self._remember(name, made)
            if any(name and not _known(self.types.get(name)) for name in node.output):
                self._infer(node)

    def _remember_weight(self, one: Message) -> None:
        import onnx  # noqa: PLC0415 - an extra, loaded when it is used

        outside = {entry.key: entry.value for entry in one.external_data}
        if not outside or (self.folder / outside["location"]).is_file():
            self.values[one.name] = onnx.numpy_helper.to_array(one, str(self.folder))

    def _remember(self, name: str, made: Values) -> None:
        import onnx  # noqa: PLC0415 - an extra, loaded when it is used

        kind = onnx.helper.np_dtype_to_tensor_dtype(made.dtype)
        self.types[name] = onnx.helper.make_tensor_type_proto(kind, made.shape)
        if made.size <= LONGEST:
            self.values[name] = made

    def _carry_out(self, node: Message) -> Iterator[tuple[str, Values]]:
        """Yield the outputs of a node whose inputs, or their shapes where it asks for those, are known."""
        import numpy as np  # noqa: PLC0415 - comes with onnx

        if node.op_type in ("Shape", "Size") and _known(self.types.get(node.input[0])):
            shape = _spec(self.types[node.input[0]]).shape
            given = {one.name: one.i for one in node.attribute}
            part = shape[given.get("start", 0) : given.get("end", len(shape))]
            yield node.output[0], np.array(part if node.op_type == "Shape" else math.prod(shape), dtype=np.int64)
        elif node.op_type == "Constant" or self._can_follow(node):
            results = self._evaluate(node)
            yield from ((name, np.asarray(made)) for name, made in zip(node.output, results, strict=False) if name)

    def _can_follow(self, node: Message) -> bool:
        known = node.op_type in FOLLOWED and all(name in self.values for name in node.input if name)
        return known and math.prod(self._shape(node)) <= LONGEST

    def _evaluate(self, node: Message) -> list[Values]:
        """Carry one node out; nothing where onnx's own arithmetic cannot, so that the size stays unknown."""
        from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - an extra, loaded when it is used

        known = {name: self.values[name] for name in node.input if name}
        try:
            return list(ReferenceEvaluator(node, opsets=self.versions).run(None, known))
        except (RuntimeError, ValueError, TypeError, IndexError):
            return []

    def _shape(self, node: Message) -> tuple[int, ...]:
        """Return the shape a node would make, before anything is computed; () where it is not known."""
        if node.op_type in ("ConstantOfShape", "Expand"):
            return tuple(int(size) for size in self.values[node.input[-1]].reshape(-1))
        if not _known(self.types.get(node.output[0])):
            self._infer(node)
        found = self.types.get(node.output[0])
        return _spec(found).shape if _known(found) else ()

    def _infer(self, node: Message) -> None:
        """Infer the types of one node's outputs from its inputs' types and known values."""
        import onnx  # noqa: PLC0415 - an extra, loaded when it is used

        nested = any(one.HasField("g") or one.graphs for one in node.attribute)
        names = self.types if nested else [name for name in node.input if name]
        if any(name not in self.types for name in node.input if name):
            return
        data = {
            name: onnx.numpy_helper.from_array(self.values[name], name) for name in node.input if name in self.values
        }
        imports = [onnx.helper.make_opsetid(domain, version) for domain, version in self.versions.items()]
        try:
            schema = onnx.defs.get_schema(node.op_type, self.versions.get(node.domain, 1), node.domain)
            found = onnx.shape_inference.infer_node_outputs(
                schema, node, {name: self.types[name] for name in names}, data, opset_imports=imports
            )
        except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError):
            return
        self.types.update({name: one for name, one in found.items() if _known(one) or name not in self.types})


def _known(one: Message | None) -> bool:
    """Whether a type is that of a tensor whose dimensions are all numbers."""
    if one is None or not one.HasField("tensor_type") or not one.tensor_type.HasField("shape"):
        return False
    return all(dim.HasField("dim_value") for dim in one.tensor_type.shape.dim)


def _spec(one: Message) -> TensorSpec:
    import onnx  # noqa: PLC0415 - an extra, loaded when it is used

    name = onnx.TensorProto.DataType.Name(one.tensor_type.elem_type).lower()
    dtype = {"float": "float32", "double": "float64"}.get(name, name if name in BYTES_PER_ELEMENT else "uint8")
    return TensorSpec(tuple(dim.dim_value for dim in one.tensor_type.shape.dim), dtype)
