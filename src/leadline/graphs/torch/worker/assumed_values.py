"""Values for tensors without data, as ``.item()``, ``.cpu()``, masks and data-dependent shapes need them."""

from typing import Any, Dict, Optional, Sequence, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from leadline.graphs.torch.worker import fake_tensors

REAL_LIMIT_BYTES = 64 << 20
"""Above this size a tensor brought back to the host stays without data."""

KEPT_LIMIT_BYTES = 4 << 20
"""Up to this size the values of a host tensor are remembered when it is copied to the device."""

VIEWS = {"detach", "alias", "select", "unbind", "unsqueeze", "squeeze", "view", "_unsafe_view", "slice", "expand", "t"}
"""Ops whose result shows values of their input."""

VALUE_OPS = VIEWS | {"max", "min", "amax", "amin", "sum", "any", "all", "eq", "ne", "lt", "gt", "le", "ge"}
"""Ops whose result is computed where their input is known (``labels.max().item() + 1`` classes)."""

aten = torch.ops.aten

UNIQUE = (aten._unique2, aten._unique, aten.unique_dim, aten.unique_consecutive)
INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index)


def scalar_value(tensor: torch.Tensor) -> Any:
    """Return the value of ``.item()``: the real one if known, else False, 1 or 1.0."""
    value = known_value(tensor)
    if value is not None and value.numel() == 1:
        return value.item()
    if tensor.dtype == torch.bool:
        return bool(tensor.__dict__.get("_truth", False))
    if tensor.dtype.is_complex:
        return 1 + 0j
    return 1.0 if tensor.dtype.is_floating_point else 1


def host_copy(tensor: torch.Tensor, dtype: Any = None) -> torch.Tensor:
    """Return a host tensor for a device tensor: its known values, else zeros. A large one stays without data."""
    dtype = dtype or tensor.dtype
    value = known_value(tensor)
    if value is not None:
        return value.to(dtype)
    if tensor.numel() * tensor.element_size() > REAL_LIMIT_BYTES or tensor.__dict__.get("_is_param"):
        return fake_tensors.empty_like(tensor, torch.device("cpu"), dtype)
    if tensor.dim() == 0:
        return torch.full((), scalar_value(tensor), dtype=dtype)
    return torch.zeros(tensor.shape, dtype=dtype)


def known_value(tensor: torch.Tensor) -> Any:
    """Return the host tensor that a device tensor was copied from, if it is remembered and unchanged."""
    return tensor.__dict__.get("_known") if isinstance(tensor, FakeTensor) else tensor


def remember_value(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Remember the host values of a device tensor."""
    if not isinstance(host, FakeTensor) and host.numel() * host.element_size() <= KEPT_LIMIT_BYTES:
        tensor.__dict__["_known"] = host.detach()


def infer_value(func: Any, args: Any, out: Any) -> None:
    """Remember the result of an op on known integers, or of a view of any known tensor."""
    if known_value(args[0]) is None:
        return
    values = [known_value(argument) if isinstance(argument, torch.Tensor) else argument for argument in args]
    tensors = [argument for argument in values if isinstance(argument, torch.Tensor)]
    view = func._schema.name.partition("::")[2] in VIEWS
    if any(isinstance(argument, FakeTensor) or (argument.dtype.is_floating_point and not view) for argument in tensors):
        return
    if any(argument is None for argument in values):
        return
    if isinstance(out, FakeTensor):
        remember_value(out, func(*values))
    elif view:
        for position, value in enumerate(func(*values)):
            remember_value(out[position], value)


def assume_result(func: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> Any:
    """Return the result of an op whose shape or value depends on data, or ``NotImplemented`` for any other op.

    Known values are used. Otherwise every mask selects everything and all values are distinct.
    """
    packet = func._overloadpacket
    if packet is aten._local_scalar_dense:
        return scalar_value(args[0])
    if packet in (aten.equal, aten.is_nonzero):
        return True
    if packet is aten.nonzero:
        return _positions(args[0])
    if packet is aten.masked_select:
        return _new_tensor((_selected_count(args[1]),), args[0])
    if packet in UNIQUE:
        return _unique(func, args)
    if packet in INDEXING:
        indices = [i for index in args[1] for i in _as_positions(index)]
        with fake_tensors.FAKE_MODE:
            return func(args[0], indices, *args[2:], **kwargs)
    if packet is aten.repeat_interleave:
        counts = known_value(args[0])
        total = int(counts.sum()) if counts is not None else 2 * args[0].numel()
        return _new_tensor((kwargs.get("output_size") or total,), args[0], torch.int64)
    if packet is aten._pack_padded_sequence:
        return _pack(*args, **kwargs)
    if packet is aten.bincount:
        return _new_tensor((max(1, args[2] if len(args) > 2 else kwargs.get("minlength", 0)),), args[0], torch.int64)
    return NotImplemented


def assumption_note(func: Any, args: Sequence[Any]) -> Optional[str]:
    """Return a note to the user if ``assume_result`` had to assume the size of a result, else ``None``."""
    packet = func._overloadpacket
    if packet is aten.masked_select:
        selectors = [args[1]]
    elif packet in INDEXING:
        selectors = [
            selector for selector in args[1] if selector is not None and selector.dtype in (torch.bool, torch.uint8)
        ]
    elif packet in (aten.nonzero, aten.repeat_interleave, *UNIQUE):
        selectors = [args[0]]
    else:
        return None
    if all(known_value(selector) is not None for selector in selectors):
        return None
    if packet is aten.repeat_interleave:
        return f"the repeats of {func} depend on the data: two each were assumed; a real step may hold more"
    return f"the size that {func} selects depends on the data: all was assumed; a real step holds as much or less"


def _new_tensor(shape: Tuple[int, ...], source: torch.Tensor, dtype: Any = None) -> torch.Tensor:
    return fake_tensors.empty_tensor(shape, dtype or source.dtype, fake_tensors.true_device(source))


def _pack(padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool = False) -> Any:
    """Return the packed rows and the batch size at each step. Lengths are on the host, so they are known."""
    longest = padded.shape[1 if batch_first else 0]
    host_lengths = known_value(lengths)
    counts = [longest] * lengths.numel() if host_lengths is None else [int(length) for length in host_lengths.tolist()]
    sizes = torch.tensor([sum(count > step for count in counts) for step in range(max(counts))])
    return _new_tensor((sum(counts), *padded.shape[2:]), padded), sizes


def _selected_count(mask: torch.Tensor) -> int:
    value = known_value(mask)
    return mask.numel() if value is None else int(torch.count_nonzero(value))


def _positions(mask: torch.Tensor) -> torch.Tensor:
    return _new_tensor((_selected_count(mask), mask.dim()), mask, torch.int64)


def _as_positions(index: Any) -> Sequence[Any]:
    """Turn a mask into one list of positions per dimension. Other indices stay."""
    if index is None or index.dtype not in (torch.bool, torch.uint8):
        return [index]
    return [_new_tensor((_selected_count(index),), index, torch.int64) for _ in range(index.dim())]


def _unique(func: Any, args: Sequence[Any]) -> Any:
    values = args[0]
    value = known_value(values)
    if func._overloadpacket is aten.unique_dim:
        size = values.shape[args[1]]
        shape = tuple(values.shape)
    else:
        size = values.numel() if value is None else int(torch.unique(value).numel())
        shape = (size,)
    flat = values.shape if len(shape) == 1 else (size,)
    results = [
        _new_tensor(shape, values),
        _new_tensor(flat, values, torch.int64),
        _new_tensor((size,), values, torch.int64),
    ]
    return tuple(results[: len(func._schema.returns)])
