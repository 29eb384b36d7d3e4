"""Compute-bound kernels of the sweep: matrix products, convolutions, attention, recurrent layers."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from leadline.catalog.probes.cases import Case, tensor

aten = torch.ops.aten

GEMM_SIZES = [
    (8, 32, 64), (8, 256, 256), (8, 1024, 1024), (32, 64, 64), (32, 10, 128), (32, 256, 784), (32, 512, 512),
    (64, 1024, 1024), (128, 128, 128), (256, 10, 512), (256, 512, 256), (512, 64, 64), (512, 192, 192),
    (512, 512, 512), (512, 768, 3072), (1024, 128, 128), (1024, 1024, 1024), (2048, 64, 256), (2048, 256, 64),
    (4096, 32, 32), (4096, 128, 512), (4096, 512, 128), (16384, 64, 64), (2048, 2048, 2048), (128, 4000, 128),
    (64, 64, 4096), (256, 256, 2048), (1024, 256, 8192), (512, 2048, 32), (16, 512, 4096),
]  # fmt: skip
BMM_SIZES = [
    (8, 16, 16, 16), (32, 32, 32, 16), (64, 64, 64, 32), (32, 128, 128, 64), (128, 64, 32, 64), (16, 256, 256, 64),
    (128, 16, 16, 64), (64, 197, 64, 197), (256, 49, 32, 49),
]  # fmt: skip
CONVOLUTIONS = [
    (8, 3, 32, 32, 3, 1, 1), (32, 3, 16, 32, 3, 1, 1), (8, 3, 64, 64, 7, 2, 1), (8, 3, 32, 64, 3, 2, 1),
    (16, 1, 16, 28, 3, 1, 1), (64, 1, 32, 28, 5, 1, 1), (32, 16, 16, 32, 3, 1, 1), (8, 32, 64, 32, 3, 1, 1),
    (32, 64, 64, 16, 3, 1, 1), (8, 64, 64, 56, 3, 1, 1), (8, 64, 128, 28, 3, 2, 1), (16, 128, 128, 16, 3, 1, 1),
    (8, 128, 256, 14, 3, 1, 1), (8, 256, 256, 8, 3, 1, 1), (16, 512, 512, 4, 3, 1, 1), (2, 512, 512, 7, 3, 1, 1),
    (4, 16, 16, 64, 3, 1, 1), (2, 128, 64, 32, 3, 1, 1),
    (8, 16, 64, 32, 1, 1, 1), (8, 64, 32, 32, 1, 1, 1), (16, 96, 24, 16, 1, 1, 1), (8, 64, 128, 28, 1, 2, 1),
    (8, 256, 256, 14, 1, 1, 1), (16, 320, 512, 4, 1, 1, 1), (4, 32, 3, 64, 1, 1, 1),
    (8, 32, 32, 32, 3, 1, 32), (16, 96, 96, 16, 3, 1, 96), (8, 64, 64, 56, 3, 2, 64), (16, 384, 384, 8, 3, 1, 384),
    (32, 24, 24, 32, 3, 2, 24), (8, 48, 48, 28, 5, 1, 48), (8, 64, 64, 28, 3, 1, 4),
    (8, 3, 192, 64, 8, 8, 1), (16, 3, 96, 32, 4, 4, 1),
]  # fmt: skip
"""Batch, channels in, channels out, side, filter, stride, groups."""
TRANSPOSED = [(8, 64, 32, 16, 2, 2, 1), (8, 32, 16, 16, 3, 2, 1), (4, 128, 64, 16, 2, 2, 1), (16, 16, 8, 14, 4, 2, 1)]
ATTENTIONS = [(4, 2, 32, 16), (8, 4, 64, 32), (8, 4, 128, 32), (4, 8, 197, 64), (2, 8, 512, 64), (16, 3, 65, 64)]
RECURRENCES = [(8, 16, 32, 64), (32, 32, 64, 128), (16, 64, 128, 128), (8, 64, 256, 256), (64, 16, 16, 32)]
"""Batch, time steps, features in, features held."""


def gemms(device: str) -> Iterator[Case]:
    """Yield products of two matrices as a linear layer and its backward run them, and batched ones."""
    for m, n, k in GEMM_SIZES:
        for kind, dtype in (("addmm", "float32"), ("mm", "float32"), ("addmm", "bfloat16")):
            if kind == "addmm" and dtype == "bfloat16" and m * n * k > 2**27 and device == "cpu":
                continue
            yield _gemm(device, kind, dtype, sizes=(m, n, k))
    for b, m, n, k in BMM_SIZES:
        yield Case("bmm", {"b": b, "m": m, "n": n, "k": k, "elements": b * max(m * k, n * k, m * n)},
                   partial(_bmm, device, b, m, n, k), flops=2.0 * b * m * n * k,
                   bytes_moved=4.0 * b * (m * k + k * n + m * n))  # fmt: skip


def _gemm(device: str, kind: str, dtype: str, *, sizes: tuple[int, int, int]) -> Case:
    m, n, k = sizes
    width = 4 if dtype == "float32" else 2
    return Case(
        kind,
        {"b": 1, "m": m, "n": n, "k": k, "elements": max(m * k, n * k, m * n)},
        partial(_addmm if kind == "addmm" else _mm_of_backward, device, dtype, m, n, k),
        dtype,
        flops=2.0 * m * n * k,
        bytes_moved=float(width * (m * k + k * n + m * n)),
    )


def _addmm(device: str, dtype: str, m: int, n: int, k: int) -> Callable[[], object]:
    """Return ``x·Wᵀ + b``, a linear layer's forward product."""
    x, w, b = (tensor(device, *shape, dtype=dtype) for shape in ((m, k), (n, k), (n,)))
    return lambda: torch.addmm(b, x, w.t())


def _mm_of_backward(device: str, dtype: str, m: int, n: int, k: int) -> Callable[[], object]:
    """Return ``gᵀ·x``, the product that gives a linear layer's weight gradient."""
    g, x = tensor(device, k, m, dtype=dtype), tensor(device, k, n, dtype=dtype)
    return lambda: torch.mm(g.t(), x)


def _bmm(device: str, b: int, m: int, n: int, k: int) -> Callable[[], object]:
    x, y = tensor(device, b, m, k), tensor(device, b, n, k)
    return lambda: torch.bmm(x, y.transpose(1, 2))


def convolutions(device: str) -> Iterator[Case]:
    """Yield convolutions forward and backward (gradients of input, weight and bias), transposed ones included."""
    for transposed, shapes in ((False, CONVOLUTIONS), (True, TRANSPOSED)):
        for shape in shapes:
            for backward in (False, True):
                yield _convolution(device, shape, transposed=transposed, backward=backward)


def _convolution(device: str, shape: tuple[int, ...], *, transposed: bool, backward: bool) -> Case:
    n, c, k, side, r, stride, groups = shape
    out = (side - 1) * stride - 2 * (r // 2 if r % 2 else 0) + r if transposed else _out(side, r, stride)
    macs = n * k * c // groups * r * r * (side * side if transposed else out * out)
    x_size, y_size, w_size = n * c * side * side, n * k * out * out, c * k // groups * r * r
    passes = 2 if backward else 1
    return Case(
        "convolution_backward" if backward else "convolution",
        {"n": n, "c": c, "k": k, "h": out, "w": out, "r": r, "s": r, "groups": groups, "stride": stride,
         "transposed": int(transposed), "elements": max(x_size, y_size)},
        partial(_convolve, device, shape, transposed=transposed, backward=backward),
        flops=2.0 * macs * passes,
        bytes_moved=4.0 * (x_size + y_size + w_size) * passes,
    )  # fmt: skip


def _out(side: int, r: int, stride: int) -> int:
    padding = r // 2 if r % 2 else 0
    return (side + 2 * padding - r) // stride + 1


def _convolve(device: str, shape: tuple[int, ...], *, transposed: bool, backward: bool) -> Callable[[], object]:
    n, c, k, side, r, stride, groups = shape
    padding = r // 2 if r % 2 else 0
    x = tensor(device, n, c, side, side)
    w = tensor(device, c, k // groups, r, r) if transposed else tensor(device, k, c // groups, r, r)
    b = tensor(device, k)
    where = ([stride] * 2, [padding] * 2, [1, 1], transposed, [0, 0], groups)
    if not backward:
        return lambda: aten.convolution(x, w, b, *where)
    grad = torch.randn_like(aten.convolution(x, w, b, *where))
    return lambda: aten.convolution_backward(grad, x, w, [k], *where, [True, True, True])


def attentions(device: str) -> Iterator[Case]:
    """Yield fused attention forward and backward, as scaled_dot_product_attention picks it on this device."""
    for b, h, length, d in ATTENTIONS:
        for backward in (False, True):
            size = b * h * length * d
            yield Case("attention_backward" if backward else "attention",
                       {"b": b, "h": h, "q": length, "kv": length, "d": d, "elements": size},
                       partial(_attend, device, b, h, length, d, backward=backward),
                       flops=(10.0 if backward else 4.0) * b * h * length * length * d,
                       bytes_moved=4.0 * size * (8 if backward else 4))  # fmt: skip


def _attend(device: str, b: int, h: int, length: int, d: int, *, backward: bool) -> Callable[[], object]:
    attention = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (tensor(device, b, h, length, d).requires_grad_(backward) for _ in range(3))
    if not backward:
        return lambda: attention(q, k, v)
    y = attention(q, k, v)
    grad = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, (q, k, v), grad, retain_graph=True)


def recurrences(device: str) -> Iterator[Case]:
    """Yield one LSTM layer over a sequence, forward and backward, by the library the device uses."""
    for b, steps, c, h in RECURRENCES:
        for backward in (False, True):
            passes = 2 if backward else 1
            yield Case("lstm_backward" if backward else "lstm",
                       {"b": b, "q": steps, "c": c, "k": h, "elements": b * steps * h},
                       partial(_recur, device, b, steps, c, h, backward=backward),
                       flops=passes * 8.0 * b * steps * h * (c + h),
                       bytes_moved=passes * 4.0 * (b * steps * (c + 5 * h) + 4 * h * (c + h)))  # fmt: skip


def _recur(device: str, b: int, steps: int, c: int, h: int, *, backward: bool) -> Callable[[], object]:
    layer = torch.nn.LSTM(c, h, batch_first=True, device=device)
    x = tensor(device, b, steps, c).requires_grad_(backward)
    if not backward:
        return lambda: layer(x)
    y, _ = layer(x)
    grad = torch.randn_like(y)
    inputs = (x, *layer.parameters())
    return lambda: torch.autograd.grad(y, inputs, grad, retain_graph=True)
