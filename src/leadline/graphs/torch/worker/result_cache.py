"""Cache of op results by the shapes of the arguments, in front of PyTorch's fake tensors.

A network repeats its layers, and PyTorch takes longer to infer the shape of a result than Leadline needs for all the
rest. The cache stores the shapes of results and what they alias. Ops that depend on values are never cached.
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from leadline.graphs.torch.worker import fake_tensors

PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
RESHAPING = {"resize_", "resize_as_", "set_", "t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "as_strided_"}
MOST_ENTRIES = 50_000
COMPUTE, CACHE, SKIP = "compute", "cache", "skip"

Recipe = Callable[[Any], Any]


class Uncacheable(Exception):
    """An argument has no description that fits all tensors like it."""


class ResultCache:
    """Recipes for results, by op and description of its arguments."""

    def __init__(self) -> None:
        self._recipes: Dict[Tuple[Any, ...], Recipe] = {}
        self._never = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
        self._policies: Dict[Any, str] = {}

    def carry_out(self, func: Any, types: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
        """Return the result of an op on fake tensors, as ``FakeTensorMode.dispatch`` would."""
        policy = self._policies.get(func) or self._policies.setdefault(func, self._policy(func))
        if policy == SKIP:
            return None
        if policy == COMPUTE or torch.is_inference_mode_enabled():
            return fake_tensors.FAKE_MODE.dispatch(func, types, args, kwargs)
        try:
            named = _describe(tuple(kwargs.items())) if kwargs else ()
            key = (func, torch.get_default_dtype(), _describe(args), named)
            recipe = self._recipes.get(key)
        except (Uncacheable, TypeError):
            return fake_tensors.FAKE_MODE.dispatch(func, types, args, kwargs)
        if recipe is not None:
            return recipe(args)
        out = fake_tensors.FAKE_MODE.dispatch(func, types, args, kwargs)
        recipe = _recipe(args, kwargs, out)
        if recipe is not None and len(self._recipes) < MOST_ENTRIES:
            self._recipes[key] = recipe
        return out

    def _policy(self, func: Any) -> str:
        """Return how to treat an op: compute it each time, cache its results, or skip it.

        An op that only writes values into lists of tensors, as an optimizer does, has no result to infer.
        """
        name = func._schema.name.partition("::")[2]
        if func.namespace != "aten" or name in RESHAPING or not self._never.isdisjoint(func.tags):
            return COMPUTE
        return SKIP if name.startswith("_foreach_") and name.endswith("_") and not func._schema.returns else CACHE


def _describe(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        if value.layout is not torch.strided or value.dtype.is_complex or value._has_symbolic_sizes_strides:
            raise Uncacheable
        if value.constant is not None:  # PyTorch tracks its value, and drops it at the next write
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
    if out is None:
        return lambda args: None
    sources = [tensor for tensor in args if isinstance(tensor, FakeTensor)]
    if any(out is tensor for tensor in sources):
        position = next(i for i, tensor in enumerate(args) if tensor is out)
        return lambda args: args[position]
    if isinstance(out, FakeTensor):
        return _tensor_recipe(args, kwargs, out)
    if isinstance(out, (list, tuple)):
        storages = [_storage(tensor) for tensor in out if isinstance(tensor, FakeTensor)]
        if len(set(storages)) < len(storages) and not set(storages) & {_storage(tensor) for tensor in sources}:
            return None  # several results share one new piece of memory
        makers: List[Recipe] = []
        for tensor in out:
            maker = _tensor_recipe(args, kwargs, tensor) if isinstance(tensor, FakeTensor) else None
            if tensor is None:
                maker = _no_output
            if maker is None:
                return None
            makers.append(maker)
        collect = getattr(type(out), "_make", type(out))  # decompositions return named tuples
        return lambda args: collect([make(args) for make in makers])
    return None


def _no_output(_: Any) -> None:
    """Return an absent output."""


def _tensor_recipe(args: Any, kwargs: Dict[str, Any], out: Any) -> Optional[Recipe]:
    shape, stride, dtype, device = tuple(out.shape), out.stride(), out.dtype, out.fake_device
    if out.layout is not torch.strided or dtype.is_complex or out._has_symbolic_sizes_strides:
        return None
    storage = out.untyped_storage()._cdata
    aliases = [
        i for i, argument in enumerate(args) if isinstance(argument, torch.Tensor) and _storage(argument) == storage
    ]
    if aliases:
        return _view(aliases[0], shape, stride, out.storage_offset()) if args[aliases[0]].dtype == dtype else None
    if any(_holds(argument, storage) for argument in (*args, *kwargs.values())) or out.storage_offset():
        return None
    return lambda _: fake_tensors.empty_tensor(shape, dtype, device, stride)


def _view(position: int, shape: Any, stride: Any, offset: int) -> Recipe:
    def make(args: Any) -> Any:
        source = args[position]
        with torch._C._DisableTorchDispatch():
            meta = torch.empty(0, dtype=source.dtype, device="meta")
            meta.set_(source.untyped_storage(), offset, shape, stride)
            return fake_tensors.wrap_meta(meta, source.fake_device)

    return make


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _holds(value: Any, storage: int) -> bool:
    """Return whether the argument, or a list in it, holds the storage. Such a result is not cached."""
    if isinstance(value, torch.Tensor):
        return _storage(value) == storage
    return isinstance(value, (list, tuple)) and any(_holds(element, storage) for element in value)
