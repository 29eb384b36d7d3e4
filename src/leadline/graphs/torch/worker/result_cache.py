"""Answer an op seen before on the same shapes without asking PyTorch's fake tensors again.

A network repeats its layers, and working out a result's shape takes PyTorch longer than anything Leadline does with it.
What is learned is the shape of results and what they alias; an op that depends on values is never learned.
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from leadline.graphs.torch.worker import fake_tensors

PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
RESHAPING = {"resize_", "resize_as_", "set_", "t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "as_strided_"}
MOST_ENTRIES = 50_000
ASK, LEARN, PASS = "ask", "learn", "pass"

Recipe = Callable[[Any], Any]


class Uncacheable(Exception):
    """An argument has no description that would stand for all tensors like it."""


class ResultCache:
    """Results of ops by the op and the description of its arguments."""

    def __init__(self) -> None:
        self._recipes: Dict[Tuple[Any, ...], Recipe] = {}
        self._never = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
        self._ways: Dict[Any, str] = {}

    def carry_out(self, func: Any, types: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
        """Return the result of an op on fake tensors, as ``FakeTensorMode.dispatch`` would."""
        way = self._ways.get(func) or self._ways.setdefault(func, self._way(func))
        if way == PASS:
            return None
        if way == ASK or torch.is_inference_mode_enabled():
            return fake_tensors.FAKE_MODE.dispatch(func, types, args, kwargs)
        try:
            named = _described(tuple(kwargs.items())) if kwargs else ()
            key = (func, torch.get_default_dtype(), _described(args), named)
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

    def _way(self, func: Any) -> str:
        """Return what to do about an op: ask each time, learn its results, or pass over it.

        Of an op that only writes values into lists of tensors, as an optimizer does, no shape follows.
        """
        name = func._schema.name.partition("::")[2]
        if func.namespace != "aten" or name in RESHAPING or not self._never.isdisjoint(func.tags):
            return ASK
        return PASS if name.startswith("_foreach_") and name.endswith("_") and not func._schema.returns else LEARN


def _described(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        if value.layout is not torch.strided or value.dtype.is_complex or value._has_symbolic_sizes_strides:
            raise Uncacheable
        if value.constant is not None:  # PyTorch follows its value, and forgets it when it is written to
            raise Uncacheable
        place = value.fake_device
        return (value.shape, value.stride(), value.storage_offset(), value.dtype, place.type, place.index)
    if isinstance(value, PLAIN):
        return (value, type(value))
    if isinstance(value, (list, tuple)):
        return tuple([_described(one) for one in value])
    raise Uncacheable


def _recipe(args: Any, kwargs: Dict[str, Any], out: Any) -> Optional[Recipe]:
    """Return how to make such a result again from arguments of the same description."""
    if out is None:
        return lambda args: None
    sources = [one for one in args if isinstance(one, FakeTensor)]
    if any(out is one for one in sources):
        place = next(i for i, one in enumerate(args) if one is out)
        return lambda args: args[place]
    if isinstance(out, FakeTensor):
        return _one(args, kwargs, out)
    if isinstance(out, (list, tuple)):
        fresh = [_storage(one) for one in out if isinstance(one, FakeTensor)]
        if len(set(fresh)) < len(fresh) and not set(fresh) & {_storage(one) for one in sources}:
            return None  # several results in one new piece of memory
        makers: List[Recipe] = []
        for one in out:
            maker = _one(args, kwargs, one) if isinstance(one, FakeTensor) else None
            if one is None:
                maker = _nothing
            if maker is None:
                return None
            makers.append(maker)
        collect = getattr(type(out), "_make", type(out))  # what decompositions return are named tuples
        return lambda args: collect([make(args) for make in makers])
    return None


def _nothing(_: Any) -> None:
    """Stand for an output that is not there."""


def _one(args: Any, kwargs: Dict[str, Any], out: Any) -> Optional[Recipe]:
    shape, stride, dtype, device = tuple(out.shape), out.stride(), out.dtype, out.fake_device
    if out.layout is not torch.strided or dtype.is_complex or out._has_symbolic_sizes_strides:
        return None
    storage = out.untyped_storage()._cdata
    shared = [i for i, one in enumerate(args) if isinstance(one, torch.Tensor) and _storage(one) == storage]
    if shared:
        return _view(shared[0], shape, stride, out.storage_offset()) if args[shared[0]].dtype == dtype else None
    if any(_holds(one, storage) for one in (*args, *kwargs.values())) or out.storage_offset():
        return None
    return lambda _: fake_tensors.empty_tensor(shape, dtype, device, stride)


def _view(place: int, shape: Any, stride: Any, offset: int) -> Recipe:
    def make(args: Any) -> Any:
        source = args[place]
        with torch._C._DisableTorchDispatch():
            meta = torch.empty(0, dtype=source.dtype, device="meta")
            meta.set_(source.untyped_storage(), offset, shape, stride)
            return fake_tensors.wrap_meta(meta, source.fake_device)

    return make


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _holds(value: Any, storage: int) -> bool:
    """Whether a list among the arguments holds the storage: such a result is not made again."""
    if isinstance(value, torch.Tensor):
        return _storage(value) == storage
    return isinstance(value, (list, tuple)) and any(_holds(one, storage) for one in value)
