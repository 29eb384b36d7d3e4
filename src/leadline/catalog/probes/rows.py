"""Kernels of the sweep that work by rows or windows: softmax, normalisation, pooling, upsampling."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from leadline.catalog.probes.cases import KernelCase, Prepare, log_spread_sizes, on_tensors, row_cases, tensor

aten = torch.ops.aten


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
