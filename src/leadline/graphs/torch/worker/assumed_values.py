"""Values for tensors that have none: what ``.item()``, ``.cpu()``, masks and data-dependent shapes give in a trace."""

from typing import Any, Dict, Optional, Sequence, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from leadline.graphs.torch.worker import fake_tensors

REAL_LIMIT_BYTES = 64 << 20
"""Above this size a tensor brought back to the host stays without data."""

KEPT_LIMIT_BYTES = 4 << 20
"""Up to this size the values of a host tensor are remembered when it is copied to the device."""

VIEWS = {"detach", "alias", "select", "unbind", "unsqueeze", "squeeze", "view", "_unsafe_view", "slice", "expand", "t"}
"""Ops whose result shows values of their input, whatever they are."""

VALUE_OPS = VIEWS | {"max", "min", "amax", "amin", "sum", "any", "all", "eq", "ne", "lt", "gt", "le", "ge"}
"""Ops whose result is worked out where what they read is known (``labels.max().item() + 1`` classes)."""

aten = torch.ops.aten

UNIQUE = (aten._unique2, aten._unique, aten.unique_dim, aten.unique_consecutive)
INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index)


def scalar_value(tensor: torch.Tensor) -> Any:
    """Return the value ``.item()`` gives: the true one if known, else False, 1 or 1.0."""
    known = known_value(tensor)
    if known is not None and known.numel() == 1:
        return known.item()
    if tensor.dtype == torch.bool:
        return bool(tensor.__dict__.get("_truth", False))
    if tensor.dtype.is_complex:
        return 1 + 0j
    return 1.0 if tensor.dtype.is_floating_point else 1


def host_copy(tensor: torch.Tensor, dtype: Any = None) -> torch.Tensor:
    """Return a host tensor in place of a device tensor: its known values, else zeros; without data if it is large."""
    dtype = dtype or tensor.dtype
    known = known_value(tensor)
    if known is not None:
        return known.to(dtype)
    if tensor.numel() * tensor.element_size() > REAL_LIMIT_BYTES or tensor.__dict__.get("_is_param"):
        return fake_tensors.empty_like(tensor, torch.device("cpu"), dtype)
    if tensor.dim() == 0:
        return torch.full((), scalar_value(tensor), dtype=dtype)
    return torch.zeros(tensor.shape, dtype=dtype)


def known_value(tensor: torch.Tensor) -> Any:
    """Return the host tensor a device tensor was copied from, if it is remembered and unchanged."""
    return tensor.__dict__.get("_known") if isinstance(tensor, FakeTensor) else tensor


def remember_value(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Remember the host values of a device tensor."""
    if not isinstance(host, FakeTensor) and host.numel() * host.element_size() <= KEPT_LIMIT_BYTES:
        tensor.__dict__["_known"] = host.detach()


def infer_value(func: Any, args: Any, out: Any) -> None:
    """Remember the result of an op on known integers, or of a view of anything known."""
    if known_value(args[0]) is None:
        return
    values = [known_value(one) if isinstance(one, torch.Tensor) else one for one in args]
    tensors = [one for one in values if isinstance(one, torch.Tensor)]
    view = func._schema.name.partition("::")[2] in VIEWS
    if any(isinstance(one, FakeTensor) or (one.dtype.is_floating_point and not view) for one in tensors):
        return
    if any(one is None for one in values):
        return
    if isinstance(out, FakeTensor):
        remember_value(out, func(*values))
    elif view:
        for place, known in enumerate(func(*values)):
            remember_value(out[place], known)


def assume_result(func: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> Any:
    """Return the result of an op whose shape or value depends on data, or ``NotImplemented`` if it is none of ours.

    True values are used where they are known; otherwise every mask selects everything and all values are distinct.
    """
    packet = func._overloadpacket
    if packet is aten._local_scalar_dense:
        return scalar_value(args[0])
    if packet in (aten.equal, aten.is_nonzero):
        return True
    if packet is aten.nonzero:
        return _positions(args[0])
    if packet is aten.masked_select:
        return _fresh((_selected(args[1]),), args[0])
    if packet in UNIQUE:
        return _unique(func, args)
    if packet in INDEXING:
        places = [i for one in args[1] for i in _as_positions(one)]
        with fake_tensors.FAKE_MODE:
            return func(args[0], places, *args[2:], **kwargs)
    if packet is aten.repeat_interleave:
        counts = known_value(args[0])
        total = int(counts.sum()) if counts is not None else 2 * args[0].numel()
        return _fresh((kwargs.get("output_size") or total,), args[0], torch.int64)
    if packet is aten._pack_padded_sequence:
        return _packed(*args, **kwargs)
    if packet is aten.bincount:
        return _fresh((max(1, args[2] if len(args) > 2 else kwargs.get("minlength", 0)),), args[0], torch.int64)
    return NotImplemented


def assumption_note(func: Any, args: Sequence[Any]) -> Optional[str]:
    """Return the sentence for the user about a result whose size ``assume_result`` could not know; ``None`` if it could."""
    packet = func._overloadpacket
    if packet is aten.masked_select:
        asked = [args[1]]
    elif packet in INDEXING:
        asked = [one for one in args[1] if one is not None and one.dtype in (torch.bool, torch.uint8)]
    elif packet in (aten.nonzero, aten.repeat_interleave, *UNIQUE):
        asked = [args[0]]
    else:
        return None
    if all(known_value(one) is not None for one in asked):
        return None
    if packet is aten.repeat_interleave:
        return f"how often {func} repeats depends on the data: twice was assumed; a real step may hold more"
    return f"how much {func} selects depends on the data: all was assumed, so that a real step holds as much or less"


def _fresh(shape: Tuple[int, ...], source: torch.Tensor, dtype: Any = None) -> torch.Tensor:
    return fake_tensors.empty_tensor(shape, dtype or source.dtype, fake_tensors.true_device(source))


def _packed(padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool = False) -> Any:
    """Return the packed rows and the batch size at each step; lengths are on the host, so they are known."""
    longest = padded.shape[1 if batch_first else 0]
    known = known_value(lengths)
    counts = [longest] * lengths.numel() if known is None else [int(one) for one in known.tolist()]
    sizes = torch.tensor([sum(count > step for count in counts) for step in range(max(counts))])
    return _fresh((sum(counts), *padded.shape[2:]), padded), sizes


def _selected(mask: torch.Tensor) -> int:
    known = known_value(mask)
    return mask.numel() if known is None else int(torch.count_nonzero(known))


def _positions(mask: torch.Tensor) -> torch.Tensor:
    return _fresh((_selected(mask), mask.dim()), mask, torch.int64)


def _as_positions(index: Any) -> Sequence[Any]:
    """Turn a mask into one position list for each of its dimensions; other indices stay."""
    if index is None or index.dtype not in (torch.bool, torch.uint8):
        return [index]
    return [_fresh((_selected(index),), index, torch.int64) for _ in range(index.dim())]


def _unique(func: Any, args: Sequence[Any]) -> Any:
    values = args[0]
    known = known_value(values)
    if func._overloadpacket is aten.unique_dim:
        size = values.shape[args[1]]
        shape = tuple(values.shape)
    else:
        size = values.numel() if known is None else int(torch.unique(known).numel())
        shape = (size,)
    flat = values.shape if len(shape) == 1 else (size,)
    found = [_fresh(shape, values), _fresh(flat, values, torch.int64), _fresh((size,), values, torch.int64)]
    return tuple(found[: len(func._schema.returns)])
