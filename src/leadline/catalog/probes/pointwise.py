"""Memory-bound kernels of the sweep: elementwise arithmetic, reductions, copies, gathers and scatters."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from leadline.catalog.probes.cases import KernelCase, log_spread_sizes, on_tensors, row_cases, tensor

aten = torch.ops.aten
Make = Callable[[torch.Tensor, torch.Tensor], Callable[[], object]]

SIZES = (2**8, 2**12, 2**15, 2**17, 2**19, 2**21, 2**23)
"""Element counts, from one cache line to beyond all caches; parallel loops start at 2**15."""

KERNELS: dict[str, tuple[int, Make]] = {
    "add": (3, lambda x, y: lambda: torch.add(x, y)),
    "add_": (3, lambda x, y: lambda: x.add_(y)),
    "mul_scalar": (2, lambda x, _: lambda: torch.mul(x, 0.5)),
    "div": (3, lambda x, y: lambda: torch.div(x, y)),
    "sqrt": (2, lambda _, y: lambda: torch.sqrt(y)),
    "relu": (2, lambda x, _: lambda: torch.relu(x)),
    "threshold_backward": (3, lambda x, y: lambda: aten.threshold_backward(x, y, 0)),
    "gelu": (2, lambda x, _: lambda: aten.gelu(x)),
    "gelu_backward": (3, lambda x, y: lambda: aten.gelu_backward(x, y)),
    "silu": (2, lambda x, _: lambda: aten.silu(x)),
    "silu_backward": (3, lambda x, y: lambda: aten.silu_backward(x, y)),
    "hardtanh": (2, lambda x, _: lambda: aten.hardtanh(x, 0.0, 6.0)),
    "hardtanh_backward": (3, lambda x, y: lambda: aten.hardtanh_backward(x, y, 0.0, 6.0)),
    "sigmoid": (2, lambda x, _: lambda: torch.sigmoid(x)),
    "tanh": (2, lambda x, _: lambda: torch.tanh(x)),
    "tanh_backward": (3, lambda x, y: lambda: aten.tanh_backward(x, y)),
    "bernoulli_": (1, lambda x, _: lambda: x.bernoulli_(0.9)),
    "exp": (2, lambda x, _: lambda: torch.exp(x)),
    "pow": (2, lambda x, _: lambda: torch.pow(x, 2)),
    "where": (3, lambda x, y: partial(torch.where, x > 0, x, y)),
    "lerp_": (3, lambda x, y: lambda: x.lerp_(y, 0.1)),
    "addcmul_": (3, lambda x, y: lambda: x.addcmul_(y, y, value=0.001)),
    "addcdiv_": (4, lambda x, y: lambda: x.addcdiv_(y, y, value=0.001)),
    "sum": (1, lambda x, _: x.sum),
    "copy_": (2, lambda x, y: lambda: x.copy_(y)),
    "fill_": (1, lambda x, _: lambda: x.fill_(0.0)),
}


def pointwise(device: str) -> Iterator[KernelCase]:
    """Yield elementwise kernels by size; ``bytes_moved`` counts each operand and result once."""
    for kind, (operands, make) in KERNELS.items():
        for size in SIZES:
            yield KernelCase(kind, {"elements": size}, partial(_elementwise, device, make, size),
                       flops=float(size), bytes_moved=4.0 * operands * size, streams=True)  # fmt: skip


def _elementwise(device: str, make: Make, size: int) -> Callable[[], object]:
    return make(tensor(device, size), tensor(device, size).abs_().add_(1.0))


def movements(device: str) -> Iterator[KernelCase]:
    """Yield kernels that move data: permuting copies, concatenation, gather, scatter, column sums."""
    matrices = log_spread_sizes(20, (32, 65536), (4, 1024))
    return row_cases(device, MOVEMENTS, ((rows, columns, (rows, columns)) for rows, columns in matrices))


def _permuted(device: str, rows: int, columns: int) -> Callable[[], object]:
    """Return attention's permuting copy of its heads, which leaves the last axis whole."""
    x = tensor(device, max(rows // 32, 1), 8, 4, columns).transpose(1, 2)
    return partial(torch.clone, x, memory_format=torch.contiguous_format)


def _concatenated(device: str, rows: int, columns: int) -> Callable[[], object]:
    halves = [tensor(device, max(rows // 8, 1), 4, columns) for _ in range(2)]
    return lambda: torch.cat(halves, 1)


def _table(device: str, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a table of a quarter of the rows, and a random row index of it for each row."""
    height = max(rows // 4, 1)
    return tensor(device, height, columns), torch.randint(0, height, (rows,), device=device)


def _gathered(device: str, rows: int, columns: int) -> Callable[[], object]:
    table, index = _table(device, rows, columns)
    return lambda: aten.index_select(table, 0, index)


def _embedded(device: str, rows: int, columns: int) -> Callable[[], object]:
    table, index = _table(device, rows, columns)
    return lambda: aten.embedding(table, index)


def _embedded_backward(device: str, rows: int, columns: int) -> Callable[[], object]:
    grad = tensor(device, rows, columns)
    index = torch.randint(0, rows, (rows,), device=device)
    return lambda: aten.embedding_dense_backward(grad, index, rows, -1, False)  # noqa: FBT003 - aten's own order


def _indexed(device: str, rows: int, columns: int) -> Callable[[], object]:
    table, index = _table(device, rows, columns)
    return lambda: table[index]


def _put(device: str, rows: int, columns: int) -> Callable[[], object]:
    (table, index), values = _table(device, rows, columns), tensor(device, rows, columns)
    return lambda: table.index_put_((index,), values, accumulate=True)


def _index_added(device: str, rows: int, columns: int) -> Callable[[], object]:
    (table, index), values = _table(device, rows, columns), tensor(device, rows, columns)
    return lambda: table.index_add_(0, index, values)


def _scattered(device: str, rows: int, columns: int) -> Callable[[], object]:
    (table, index), values = _table(device, rows, columns), tensor(device, rows, columns)
    return partial(table.scatter_add_, 0, index[:, None].expand(-1, columns), values)


def _picked(device: str, rows: int, columns: int) -> Callable[[], object]:
    """Return the gather of a scatter's backward pass: an index for every element."""
    table, index = _table(device, rows, columns)
    return partial(torch.gather, table, 0, index[:, None].expand(-1, columns))


MOVEMENTS = {
    "clone": _permuted,
    "cat": _concatenated,
    "index_select": _gathered,
    "gather": _picked,
    "embedding": _embedded,
    "embedding_dense_backward": _embedded_backward,
    "index": _indexed,
    "index_put_": _put,
    "index_add_": _index_added,
    "scatter_add_": _scattered,
    "sum_dim": on_tensors(1, torch.sum, 0, keepdim=True),
    "mean": on_tensors(1, torch.mean, -1),
}
