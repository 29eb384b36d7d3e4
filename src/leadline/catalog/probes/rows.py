"""Kernels of the sweep that work by rows or windows: softmax, normalisation, pooling, upsampling."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from leadline.catalog.probes.cases import KernelCase, log_spread_sizes, tensor

MOST_ELEMENTS = 2**22

aten = torch.ops.aten


def rows(device: str) -> Iterator[KernelCase]:
    """Yield softmax and layer normalisation, forward and backward, over rows of several lengths."""
    for count, length in log_spread_sizes(20, (4, 16384), (4, 8192)):
        if count * length > MOST_ELEMENTS:
            continue
        for kind, prepare in BY_ROW.items():
            yield KernelCase(kind, {"rows": count, "columns": length, "elements": count * length},
                       partial(prepare, device, count, length),
                       bytes_moved=8.0 * count * length, streams=True)  # fmt: skip


def _softmax(device: str, count: int, length: int) -> Callable[[], object]:
    x = tensor(device, count, length)
    return lambda: torch.softmax(x, -1)


def _softmax_backward(device: str, count: int, length: int) -> Callable[[], object]:
    grad, y = tensor(device, count, length), tensor(device, count, length)
    return lambda: aten._softmax_backward_data(grad, y, -1, torch.float32)  # noqa: SLF001 - the name autograd calls


def _log_softmax(device: str, count: int, length: int) -> Callable[[], object]:
    x = tensor(device, count, length)
    return lambda: torch.log_softmax(x, -1)


def _log_softmax_backward(device: str, count: int, length: int) -> Callable[[], object]:
    grad, y = tensor(device, count, length), tensor(device, count, length)
    return lambda: aten._log_softmax_backward_data(grad, y, -1, torch.float32)  # noqa: SLF001 - as autograd calls it


def _layer_norm(device: str, count: int, length: int) -> Callable[[], object]:
    x, w = tensor(device, count, length), tensor(device, length)
    return lambda: aten.native_layer_norm(x, [length], w, w, 1e-5)


def _layer_norm_backward(device: str, count: int, length: int) -> Callable[[], object]:
    x, w = tensor(device, count, length), tensor(device, length)
    _, mean, rstd = aten.native_layer_norm(x, [length], w, w, 1e-5)
    return lambda: aten.native_layer_norm_backward(x, x, [length], mean, rstd, w, w, [True, True, True])


BY_ROW = {
    "_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax": _log_softmax,
    "_log_softmax_backward_data": _log_softmax_backward,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
}


def pools(device: str) -> Iterator[KernelCase]:
    """Yield batch and group normalisation, pooling and upsampling, forward and backward, over images."""
    for n, eighths, side in log_spread_sizes(26, (1, 64), (1, 64), (2, 128)):
        c = 8 * eighths
        if n * c * side * side > MOST_ELEMENTS:
            continue
        for kind, prepare in BY_IMAGE.items():
            size = n * c * side * side
            yield KernelCase(kind, {"rows": n * c, "columns": side * side, "elements": size},
                       partial(prepare, device, n, c, side), bytes_moved=8.0 * size, streams=True)  # fmt: skip


def _batch_norm(device: str, n: int, c: int, side: int, *, training: bool) -> Callable[[], object]:
    x, w, mean, variance = tensor(device, n, c, side, side), *_channels(device, c)
    return lambda: aten.native_batch_norm(x, w, w, mean, variance, training, 0.1, 1e-5)


def _batch_norm_backward(device: str, n: int, c: int, side: int) -> Callable[[], object]:
    x, w, mean, variance = tensor(device, n, c, side, side), *_channels(device, c)
    args = (x, x, w, mean, variance, mean, variance, True, 1e-5, [True, True, True])
    return lambda: aten.native_batch_norm_backward(*args)


def _channels(device: str, c: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tensor(device, c), torch.zeros(c, device=device), torch.ones(c, device=device)


def _group_norm(device: str, n: int, c: int, side: int) -> Callable[[], object]:
    x, w = tensor(device, n, c, side, side), tensor(device, c)
    return lambda: aten.native_group_norm(x, w, w, n, c, side * side, 8, 1e-5)


def _group_norm_backward(device: str, n: int, c: int, side: int) -> Callable[[], object]:
    x, w = tensor(device, n, c, side, side), tensor(device, c)
    _, mean, rstd = aten.native_group_norm(x, w, w, n, c, side * side, 8, 1e-5)
    return lambda: aten.native_group_norm_backward(x, x, mean, rstd, w, n, c, side * side, 8, [True, True, True])


def _max_pool(device: str, n: int, c: int, side: int) -> Callable[[], object]:
    x = tensor(device, n, c, side, side)
    return lambda: aten.max_pool2d_with_indices(x, [2, 2], [2, 2])


def _max_pool_backward(device: str, n: int, c: int, side: int) -> Callable[[], object]:
    x = tensor(device, n, c, side, side)
    y, index = aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
    args = (y, x, [2, 2], [2, 2], [0, 0], [1, 1], False, index)
    return lambda: aten.max_pool2d_with_indices_backward(*args)


def _average_pool(device: str, n: int, c: int, side: int) -> Callable[[], object]:
    x = tensor(device, n, c, side, side)
    return lambda: x.mean((2, 3), keepdim=True)


def _upsample(device: str, n: int, c: int, side: int) -> Callable[[], object]:
    x = tensor(device, n, c, side // 2, side // 2)
    return lambda: aten.upsample_nearest2d(x, [side, side])


def _upsample_backward(device: str, n: int, c: int, side: int) -> Callable[[], object]:
    grad = tensor(device, n, c, side, side)
    half = side // 2
    return lambda: aten.upsample_nearest2d_backward(grad, [side, side], [n, c, half, half])


def _channel_sum(device: str, n: int, c: int, side: int) -> Callable[[], object]:
    x = tensor(device, n, c, side, side)
    return lambda: x.sum((0, 2, 3))


BY_IMAGE: dict[str, Callable[[str, int, int, int], Callable[[], object]]] = {
    "native_batch_norm": partial(_batch_norm, training=True),
    "native_batch_norm_inference": partial(_batch_norm, training=False),
    "native_batch_norm_backward": _batch_norm_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "max_pool2d_with_indices": _max_pool,
    "max_pool2d_with_indices_backward": _max_pool_backward,
    "mean_window": _average_pool,
    "upsample_nearest2d": _upsample,
    "upsample_nearest2d_backward": _upsample_backward,
    "sum_channels": _channel_sum,
}
