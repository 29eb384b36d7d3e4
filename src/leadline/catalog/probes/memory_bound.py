"""Memory-bound kernels of the sweep: elementwise arithmetic, copies, gathers, softmax, normalization, pooling."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from leadline.catalog.probes.cases import KernelCase, Prepare, log_spread_sizes, on_tensors, row_cases, tensor

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
                       flops=float(size), bytes_moved=4.0 * operands * size)  # fmt: skip


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


def _embedded_backward(device: str, rows: int, columns: int) -> Callable[[], object]:
    grad = tensor(device, rows, columns)
    index = torch.randint(0, rows, (rows,), device=device)
    return lambda: aten.embedding_dense_backward(grad, index, rows, -1, False)  # noqa: FBT003 - aten's own order


def _on_table(make: Make) -> Prepare:
    """Return what prepares a kernel of a table of a quarter of the rows, and of a random index into it for each row."""

    def prepare(device: str, rows: int, columns: int) -> Callable[[], object]:
        height = max(rows // 4, 1)
        return make(tensor(device, height, columns), torch.randint(0, height, (rows,), device=device))

    return prepare


def _values(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return a row of values for each index."""
    return tensor(table.device.type, len(index), table.shape[1])


def _each_element(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return the index repeated for every column."""
    return index[:, None].expand(-1, table.shape[1])


MOVEMENTS: dict[str, Prepare] = {
    "clone": _permuted,
    "cat": _concatenated,
    "index_select": _on_table(lambda table, index: partial(aten.index_select, table, 0, index)),
    # The gather of a scatter's backward pass has an index for every element.
    "gather": _on_table(lambda table, index: partial(torch.gather, table, 0, _each_element(table, index))),
    "embedding": _on_table(lambda table, index: partial(aten.embedding, table, index)),
    "embedding_dense_backward": _embedded_backward,
    "index": _on_table(lambda table, index: partial(table.__getitem__, index)),
    "index_put_": _on_table(
        lambda table, index: partial(table.index_put_, (index,), _values(table, index), accumulate=True)
    ),
    "index_add_": _on_table(lambda table, index: partial(table.index_add_, 0, index, _values(table, index))),
    "scatter_add_": _on_table(
        lambda table, index: partial(table.scatter_add_, 0, _each_element(table, index), _values(table, index))
    ),
    "sum_dim": on_tensors(1, torch.sum, 0, keepdim=True),
    "mean": on_tensors(1, torch.mean, -1),
}


def rows(device: str) -> Iterator[KernelCase]:
    """Yield softmax and layer normalisation, forward and backward, over rows of several lengths."""
    matrices = log_spread_sizes(20, (4, 16384), (4, 8192))
    return row_cases(device, BY_ROW, ((count, length, (count, length)) for count, length in matrices))


def _layer_norm(device: str, count: int, length: int) -> Callable[[], object]:
    x, w = tensor(device, count, length), tensor(device, length)
    return lambda: aten.native_layer_norm(x, [length], w, w, 1e-5)


def _layer_norm_backward(device: str, count: int, length: int) -> Callable[[], object]:
    x, w = tensor(device, count, length), tensor(device, length)
    _, mean, rstd = aten.native_layer_norm(x, [length], w, w, 1e-5)
    return lambda: aten.native_layer_norm_backward(x, x, [length], mean, rstd, w, w, [True, True, True])


# The names of the backward kernels are those that autograd calls.
BY_ROW: dict[str, Prepare] = {
    "_softmax": on_tensors(1, torch.softmax, -1),
    "_softmax_backward_data": on_tensors(2, aten._softmax_backward_data, -1, torch.float32),  # noqa: SLF001
    "_log_softmax": on_tensors(1, torch.log_softmax, -1),
    "_log_softmax_backward_data": on_tensors(2, aten._log_softmax_backward_data, -1, torch.float32),  # noqa: SLF001
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
}


def pools(device: str) -> Iterator[KernelCase]:
    """Yield batch and group normalisation, pooling and upsampling, forward and backward, over images."""
    images = ((n, 8 * eighths, side) for n, eighths, side in log_spread_sizes(26, (1, 64), (1, 64), (2, 128)))
    return row_cases(device, BY_IMAGE, ((n * c, side * side, (n, c, side, side)) for n, c, side in images))


def _batch_norm(device: str, *image: int, training: bool) -> Callable[[], object]:
    x, w, mean, variance = tensor(device, *image), *_channels(device, image[1])
    return lambda: aten.native_batch_norm(x, w, w, mean, variance, training, 0.1, 1e-5)


def _batch_norm_backward(device: str, *image: int) -> Callable[[], object]:
    x, w, mean, variance = tensor(device, *image), *_channels(device, image[1])
    args = (x, x, w, mean, variance, mean, variance, True, 1e-5, [True, True, True])
    return lambda: aten.native_batch_norm_backward(*args)


def _channels(device: str, c: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tensor(device, c), torch.zeros(c, device=device), torch.ones(c, device=device)


def _group_norm(device: str, n: int, c: int, height: int, width: int) -> Callable[[], object]:
    x, w = tensor(device, n, c, height, width), tensor(device, c)
    return lambda: aten.native_group_norm(x, w, w, n, c, height * width, 8, 1e-5)


def _group_norm_backward(device: str, n: int, c: int, height: int, width: int) -> Callable[[], object]:
    x, w, pixels = tensor(device, n, c, height, width), tensor(device, c), height * width
    _, mean, rstd = aten.native_group_norm(x, w, w, n, c, pixels, 8, 1e-5)
    return lambda: aten.native_group_norm_backward(x, x, mean, rstd, w, n, c, pixels, 8, [True, True, True])


def _max_pool_backward(device: str, *image: int) -> Callable[[], object]:
    x = tensor(device, *image)
    y, index = aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
    args = (y, x, [2, 2], [2, 2], [0, 0], [1, 1], False, index)
    return lambda: aten.max_pool2d_with_indices_backward(*args)


def _upsample(device: str, n: int, c: int, height: int, width: int) -> Callable[[], object]:
    x = tensor(device, n, c, height // 2, width // 2)
    return lambda: aten.upsample_nearest2d(x, [height, width])


def _upsample_backward(device: str, n: int, c: int, height: int, width: int) -> Callable[[], object]:
    grad, small = tensor(device, n, c, height, width), [n, c, height // 2, width // 2]
    return lambda: aten.upsample_nearest2d_backward(grad, [height, width], small)


BY_IMAGE: dict[str, Prepare] = {
    "native_batch_norm": partial(_batch_norm, training=True),
    "native_batch_norm_inference": partial(_batch_norm, training=False),
    "native_batch_norm_backward": _batch_norm_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "max_pool2d_with_indices": on_tensors(1, aten.max_pool2d_with_indices, [2, 2], [2, 2]),
    "max_pool2d_with_indices_backward": _max_pool_backward,
    "mean_window": on_tensors(1, torch.mean, (2, 3), keepdim=True),
    "upsample_nearest2d": _upsample,
    "upsample_nearest2d_backward": _upsample_backward,
    "sum_channels": on_tensors(1, torch.sum, (0, 2, 3)),
}
