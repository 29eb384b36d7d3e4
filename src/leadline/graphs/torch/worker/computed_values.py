"""Values of tensors on the simulated GPU, calculated on the host, for a script whose course they decide.

Every storage of a tensor without data gets one of the same size on the host, on which each op runs too. What an op
without a kernel on the host returns stays unknown, as does what is calculated from it; its gradient is taken as zero.
"""

import contextlib
import weakref
from functools import partial
from typing import Any, Dict, Optional, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map

from leadline.graphs.torch.worker import fake_tensors, unknown_shapes
from leadline.graphs.torch.worker.ops import OpTraits
from leadline.graphs.torch.worker.recorder import Recorder
from leadline.graphs.torch.worker.session import ScriptFailure, TraceSession

ATTENTION = "_scaled_dot_product_"
EMPTY = ("empty", "new_empty")
"""Beginnings of the names of ops whose result has no values yet."""
MOST_WEIGHTS, MOST_BYTES = 2 << 30, 4 << 30
"""Bytes of weights, and memory of the simulated device, beyond which the host holds no values."""
TENSOR_TYPES = (torch.TensorType, torch.ListType)
_storages: Dict[int, Any] = {}
"""Storages on the host by the identity of those without data."""


class _UnknownValue(Exception):
    """The values of a tensor are not known."""


def asks_values(session: TraceSession, *, has_failed: bool) -> bool:
    """Return whether values may change what a script did in a trace without, and are few enough for the host."""
    return (session.has_assumed or (has_failed and fake_tensors.GUESSED[0])) and weights_fit(session)


def weights_fit(session: TraceSession) -> bool:
    """Return whether the weights of a script are few enough for the host."""
    references = (reference() for reference in session.recorder.parameters)
    weights = [weight for weight in references if weight is not None and not is_lazy(weight)]
    return bool(sum(weight.numel() * weight.element_size() for weight in weights) <= MOST_WEIGHTS)


def value_of(tensor: Any) -> Optional[torch.Tensor]:
    """Return the values of a tensor, as a view of all that shares its memory; ``None`` if they are not known."""
    storage = _storages.get(tensor.untyped_storage()._cdata)
    if storage is None:
        return None
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        value = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return value.set_(storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())


def _remember(tensor: Any, value: torch.Tensor) -> None:
    """Give a tensor values of the same shape, and all later ones that share its memory."""
    storage = tensor.untyped_storage()
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        held = torch.UntypedStorage(storage.nbytes(), device="cpu")
        view = torch.empty(0, dtype=tensor.dtype, device="cpu")
        view.set_(held, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        view.copy_(value.detach())
    _keep(storage, held)


def _keep(storage: Any, held: Any) -> None:
    key = storage._cdata
    if key not in _storages:
        weakref.finalize(storage, partial(_storages.pop, key, None))
    _storages[key] = held


class ValuedRecorder(Recorder):
    """Records ops on tensors without data, and runs them on values of the host, too."""

    def __init__(self, session: TraceSession) -> None:
        super().__init__(session)
        fake_tensors.computed_value = value_of

    def _needs_no_values(self, name: str, args: Any) -> bool:
        return False

    def give_values(self, tensor: Any, values: Any) -> None:
        """Give a tensor without data the values of one that it replaces."""
        _remember(tensor, values)

    def give_results(self, tensors: Any, run: Any, args: Any, kwargs: Dict[str, Any]) -> None:
        """Give results what a function returns for the values of its arguments."""
        with contextlib.suppress(_UnknownValue), torch.no_grad():
            for tensor, value in zip(tensors, run(*tree_map(_on_host, args), **tree_map(_on_host, kwargs))):  # noqa: B905
                _remember(tensor, value)

    def give_zeros(self, tensors: Any) -> None:
        """Give gradients that no kernel of the host can calculate the value zero."""
        for tensor in tensors:
            _remember(tensor, torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu"))

    def _run_fake(self, func: Any, traits: OpTraits, types: Sequence[type], args: Any, kwargs: Dict[str, Any]) -> Any:
        out = super()._run_fake(func, traits, types, args, kwargs)
        if self.live_bytes > MOST_BYTES:
            raise ScriptFailure("the values of its tensors do not fit into the memory of a trace")
        if traits.custom:
            _forget(args, out, traits)
        elif out is not NotImplemented:
            _compute(func, traits, args, kwargs, out)
        return out

    def _carry_out(self, func: Any, traits: OpTraits, types: Sequence[type], args: Any, kwargs: Dict[str, Any]) -> Any:
        if not any(isinstance(kind.type, TENSOR_TYPES) for kind in func._schema.returns) and func._schema.returns:
            with contextlib.suppress(Exception):  # whatever a kernel raises, the value is unknown
                return _run(func, args, kwargs)
        is_shaped_by_values = torch.Tag.dynamic_output_shape in func.tags and traits.name not in unknown_shapes.RULED
        out = _results_of(func, args, kwargs) if is_shaped_by_values else NotImplemented
        return super()._carry_out(func, traits, types, args, kwargs) if out is NotImplemented else out

    def _to_copy(self, func: Any, traits: OpTraits, types: Sequence[type], args: Any, kwargs: Dict[str, Any]) -> Any:
        out = super()._to_copy(func, traits, types, args, kwargs)
        return out if isinstance(out, FakeTensor) else out.clone()  # the host's copy has memory of its own


def _compute(func: Any, traits: OpTraits, args: Any, kwargs: Dict[str, Any], out: Any) -> None:
    """Run an op on the values of its arguments, and remember those of its results."""
    results = [result for result in tree_leaves(out) if isinstance(result, FakeTensor)]
    if not traits.mutated and all(result.untyped_storage()._cdata in _storages for result in results):
        return
    try:
        found = _attend(func, args, kwargs) if traits.name.startswith(ATTENTION) else _run(func, args, kwargs)
    except Exception:  # noqa: BLE001 - any error of a kernel means that it cannot run on the host
        _forget(args, out, traits)
        if not traits.name.endswith("_backward"):
            return
        found = [torch.zeros(result.shape, dtype=result.dtype, device="cpu") for result in results]
    values = [value for value in tree_leaves(found) if isinstance(value, torch.Tensor)]
    for result, value in zip(results, values):  # noqa: B905 - Python 3.9 has no strict
        if result.untyped_storage()._cdata not in _storages and result.shape == value.shape:
            _remember(result, value)


def _attend(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """Return the result of an attention kernel of the GPU, without what it keeps for its backward pass."""
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, tree_map(_on_host, args))), **tree_map(_on_host, kwargs)}  # noqa: B905
    parts = [given[name] for name in ("query", "key", "value")]
    attend = torch.ops.aten._scaled_dot_product_attention_math
    return attend(*parts, given.get("attn_bias"), 0.0, given.get("is_causal", False), scale=given.get("scale"))[:1]


def _run(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """Return the result of an op on values of the host.

    Raises:
        _UnknownValue: An argument has none.
    """
    host_args, host_kwargs = tree_map(_on_host, args), tree_map(_on_host, kwargs)
    result = func(*host_args, **host_kwargs)
    if func._schema.name.partition("::")[2].startswith(EMPTY):
        result.zero_()
    return result


def _results_of(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """Return the results of an op whose shape depends on values, or ``NotImplemented`` if these are unknown."""
    try:
        values = _run(func, args, kwargs)
    except Exception:  # noqa: BLE001 - any error of a kernel means that it cannot run on the host
        return NotImplemented
    source = next(arg for arg in tree_leaves((args, kwargs)) if isinstance(arg, FakeTensor))
    device = fake_tensors.true_device(source)

    def without_data(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        result = fake_tensors.empty_tensor(value.shape, value.dtype, device)
        _remember(result, value)
        return result

    return tree_map(without_data, values)


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if not isinstance(value, FakeTensor):
        return value
    known = value_of(value)
    if known is None:
        raise _UnknownValue
    return known


def _forget(args: Any, out: Any, traits: OpTraits) -> None:
    """Forget what an op has overwritten that could not run."""
    written = [args[place] for place in traits.mutated if isinstance(place, int) and place < len(args)]
    for tensor in tree_leaves((written, out if traits.mutated else ())):
        if isinstance(tensor, FakeTensor):
            _storages.pop(tensor.untyped_storage()._cdata, None)
