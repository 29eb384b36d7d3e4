"""Properties of ops from their schemas, the tensors among their arguments, and a cache of their results."""

import functools
import json
import operator
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from leadline.graphs.torch.worker import custom_ops, fake_tensors

TABLES: Dict[str, Any] = json.loads(Path(__file__).with_name("op_tables.json").read_text(encoding="utf-8"))
"""Names of ops by their kind, by arithmetic, by how CUDA's autocast treats them, and those that launch no kernel."""
SILENT = frozenset(TABLES["silent"])
CONVOLUTIONS = {"convolution", "convolution_backward", "cudnn_convolution", "_convolution"}


class OpTraits(NamedTuple):
    """Properties of an op from its schema, read once.

    A ``silent`` op launches no kernel, and a ``fresh`` one returns new memory. ``mutated`` are the positions and names
    of the arguments it writes to. A ``custom`` one is not PyTorch's.
    """

    name: str
    silent: bool
    fresh: bool
    mutated: Tuple[Any, ...]
    takes_device: bool
    custom: bool


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
        mutated=(*mutated, *(schema.arguments[i].name for i in mutated)),
        takes_device=any(a.name == "device" for a in schema.arguments),
        custom=custom_ops.is_custom(func),
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
    images = [tensor for tensor in args if isinstance(tensor, torch.Tensor) and tensor.dim() == 4]
    last = torch.channels_last
    return any(not image.is_contiguous() and image.is_contiguous(memory_format=last) for image in images)


def result_tensors(out: Any) -> List[torch.Tensor]:
    """Return the tensors of a result of an op or a model, however nested."""
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, dict):
        out = list(out.values())
    if isinstance(out, (list, tuple)):
        return [tensor for element in out for tensor in result_tensors(element)]
    return []


def has_mask(indices: Sequence[Any]) -> bool:
    """Return whether some of the indices of a tensor are masks."""
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
RESHAPING = {"resize_", "resize_as_", "set_", "t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "as_strided_"}
INDEX = torch.ops.aten.index.Tensor
"""An op whose result has a shape that depends on data only if it is given masks."""
UNCACHED = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
MOST_ENTRIES = 50_000
COMPUTE, CACHE, SKIP = "compute", "cache", "skip"

Recipe = Callable[[Any], Any]


class Uncacheable(Exception):
    """An argument has no description that fits all tensors like it."""


class ResultCache:
    """Cache of the shapes of results and what they alias, in front of PyTorch's fake tensors."""

    # A network repeats its layers, and PyTorch takes longer to infer the shape of a result than Leadline needs for
    # all the rest. Ops that depend on values are never cached.

    def __init__(self) -> None:
        self._recipes: Dict[Tuple[Any, ...], Recipe] = {}

    def carry_out(self, func: Any, types: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
        """Return the result of an op on fake tensors, as ``FakeTensorMode.dispatch`` would."""
        policy = _policy(func)
        if policy == SKIP:
            # As the kernels on a GPU do, so that a backward pass through changed weights fails here too.
            for tensor in args[0]:
                torch.autograd.graph.increment_version(tensor)
            return None
        if func is INDEX and not has_mask(args[1]):
            policy = CACHE
        if policy == COMPUTE or torch.is_inference_mode_enabled():
            return _compute(func, types, args, kwargs)
        try:
            named = _describe(tuple(kwargs.items())) if kwargs else ()
            key = (func, torch.get_default_dtype(), _describe(args), named)
            recipe = self._recipes.get(key)
        except (Uncacheable, TypeError):
            return _compute(func, types, args, kwargs)
        if recipe is not None:
            return recipe(args)
        out = fake_tensors.FAKE_MODE.dispatch(func, types, args, kwargs)
        recipe = _recipe(args, kwargs, out)
        if recipe is not None and len(self._recipes) < MOST_ENTRIES:
            self._recipes[key] = recipe
        return out


def _compute(func: Any, types: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    # A tensor with data has a history if a result without data was written into it. PyTorch refuses to make a fake of
    # such a tensor, and its history does not matter here, below autograd.
    return fake_tensors.FAKE_MODE.dispatch(func, types, tuple(map(_without_history, args)), kwargs)


def _without_history(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return list(map(_without_history, value))
    return value.detach() if type(value) is torch.Tensor and not value.is_leaf else value


@functools.cache
def _policy(func: Any) -> str:
    """Return how to treat an op: compute it each time, cache its results, or skip it."""
    name = func._schema.name.partition("::")[2]
    if func.namespace != "aten" or name in RESHAPING or not UNCACHED.isdisjoint(func.tags):
        return COMPUTE
    # An op that only writes values into lists of tensors, as an optimizer does, has no result to infer.
    return SKIP if name.startswith("_foreach_") and name.endswith("_") and not func._schema.returns else CACHE


def _describe(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        # PyTorch tracks the value of a constant, and drops it at the next write.
        if not _is_plain(value) or value.constant is not None:
            raise Uncacheable
        device = value.fake_device
        return (value.shape, value.stride(), value.storage_offset(), value.dtype, device.type, device.index)
    if isinstance(value, PLAIN):
        return (value, type(value))
    if isinstance(value, (list, tuple)):
        return tuple([_describe(element) for element in value])
    raise Uncacheable


def _recipe(args: Any, kwargs: Dict[str, Any], out: Any) -> Optional[Recipe]:
    """Return a recipe for such a result from arguments of the same description, or ``None``."""
    position = next((i for i, tensor in enumerate(args) if tensor is out and isinstance(tensor, FakeTensor)), None)
    if position is not None:
        return operator.itemgetter(position)
    if not isinstance(out, (list, tuple)):
        return _tensor_recipe(args, kwargs, out)
    storages = [_storage(tensor) for tensor in out if isinstance(tensor, FakeTensor)]
    if len(set(storages)) < len(storages) and not any(_holds(args, storage) for storage in storages):
        return None  # several results share one new piece of memory
    makers = [maker for tensor in out if (maker := _tensor_recipe(args, kwargs, tensor)) is not None]
    if len(makers) < len(out):
        return None
    collect = getattr(type(out), "_make", type(out))  # decompositions return named tuples
    return lambda args: collect([make(args) for make in makers])


def _tensor_recipe(args: Any, kwargs: Dict[str, Any], out: Any) -> Optional[Recipe]:
    if not isinstance(out, FakeTensor):
        return None if out is not None else lambda _: None
    shape, stride, dtype, device = tuple(out.shape), out.stride(), out.dtype, out.fake_device
    if not _is_plain(out):
        return None
    storage = _storage(out)
    tensors = {i: argument for i, argument in enumerate(args) if isinstance(argument, torch.Tensor)}
    source = next((i for i, tensor in tensors.items() if _storage(tensor) == storage), None)
    if source is not None:
        return _view(source, shape, stride, out.storage_offset()) if args[source].dtype == dtype else None
    if any(_holds(argument, storage) for argument in (*args, *kwargs.values())) or out.storage_offset():
        return None
    return lambda _: fake_tensors.empty_tensor(shape, dtype, device, stride)


def _is_plain(tensor: Any) -> bool:
    is_strided = tensor.layout is torch.strided and not tensor.dtype.is_complex
    return is_strided and not tensor._has_symbolic_sizes_strides


def _view(position: int, shape: Any, stride: Any, offset: int) -> Recipe:
    def make(args: Any) -> Any:
        source = args[position]
        with torch._C._DisableTorchDispatch():
            meta = torch.empty(0, dtype=source.dtype, device="meta")
            meta.set_(source.untyped_storage(), offset, shape, stride)
            return FakeTensor(fake_tensors.FAKE_MODE, meta, source.fake_device)

    return make


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _holds(value: Any, storage: int) -> bool:
    """Return whether the argument, or a list in it, holds the storage."""
    if isinstance(value, torch.Tensor):
        return _storage(value) == storage
    return isinstance(value, (list, tuple)) and any(_holds(element, storage) for element in value)
