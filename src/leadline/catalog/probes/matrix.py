"""Compute-bound kernels of the sweep: matrix products, convolutions, attention, recurrent layers."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from leadline.catalog.probes.cases import KernelCase, log_spread_sizes, tensor
from leadline.core.frozen import Frozen

aten = torch.ops.aten

MOST_FLOPS = {"cpu": 1.5e9, "cuda": 1.5e12}
MOST_ELEMENTS = {"cpu": 2**23, "cuda": 2**27}
"""Bounds on one kernel's arithmetic and operands, which keep the sweep within its time."""

PRODUCTS = {"cpu": 200, "cuda": 700}
BATCHED = {"cpu": 90, "cuda": 400}
"""Number of products in the sweep; a GPU library selects among many kernels by size, and most take a millisecond."""
ALSO_BACKWARD = 200
"""Products that are also measured backward and in half precision."""

FILTERS = (1, 1, 3, 3, 3, 5, 7)
"""Filter sides, as frequent as in models."""


def gemms(device: str) -> Iterator[KernelCase]:
    """Yield matrix products as in a linear layer and its backward pass, and batched ones."""
    for number, (m, n, k) in enumerate(log_spread_sizes(PRODUCTS[device], (2, 16384), (4, 4096), (4, 4096))):
        if 2 * m * n * k > MOST_FLOPS[device] or max(m * k, n * k, m * n) > MOST_ELEMENTS[device]:
            continue
        yield _gemm(device, "addmm", "float32", sizes=(m, n, k))
        if number >= ALSO_BACKWARD:
            continue
        yield _gemm(device, "mm", "float32", sizes=(m, n, k))
        if (device == "cuda" or number % 4 == 0) and m * n * k < MOST_FLOPS[device] / 8:
            yield _gemm(device, "addmm", "bfloat16", sizes=(m, n, k))
    for b, m, n, k in log_spread_sizes(BATCHED[device], (4, 512), (8, 512), (8, 512), (8, 128)):
        if 2 * b * m * n * k <= MOST_FLOPS[device]:
            yield KernelCase("bmm", {"b": b, "m": m, "n": n, "k": k, "elements": b * max(m * k, n * k, m * n)},
                       partial(_bmm, device, b, m, n, k), flops=2.0 * b * m * n * k,
                       bytes_moved=4.0 * b * (m * k + k * n + m * n))  # fmt: skip


def _gemm(device: str, kind: str, dtype: str, *, sizes: tuple[int, int, int]) -> KernelCase:
    m, n, k = sizes
    width = 4 if dtype == "float32" else 2
    return KernelCase(
        kind, {"b": 1, "m": m, "n": n, "k": k, "elements": max(m * k, n * k, m * n)},
        partial(_addmm if kind == "addmm" else _mm_of_backward, device, dtype, m, n, k), dtype,
        flops=2.0 * m * n * k, bytes_moved=float(width * (m * k + k * n + m * n)),
    )  # fmt: skip


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


TINY_CONVOLUTIONS = ((1, 3, 1, 2, 2), (8, 3, 1, 3, 2), (4, 6, 2, 2, 3), (16, 5, 1, 6, 2))
"""Batch, side, channels in and out, and filter side of convolutions that are all overhead."""


def convolutions(device: str) -> Iterator[KernelCase]:
    """Yield convolutions forward and backward (gradients of input, weight and bias).

    Of every ten, two are depthwise, one is one-dimensional, one is transposed and three read an image's channels.
    """
    for n, side, c, k, r in TINY_CONVOLUTIONS:
        for backward in (False, True):
            size = _Convolution(n, c, k, (side, side), r, stride=1, groups=1, transposed=False)
            yield _convolution(device, size, backward=backward)
    bounds = ((1, 64), (2, 120), (4, 512), (4, 512), (1, len(FILTERS)))
    for number, (n, side, c, k, filter_) in enumerate(log_spread_sizes(440, *bounds)):
        make, r, stride = number % 10, FILTERS[filter_ - 1], 1 + (number % 4 == 0)
        flat, transposed, groups = make == 2, make == 3, 1
        if make in (0, 1):
            k = groups = c  # noqa: PLW2901 - one filter for each channel
        elif make in (4, 5, 6):
            c = (1, 3, 3)[make - 4]  # noqa: PLW2901 - an image's channels
        if transposed:
            r, stride = max(r, 2), 2
        axes = (side * side,) if flat else (side, side)
        size = _Convolution(n, c, k, axes, r, stride, groups, transposed)
        if min(size.out) >= 1 and size.flops <= MOST_FLOPS[device] / 2 and size.elements <= MOST_ELEMENTS[device]:
            for backward in (False, True):
                yield _convolution(device, size, backward=backward)


class _Convolution(Frozen):
    """Batch, channels in and out, input size along one or two axes, filter side, stride, and groups."""

    n: int
    c: int
    k: int
    size: tuple[int, ...]
    r: int
    stride: int
    groups: int
    transposed: bool

    @property
    def padding(self) -> int:
        return self.r // 2 if self.r % 2 else 0

    @property
    def out(self) -> tuple[int, ...]:
        if self.transposed:
            return tuple((side - 1) * self.stride - 2 * self.padding + self.r for side in self.size)
        return tuple((side + 2 * self.padding - self.r) // self.stride + 1 for side in self.size)

    @property
    def weight(self) -> tuple[int, ...]:
        first, second = (self.c, self.k) if self.transposed else (self.k, self.c)
        return (first, second // self.groups, *[self.r] * len(self.size))

    @property
    def flops(self) -> float:
        pixels = math.prod(self.size if self.transposed else self.out)
        return 2.0 * self.n * pixels * self.k * self.c // self.groups * math.prod(self.weight[2:])

    @property
    def elements(self) -> int:
        return self.n * max(self.c * math.prod(self.size), self.k * math.prod(self.out))


def _convolution(device: str, size: _Convolution, *, backward: bool) -> KernelCase:
    passes = 2 if backward else 1
    moved = size.n * (size.c * math.prod(size.size) + size.k * math.prod(size.out)) + math.prod(size.weight)
    # One axis is that of the width, in a height of 1.
    (h, w), (r, s) = ((1, *axes)[-2:] for axes in (size.out, size.weight[2:]))
    return KernelCase(
        "convolution_backward" if backward else "convolution",
        {"n": size.n, "c": size.c, "k": size.k, "h": h, "w": w, "r": r, "s": s, "groups": size.groups,
         "stride": size.stride, "transposed": int(size.transposed), "elements": size.elements},
        partial(_convolve, device, size, backward=backward), flops=size.flops * passes,
        bytes_moved=4.0 * moved * passes,
    )  # fmt: skip


def _convolve(device: str, size: _Convolution, *, backward: bool) -> Callable[[], object]:
    x, w, b = (tensor(device, *shape) for shape in ((size.n, size.c, *size.size), size.weight, (size.k,)))
    stride, padding, dilation, more = ([value] * len(size.size) for value in (size.stride, size.padding, 1, 0))
    where = (stride, padding, dilation, size.transposed, more, size.groups)
    if not backward:
        return lambda: aten.convolution(x, w, b, *where)
    grad = torch.randn_like(aten.convolution(x, w, b, *where))
    return lambda: aten.convolution_backward(grad, x, w, [size.k], *where, [True, True, True])


def attentions(device: str) -> Iterator[KernelCase]:
    """Yield fused attention forward and backward, as scaled_dot_product_attention selects it on this device."""
    for b, h, length, d in log_spread_sizes(48, (1, 32), (1, 16), (16, 1024), (8, 128)):
        if 10.0 * b * h * length * length * d > MOST_FLOPS[device]:
            continue
        for backward in (False, True):
            size = b * h * length * d
            yield KernelCase("attention_backward" if backward else "attention",
                       {"b": b, "h": h, "q": length, "kv": length, "d": d, "elements": size},
                       partial(_attend, device, b, h, length, d, backward=backward),
                       flops=(10.0 if backward else 4.0) * b * h * length * length * d,
                       bytes_moved=4.0 * size * (8 if backward else 4))  # fmt: skip


def _attend(device: str, b: int, h: int, length: int, d: int, *, backward: bool) -> Callable[[], object]:
    attention = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (tensor(device, b, h, length, d).requires_grad_(backward) for _ in range(3))
    if not backward:
        return lambda: attention(q, k, v)
    return _backward(attention(q, k, v), (q, k, v))


GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def recurrences(device: str) -> Iterator[KernelCase]:
    """Yield one recurrent layer of each type over a sequence, forward and backward, as the device runs it."""
    for number, (b, steps, c, h) in enumerate(log_spread_sizes(60, (2, 64), (8, 128), (8, 512), (16, 512))):
        for name, gates in GATES.items():
            if name != "lstm" and number % 2:
                continue
            flops = 2.0 * gates * b * steps * h * (c + h)
            if flops > MOST_FLOPS[device] / 3:
                continue
            for backward in (False, True):
                passes = 2 if backward else 1
                yield KernelCase(f"{name}_backward" if backward else name,
                           {"b": b, "q": steps, "c": c, "k": h, "elements": b * steps * h},
                           partial(_recur, device, name, (b, steps, c, h), backward=backward), flops=passes * flops,
                           bytes_moved=passes * 4.0 * (b * steps * (c + 5 * h) + gates * h * (c + h)))  # fmt: skip


def _recur(device: str, name: str, sizes: tuple[int, int, int, int], *, backward: bool) -> Callable[[], object]:
    b, steps, c, h = sizes
    layer = getattr(torch.nn, name.upper())(c, h, batch_first=True, device=device)
    x = tensor(device, b, steps, c).requires_grad_(backward)
    if not backward:
        without_gradients: Callable[[], object] = torch.no_grad()(partial(layer, x))
        return without_gradients
    y, _ = layer(x)
    return _backward(y, (x, *layer.parameters()))


def _backward(y: torch.Tensor, inputs: Sequence[torch.Tensor]) -> Callable[[], object]:
    """Return the backward pass from a random gradient of ``y`` to those of ``inputs``."""
    return partial(torch.autograd.grad, y, inputs, torch.randn_like(y), retain_graph=True)
