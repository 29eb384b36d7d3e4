"""Read the schema of an op and the tensors among its arguments."""

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import torch

CONVOLUTIONS = {"convolution", "convolution_backward", "cudnn_convolution", "_convolution"}
SILENT = {
    "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "resize_", "set_", "lift_fresh", "lift",
    "record_stream", "is_same_size", "device", "is_pinned", "_pin_memory", "_local_scalar_dense", "is_nonzero",
    "detach", "alias", "_assert_async", "_assert_tensor_metadata", "_fused_sdp_choice", "sym_size", "resize_as_",
    "_has_compatible_shallow_copy_type", "_functional_sym_constrain_range",
}  # fmt: skip
"""Ops that launch no kernel."""


class OpTraits(NamedTuple):
    """Properties of an op from its schema, read once.

    Attributes:
        silent: The op launches no kernel.
        fresh: It returns new memory.
        mutated: Positions of the arguments it writes to.
        mutated_names: Names of the arguments it writes to.
        takes_device: It has an argument ``device``.
    """

    name: str
    silent: bool
    fresh: bool
    mutated: Tuple[int, ...]
    mutated_names: Tuple[str, ...]
    takes_device: bool


def read_traits(func: Any) -> OpTraits:
    """Return the properties of an op."""
    schema = func._schema
    name = schema.name.partition("::")[2]
    mutated = [i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    fresh = any(r.alias_info is None for r in schema.returns) and bool(schema.returns)
    view = not mutated and bool(schema.returns) and all(r.alias_info is not None for r in schema.returns)
    return OpTraits(
        name=name,
        silent=view or name in SILENT or schema.name.startswith("prim::") or name == "_unsafe_view",
        fresh=fresh,
        mutated=tuple(mutated),
        mutated_names=tuple(schema.arguments[i].name for i in mutated),
        takes_device=any(a.name == "device" for a in schema.arguments),
    )


def argument_tensors(args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Tuple[Any, torch.Tensor]]:
    """Return every tensor with the position or name of the argument that holds it."""
    tensors: List[Tuple[Any, torch.Tensor]] = []
    for argument, value in (*enumerate(args), *kwargs.items()):
        if isinstance(value, torch.Tensor):
            tensors.append((argument, value))
        elif isinstance(value, (list, tuple)):
            tensors.extend((argument, element) for element in value if isinstance(element, torch.Tensor))
    return tensors


def channels_last(args: Sequence[Any]) -> bool:
    """Return whether an image or a filter is stored channels last, which selects another kernel."""
    images = [
        tensor
        for tensor in args
        if isinstance(tensor, torch.Tensor) and tensor.dim() == 4 and not tensor.is_contiguous()
    ]
    return any(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in images)


def result_tensors(out: Any) -> List[torch.Tensor]:
    """Return the tensors of a result, however nested."""
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, (list, tuple)):
        return [tensor for element in out for tensor in result_tensors(element)]
    return []


def holds_tensors(value: Any) -> bool:
    """Return whether an argument is a tensor, or a list with one."""
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, (list, tuple)) and any(isinstance(element, torch.Tensor) for element in value)
