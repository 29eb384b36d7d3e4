"""Memory that PyTorch 1.3 to 1.5, which ran the published jobs, held and a current release frees.

From the releases' own sources (``tools/autograd/derivatives.yaml`` and the kernels):

- ``zero_grad`` filled gradients with zeros until 2.0; it frees them now.
- The derivatives of softmax and log-softmax kept their input and their result until 1.11. The product that softmax
  computes before its backward kernel is written out here, as an op of its own.
- ReLU kept its input unless it was in place; now it keeps its result.
- Hardtanh in place (ReLU6) kept its result; now it keeps a copy of its input.
- Group norm was batch norm over groups, and a product that kept the normalized values.

numpy, torch and Pillow also get back names that packages of 2021 import.
"""

from typing import Any

import numpy as np
import torch
from torch.nn import functional


class _Softmax(torch.autograd.Function):  # type: ignore[misc]
    """Softmax or its logarithm; keeps input and result."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, dim: int, logarithm: bool) -> torch.Tensor:
        result = (torch._log_softmax if logarithm else torch._softmax)(values, dim, False)  # noqa: FBT003
        ctx.save_for_backward(values, result)
        ctx.dim, ctx.logarithm = dim, logarithm
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        values, result = ctx.saved_tensors
        if ctx.logarithm:
            return torch._log_softmax_backward_data(gradient, result, ctx.dim, values.dtype), None, None
        product = gradient * result
        input_gradient = torch._softmax_backward_data(gradient, result, ctx.dim, values.dtype)
        del product
        return input_gradient, None, None


class _Relu(torch.autograd.Function):  # type: ignore[misc]
    """ReLU that keeps its input."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(values)
        return torch.ops.aten.relu(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (values,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(gradient, values, 0)


class _HardtanhInPlace(torch.autograd.Function):  # type: ignore[misc]
    """Hardtanh in place that keeps its result."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, low: float, high: float) -> torch.Tensor:
        result = torch._C._nn.hardtanh_(values, low, high)
        ctx.mark_dirty(result)
        ctx.save_for_backward(result)
        ctx.ends = low, high
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (result,) = ctx.saved_tensors
        return torch.ops.aten.hardtanh_backward(gradient, result, *ctx.ends), None, None


def install() -> None:
    """Make this process hold what those releases held."""
    name_older_things()
    zero_grad = torch.optim.Optimizer.zero_grad
    torch.optim.Optimizer.zero_grad = lambda self, *_, **__: zero_grad(self, set_to_none=False)
    everywhere = {
        "softmax": _keeping(logarithm=False), "log_softmax": _keeping(logarithm=True), "relu": _relu,
    }  # fmt: skip
    for name, kept in everywhere.items():
        for place in (torch, torch.Tensor, functional):
            setattr(place, name, kept)
    for name, kept in (("cross_entropy", _cross_entropy), ("hardtanh", _hardtanh), ("group_norm", _group_norm)):
        setattr(functional, name, kept)


def name_older_things() -> None:
    """Give numpy, torch and Pillow the names that packages of 2021 import."""
    for name, kind in (("int", int), ("float", float), ("bool", bool), ("object", object)):
        if name not in vars(np):
            setattr(np, name, kind)
    import PIL.Image

    if not hasattr(PIL.Image, "LINEAR"):
        PIL.Image.LINEAR = PIL.Image.Resampling.BILINEAR
    torch.nn.SyncBatchNorm._specify_ddp_gpu_num = lambda *_: None


def _keeping(*, logarithm: bool) -> Any:
    def apply(values: torch.Tensor, dim: int | None = None, *_: Any, dtype: Any = None, **__: Any) -> torch.Tensor:
        if dtype is not None:
            values = values.to(dtype)
        if dim is None:
            dim = 0 if values.dim() in (0, 1, 3) else 1
        return _Softmax.apply(values, dim, logarithm)

    return apply


def _group_norm(
    values: torch.Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5,
) -> torch.Tensor:  # fmt: skip
    """Return batch norm over groups as channels, scaled by a separate op that keeps its input."""
    joined = values.contiguous().view(1, values.shape[0] * groups, -1)
    normalized = functional.batch_norm(joined, None, None, None, None, True, 0.0, eps).view(values.shape)  # noqa: FBT003
    if weight is None or bias is None:
        return normalized
    shape = (1, -1, *(1 for _ in values.shape[2:]))
    return torch.addcmul(bias.view(shape), normalized, weight.view(shape))


def _relu(values: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return torch.relu_(values) if inplace else _Relu.apply(values)


def _hardtanh(values: torch.Tensor, low: float = -1.0, high: float = 1.0, inplace: bool = False) -> torch.Tensor:
    if inplace:
        return _HardtanhInPlace.apply(values, low, high)
    return torch.ops.aten.hardtanh(values, low, high)


def _cross_entropy(
    values: torch.Tensor, target: torch.Tensor, weight: Any = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean", **_: Any,
) -> torch.Tensor:  # fmt: skip
    """Return the loss as those releases composed it of log-softmax and negative log-likelihood."""
    return functional.nll_loss(
        functional.log_softmax(values, 1), target, weight=weight, ignore_index=ignore_index, reduction=reduction
    )
