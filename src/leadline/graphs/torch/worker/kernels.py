"""Ops of Leadline's own for kernels that PyTorch runs without telling their shapes, or that other packages bring.

Each has a shape rule and no values. ``report`` knows their arithmetic and traffic.
"""

from typing import Any, List

import torch
from torch._subclasses.fake_tensor import FakeTensor

LIBRARY = torch.library.Library("leadline", "DEF")
"""The ops last as long as this object."""


def _define(signature: str, shape_rule: Any) -> None:
    LIBRARY.define(signature)
    name = signature.partition("(")[0]
    LIBRARY.impl(name, shape_rule, "Meta")


def _spmm_shape(indices: List[Any], values: Any, rows: int, dense: Any) -> Any:
    return dense.new_empty((rows, *dense.shape[1:]))


def _sddmm_shape(indices: List[Any], left: Any, right: Any) -> Any:
    return left.new_empty(indices[-1].shape[-1:])


def _scan_shape(u: Any, delta: Any, a: Any, b: Any, c: Any, rest: List[Any]) -> Any:
    # The kernel keeps a pair of float32 values per state at the end of each chunk of 2048 positions.
    chunks = -(-u.shape[-1] // 2048)
    kept = u.new_empty((u.shape[0], u.shape[1], chunks, 2 * a.shape[-1]), dtype=torch.float32)
    return torch.empty_like(u), kept


def _scan_backward_shape(grad: Any, kept: Any, inputs: List[Any]) -> Any:
    return [torch.empty_like(tensor) for tensor in inputs]


_define("spmm(Tensor[] indices, Tensor values, int rows, Tensor dense) -> Tensor", _spmm_shape)
_define("sddmm(Tensor[] indices, Tensor left, Tensor right) -> Tensor", _sddmm_shape)
_define(
    "selective_scan(Tensor u, Tensor delta, Tensor a, Tensor b, Tensor c, Tensor[] rest) -> (Tensor, Tensor)",
    _scan_shape,
)
_define("selective_scan_backward(Tensor grad, Tensor kept, Tensor[] inputs) -> Tensor[]", _scan_backward_shape)
_define("optimizer_8bit_(Tensor(a!) weight, Tensor grad, Tensor[] states) -> ()", lambda *_: None)
_define(
    "dequantize(Tensor packed, Tensor scales, int rows, int columns, ScalarType dtype) -> Tensor",
    lambda packed, scales, rows, columns, dtype: packed.new_empty((rows, columns), dtype=dtype),
)
kernels = torch.ops.leadline


class SparseProduct(torch.autograd.Function):
    """Product of a sparse matrix of ``rows`` × ``columns`` and a dense one, and its gradients."""

    @staticmethod
    def forward(ctx: Any, values: Any, dense: Any, indices: List[Any], rows: int) -> Any:
        """Return the product."""
        ctx.save_for_backward(values, dense, *indices)
        return kernels.spmm(indices, values, rows, dense)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients of the values and of the dense matrix."""
        values, dense, *indices = ctx.saved_tensors
        grad_values, grad_dense = None, None
        if ctx.needs_input_grad[0]:
            grad_values = kernels.sddmm(indices, grads[0], dense)
        if ctx.needs_input_grad[1]:
            grad_dense = kernels.spmm(indices, values, dense.shape[0], grads[0])
        return grad_values, grad_dense, None, None


class SelectiveScan(torch.autograd.Function):
    """The recurrence of a selective state-space model over all positions, as one kernel each way."""

    @staticmethod
    def forward(ctx: Any, u: Any, delta: Any, a: Any, b: Any, c: Any, *rest: Any) -> Any:
        """Return the outputs at all positions, of the shape of ``u``."""
        ctx.places = [place for place, tensor in enumerate(rest) if tensor is not None]
        given = [rest[place] for place in ctx.places]
        out, kept = kernels.selective_scan(u, delta, a, b, c, given)
        ctx.save_for_backward(u, delta, a, b, c, *given, kept)
        ctx.count = len(rest)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients of all inputs."""
        *inputs, kept = ctx.saved_tensors
        results = list(kernels.selective_scan_backward(grads[0], kept, inputs))
        rest = [None] * ctx.count
        for place, grad in zip(ctx.places, results[5:]):  # noqa: B905 - Python 3.9 has no strict
            rest[place] = grad
        return (*results[:5], *rest)


def is_fake(*tensors: Any) -> bool:
    """Return whether any of these is a tensor without data."""
    return any(isinstance(tensor, FakeTensor) for tensor in tensors)
