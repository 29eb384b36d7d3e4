"""Results of ops whose shape or value depends on data that a trace does not have."""

import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from leadline.graphs.torch.worker import fake_tensors
from leadline.graphs.torch.worker.conditions import condition_note, tensors_are_equal
from leadline.graphs.torch.worker.fake_tensors import known_value
from leadline.graphs.torch.worker.ops import has_mask
from leadline.graphs.torch.worker.selections import viewed_elements

aten = torch.ops.aten
UNIQUE = (aten._unique2, aten._unique, aten.unique_dim, aten.unique_consecutive)
NMS = "torchvision.nms"
INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index)
GRU_CELL = "_thnn_fused_gru_cell"
ALIKE = {"_standard_gamma": 0, "_standard_gamma_grad": 0, "_sample_dirichlet": 0, "_dirichlet_grad": 0,
         "multi_margin_loss_backward": 1, "multilabel_margin_loss_backward": 1}  # fmt: skip
"""Ops without a rule in PyTorch whose result has the form of one of their arguments, and its position."""
RULED = {
    "_pack_padded_sequence", "_ctc_loss", "_ctc_loss_backward", GRU_CELL, f"{GRU_CELL}_backward", "multi_margin_loss",
    "multilabel_margin_loss_forward", "is_set_to", *ALIKE,
}  # fmt: skip
"""Ops that PyTorch must not run on zeros: the first mixes devices, which PyTorch 2.2 refuses, CTC reads lengths, and a
cell has only a kernel of CUDA."""
CHOICES = {"topk": 2, "max": 1, "min": 1, "argmax": 1, "argmin": 1}
"""Ops that return places along a dimension, and the position of that argument."""
SHAPING = {"permute", "transpose", "_to_copy", "clone", *fake_tensors.VIEWS}
"""Ops whose result holds the same elements as their input, or a part of them."""
COMPARISONS = {"gt", "ne"}
"""Comparisons, usually with zero, that are true for the same elements as a mask."""
COUNTS = {"sum", "bincount"}
MARKED = {"eq", "any", "add", "mul", "scatter", "scatter_", *COUNTS, *COMPARISONS, *SHAPING, *CHOICES}
"""Ops whose result tells something of data that a trace does not have."""
MARKS = ("_extent", "_extents", "_distinct", "_share", "_offset")
"""What is expected of unknown elements: how many places they, or those of each column, can name and whether they
differ, the share of those that are true, and by how much they are larger than an unknown number."""


def mark(name: str, args: Any, out: Any) -> None:
    """Remember what is expected of the elements of a result, as that each of E experts gets 1/E of the tokens."""
    given = args[0].__dict__
    if name in CHOICES:
        _mark_places(name, args, out)
    elif name in SHAPING:
        marks = {mark: given[mark] for mark in MARKS if mark in given}
        columns = marks.pop("_extents", None) if name in ("select", "unbind") else None
        for column, tensor in enumerate(out if isinstance(out, (list, tuple)) else [out]):
            tensor.__dict__.update(marks)
            if columns and args[1:] and args[1] in (1, -1):
                tensor.__dict__["_extent"] = columns[args[2] if name == "select" else column]
    elif name in ("add", "mul"):
        if not out.dtype.is_floating_point:
            _mark_number(name, given, args[1], out)
    elif name in COUNTS:
        if name == "bincount" or ("_share" in given and not args[0].dtype.is_floating_point):
            count = args[0].numel() if name == "bincount" else _selected_count(args[0])
            fake_tensors.remember_value(out, _spread(count, out))
    elif (share := _share(name, args, out)) is not None:
        out.__dict__["_share"] = min(1.0, share)


def _mark_number(name: str, given: Any, other: Any, out: Any) -> None:
    """Remember of how many kinds sums and products of places can be, and how much larger a sum is than its summand."""
    if isinstance(other, int):
        out.__dict__.update({"_extent": given["_extent"]} if "_extent" in given else {})
        if name == "add":
            out.__dict__["_offset"] = given.get("_offset", 0) + max(0, other)
    elif isinstance(other, torch.Tensor) and "_extent" in given and "_extent" in other.__dict__:
        out.__dict__["_extent"] = given["_extent"] * other.__dict__["_extent"]


def _share(name: str, args: Any, out: Any) -> Optional[float]:
    """Return the share of the elements of a mask that are true; ``None`` if nothing tells."""
    given: Optional[float] = args[0].__dict__.get("_share")
    if name == "eq":
        extents = [tensor.__dict__.get("_extent") for tensor in args if isinstance(tensor, torch.Tensor)]
        return 1.0 / max(filter(None, extents)) if any(extents) else None
    if name == "any":
        return None if given is None else float(given * args[0].numel() / max(1, out.numel()))
    if name in COMPARISONS:
        return given
    if len(args) > 2 and isinstance(args[2], torch.Tensor) and args[0].dim():
        return float(args[2].shape[args[1]] / max(1, args[0].shape[args[1]]))
    return None


def _spread(count: int, out: torch.Tensor) -> torch.Tensor:
    """Return counts of the form of ``out`` that are as even as possible, such as those of the tokens of experts."""
    places = torch.arange(out.numel(), device="cpu")
    return ((count + out.numel() - 1 - places) // max(1, out.numel())).reshape(out.shape).to(out.dtype)


def _mark_places(name: str, args: Any, out: Any) -> None:
    """Remember how many places the result of ``argmax`` and the like can name, and that those of ``topk`` differ."""
    places, axis = out[-1] if isinstance(out, (list, tuple)) else out, CHOICES[name]
    if (name in ("max", "min") and places is out) or not args[0].dim():
        return
    dim = args[axis] if len(args) > axis else -1 if name == "topk" else None
    places.__dict__["_extent"] = args[0].numel() if dim is None else args[0].shape[dim]
    places.__dict__["_distinct"] = name == "topk"


def assume_result(func: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> Any:
    """Return the result of an op whose shape or value depends on data, or ``NotImplemented`` for any other op.

    Known values are used. Otherwise every mask selects everything, unless its share is expected, and all values are
    distinct.
    """
    packet = func._overloadpacket
    name = func._schema.name.partition("::")[2]
    if name in ALIKE:
        return fake_tensors.empty_like(args[ALIKE[name]])
    if packet in UNIQUE:
        return _unique(func, args)
    if packet in INDEXING:
        with fake_tensors.FAKE_MODE:
            return func(args[0], selected_places(*args[:2]), *args[2:], **kwargs)
    if str(packet) == NMS:
        return _new_tensor((args[0].shape[0],), args[0], torch.int64)
    return RULES[packet](*args, **kwargs) if packet in RULES else NotImplemented


def assumption_note(func: Any, args: Sequence[Any]) -> Optional[str]:
    """Return a note to the user if ``assume_result`` had to assume the size of a result, else ``None``."""
    packet = func._overloadpacket
    if packet is aten._local_scalar_dense:
        is_told = args[0].dtype != torch.bool or known_value(args[0]) is not None or "_truth" in args[0].__dict__
        return None if is_told else condition_note()
    if packet is aten._to_copy:
        is_mask = args[0].dtype == torch.bool and args[0].dim() and "_truth" not in args[0].__dict__
        is_told = known_value(args[0]) is not None or "_share" in args[0].__dict__
        return "a mask that the script copies to the host is assumed to be true" if is_mask and not is_told else None
    if packet is aten.masked_select:
        selectors = [args[1]]
    elif packet in INDEXING:
        selectors = [selector for selector in args[1] if has_mask([selector])]
    elif str(packet) == NMS or packet in (aten.nonzero, aten.repeat_interleave, *UNIQUE):
        selectors = [args[0]]
    else:
        return None
    if all(known_value(selector) is not None for selector in selectors):
        return None
    if packet in (aten.masked_select, aten.index) and len(selectors) == 1 and viewed_elements() is not None:
        return None
    if packet is aten.repeat_interleave:
        return f"the repeats of {func} depend on the data: two each were assumed; a real step may hold more"
    share = min(selector.__dict__.get("_share", 1.0) for selector in selectors)
    if share < 1.0:
        return f"the size that {func} selects depends on the data: {share:.3g} of all was assumed"
    return f"the size that {func} selects depends on the data: all was assumed; a real step holds as much or less"


def _new_tensor(shape: Tuple[int, ...], source: torch.Tensor, dtype: Any = None) -> torch.Tensor:
    return fake_tensors.empty_tensor(shape, dtype or source.dtype, fake_tensors.true_device(source))


def _nonzero(tensor: torch.Tensor) -> torch.Tensor:
    places = _new_tensor((_selected_count(tensor), tensor.dim()), tensor, torch.int64)
    places.__dict__["_extents"] = tuple(tensor.shape)
    return places


def _repeat_interleave(repeats: torch.Tensor, output_size: Optional[int] = None) -> torch.Tensor:
    counts = known_value(repeats)
    total = int(counts.sum()) if counts is not None else 2 * repeats.numel()
    return _new_tensor((output_size or total,), repeats, torch.int64)


def _pack(padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool = False) -> Any:
    """Return the packed rows and the batch size at each step. Lengths are on the host, so they are known."""
    longest = padded.shape[1 if batch_first else 0]
    host_lengths = known_value(lengths)
    counts = [longest] * lengths.numel() if host_lengths is None else [int(length) for length in host_lengths.tolist()]
    sizes = torch.tensor([sum(count > step for count in counts) for step in range(max(counts))])
    return _new_tensor((sum(counts), *padded.shape[2:]), padded), sizes


def _ctc_loss(scores: torch.Tensor, targets: torch.Tensor, times: Any, lengths: Any, *_: Any) -> Any:
    """Return the losses of CTC and its table of probabilities: samples × times × (2 × the longest target + 1).

    ``scores`` are times × samples × classes. Targets are padded, or one after the other: these are as long as each
    other, unless their ``lengths`` are known.
    """
    samples = scores.shape[1]
    known = known_value(lengths) if isinstance(lengths, torch.Tensor) else lengths
    longest = targets.shape[1] if targets.dim() > 1 else -(-targets.numel() // samples)
    if known is not None:
        longest = max(map(int, known))
    return _new_tensor((samples,), scores), _new_tensor((samples, scores.shape[0], 2 * longest + 1), scores)


def _is_set_to(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    forms = [(t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride()) for t in (tensor, other)]
    return forms[0] == forms[1]


def _lstsq(matrix: torch.Tensor, right: torch.Tensor, *_: Any, **__: Any) -> Any:
    """Return the least-squares solution, its residuals if there are more rows than columns, the rank, and no values."""
    rows, columns = matrix.shape[-2:]
    batch = torch.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])
    residuals = (*batch, right.shape[-1]) if rows > columns else (0,)
    solution, rest = (_new_tensor(shape, matrix) for shape in ((*batch, columns, right.shape[-1]), residuals))
    return solution, rest, _new_tensor((0,), matrix, torch.int64), _new_tensor((0,), matrix)


def _margin_loss(scores: torch.Tensor, _: Any, *options: Any) -> torch.Tensor:
    """Return the losses of ``multi_margin_loss``, one a sample without a reduction."""
    reduction = options[3] if len(options) > 3 else 1
    return _new_tensor((scores.shape[0],) if reduction == 0 and scores.dim() > 1 else (), scores)


def _multilabel_margin_loss(scores: torch.Tensor, _: Any, reduction: int = 1) -> Any:
    shape = (scores.shape[0],) if reduction == 0 and scores.dim() > 1 else ()
    return _new_tensor(shape, scores), fake_tensors.empty_like(scores)


def _gru_cell(gates: torch.Tensor, _: Any, hidden: torch.Tensor, *__: Any) -> Any:
    """Return the next hidden state of a GRU's cell and what it keeps for backward, five values for each."""
    rows, size = hidden.shape
    return _new_tensor((rows, size), gates), _new_tensor((rows, 5 * size), gates)


def _gru_cell_backward(gradient: torch.Tensor, _: torch.Tensor, has_bias: bool) -> Any:
    """Return the gradients of both products with three gates, of the hidden state, and of the biases."""
    rows, size = gradient.shape
    shapes = [(rows, 3 * size), (rows, 3 * size), (rows, size), *(2 * [(3 * size,)] if has_bias else [])]
    results = [_new_tensor(shape, gradient) for shape in shapes]
    return (*results, *(5 - len(results)) * [None])


def _selected_count(mask: torch.Tensor, source: Optional[torch.Tensor] = None) -> int:
    """Return the elements that a mask selects, each a part of ``source`` if it has more dimensions."""
    value = known_value(mask)
    if value is not None:
        return int(torch.count_nonzero(value))
    viewed = None if source is None else viewed_elements()
    if source is None or viewed is None:
        share: float = mask.__dict__.get("_share", 1.0)
        return math.ceil(int(mask.numel()) * share)
    return viewed * int(mask.numel()) // max(int(source.numel()), 1)


def selected_places(source: torch.Tensor, indices: Sequence[Any]) -> List[Any]:
    """Return the indices of a tensor with positions in place of masks."""
    selected = source if len(indices) == 1 else None
    return [place for index in indices for place in _as_positions(index, selected)]


def _as_positions(index: Any, source: Optional[torch.Tensor]) -> Sequence[Any]:
    """Turn a mask into one list of positions per dimension. Other indices stay."""
    if not has_mask([index]):
        return [index]
    count = _selected_count(index, source)
    return [_new_tensor((count,), index, torch.int64) for _ in range(index.dim())]


def _unique(func: Any, args: Sequence[Any]) -> Any:
    values = args[0]
    value = known_value(values)
    if func._overloadpacket is aten.unique_dim:
        size, shape = values.shape[args[1]], tuple(values.shape)
    else:
        most = min(values.numel(), values.__dict__.get("_extent", values.numel()))
        size = most if value is None else int(torch.unique(value).numel())
        shape = (size,)
    flat = values.shape if len(shape) == 1 else (size,)
    results = [_new_tensor(shape, values), *(_new_tensor(other, values, torch.int64) for other in (flat, (size,)))]
    return tuple(results[: len(func._schema.returns)])


RULES: Dict[Any, Callable[..., Any]] = {
    aten._local_scalar_dense: fake_tensors.scalar_value,
    aten.is_set_to: _is_set_to,
    aten.equal: lambda *_: tensors_are_equal(),
    aten.allclose: lambda *_: True,
    aten.is_nonzero: lambda *_: True,
    aten.nonzero: _nonzero,
    aten.masked_select: lambda tensor, mask: _new_tensor((_selected_count(mask, mask),), tensor),
    aten.repeat_interleave: _repeat_interleave,
    aten.bincount: lambda places, weights=None, minlength=0: _new_tensor((max(1, minlength),), places, torch.int64),
    aten._pack_padded_sequence: _pack,
    aten._ctc_loss: _ctc_loss,
    aten.linalg_lstsq: _lstsq,
    aten.multi_margin_loss: _margin_loss,
    aten.multilabel_margin_loss_forward: _multilabel_margin_loss,
    aten._thnn_fused_gru_cell: _gru_cell,
    aten._thnn_fused_gru_cell_backward: _gru_cell_backward,
    aten._ctc_loss_backward: lambda _, scores, *__: fake_tensors.empty_like(scores),
}
