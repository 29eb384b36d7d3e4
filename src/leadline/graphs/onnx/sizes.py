"""Find the size of every tensor of an ONNX graph, even if the graph itself computes sizes.

The onnx package infers shapes from shapes. Exported transformers compute shapes from values (the length of the input,
sliced, compared or counted up). Small values are therefore tracked here too, node by node.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from leadline.core.errors import InvalidInput
from leadline.core.graph import BYTES_PER_ELEMENT, TensorSpec
from leadline.graphs.onnx import OPERATORS, Message

Values = Any
"""A small numpy array whose elements are known."""

_UNKNOWN = (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, onnx.checker.ValidationError, TypeError)
"""Errors of onnx about an operator, an attribute or a version that it does not know."""

MOST_ELEMENTS = 4096
"""Limit of the elements of a tracked tensor: more than a shape, and enough for a range of positions."""


def find_sizes(model: Message, reference: str) -> dict[str, TensorSpec]:
    """Return shape and dtype of every tensor whose shape can be inferred. ``reference`` is the file's path.

    Raises:
        InvalidInput: The shapes in the file contradict each other.
    """
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        raise InvalidInput(f"the shapes of {reference} do not fit together: {error}") from error
    types = {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}
    for value in graph.initializer:
        types[value.name] = onnx.helper.make_tensor_type_proto(value.data_type, value.dims)
    if any(not _is_fixed(types.get(name)) for node in graph.node for name in node.output if name):
        versions = {opset.domain: opset.version for opset in model.opset_import}
        _ValueTracker(types, versions, Path(reference).parent).track(graph)
    return {name: _spec(kind) for name, kind in types.items() if _is_fixed(kind)}


class _ValueTracker:
    """Goes through the nodes in order, and adds the types of their outputs to ``types``."""

    def __init__(self, types: dict[str, Message], versions: dict[str, int], folder: Path) -> None:
        self.types, self.versions, self.folder = types, versions, folder
        self.values: dict[str, Values] = {}

    def track(self, graph: Message) -> None:
        """Add all types that can be inferred."""
        for tensor in graph.initializer:
            if math.prod(tensor.dims) <= MOST_ELEMENTS:
                self._remember_weight(tensor)
        for node in graph.node:
            for name, value in self._carry_out(node):
                self._remember(name, value)
            if any(name and not _is_fixed(self.types.get(name)) for name in node.output):
                self._infer(node)

    def _remember_weight(self, tensor: Message) -> None:
        external = {entry.key: entry.value for entry in tensor.external_data}
        if not external or (self.folder / external["location"]).is_file():
            self.values[tensor.name] = onnx.numpy_helper.to_array(tensor, str(self.folder))

    def _remember(self, name: str, value: Values) -> None:
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        self.types[name] = onnx.helper.make_tensor_type_proto(kind, value.shape)
        if value.size <= MOST_ELEMENTS:
            self.values[name] = value

    def _carry_out(self, node: Message) -> Iterator[tuple[str, Values]]:
        """Yield the outputs of a node if its inputs are known, or their shapes for an operator on shapes."""
        if node.op_type in ("Shape", "Size") and _is_fixed(self.types.get(node.input[0])):
            shape = _spec(self.types[node.input[0]]).shape
            bounds = {attribute.name: attribute.i for attribute in node.attribute}
            part = shape[bounds.get("start", 0) : bounds.get("end", len(shape))]
            yield node.output[0], np.array(part if node.op_type == "Shape" else math.prod(shape), dtype=np.int64)
        elif node.op_type == "Constant" or self._can_evaluate(node):
            results = self._evaluate(node)
            yield from ((name, np.asarray(value)) for name, value in zip(node.output, results, strict=False) if name)

    def _can_evaluate(self, node: Message) -> bool:
        inputs_known = node.op_type in OPERATORS["tracked"] and all(name in self.values for name in node.input if name)
        return inputs_known and math.prod(self._shape(node)) <= MOST_ELEMENTS

    def _evaluate(self, node: Message) -> list[Values]:
        """Evaluate one node. Return nothing if onnx cannot, so that the size stays unknown."""
        inputs = {name: self.values[name] for name in node.input if name}
        try:
            return list(ReferenceEvaluator(node, opsets=self.versions).run(None, inputs))
        except (RuntimeError, ValueError, TypeError, IndexError):
            return []

    def _shape(self, node: Message) -> tuple[int, ...]:
        """Return the shape of a node's output before it is computed, or () if it is unknown."""
        if node.op_type in ("ConstantOfShape", "Expand"):
            return tuple(int(size) for size in self.values[node.input[-1]].reshape(-1))
        if not _is_fixed(self.types.get(node.output[0])):
            self._infer(node)
        kind = self.types.get(node.output[0])
        return _spec(kind).shape if _is_fixed(kind) else ()

    def _infer(self, node: Message) -> None:
        """Infer the types of one node's outputs from its inputs' types and known values."""
        nested = any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
        names = self.types if nested else [name for name in node.input if name]
        if any(name not in self.types for name in node.input if name):
            return
        data = {
            name: onnx.numpy_helper.from_array(self.values[name], name) for name in node.input if name in self.values
        }
        imports = [onnx.helper.make_opsetid(domain, version) for domain, version in self.versions.items()]
        try:
            schema = onnx.defs.get_schema(node.op_type, self.versions.get(node.domain, 1), node.domain)
            inferred = onnx.shape_inference.infer_node_outputs(
                schema, node, {name: self.types[name] for name in names}, data, opset_imports=imports
            )
        except _UNKNOWN:
            return
        self.types.update({name: kind for name, kind in inferred.items() if _is_fixed(kind) or name not in self.types})


def _is_fixed(kind: Message | None) -> bool:
    """Return whether a type is a tensor's, and all its dimensions are numbers."""
    if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return False
    return all(dim.HasField("dim_value") for dim in kind.tensor_type.shape.dim)


def _spec(kind: Message) -> TensorSpec:
    name = onnx.TensorProto.DataType.Name(kind.tensor_type.elem_type).lower()
    dtype = {"float": "float32", "double": "float64"}.get(name, name if name in BYTES_PER_ELEMENT else "uint8")
    return TensorSpec(tuple(dim.dim_value for dim in kind.tensor_type.shape.dim), dtype)
