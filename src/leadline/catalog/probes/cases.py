"""One kernel to time, with the sizes that decide its speed."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel to time.

    ``kind`` is the name of the aten operator without its namespace, ``prepare`` allocates the operands and returns
    the call. ``elements`` in ``dims`` is the largest operand or result, the size that pointwise kernels follow.
    """

    kind: str
    dims: dict[str, int]
    prepare: Callable[[], Callable[[], object]]
    dtype: str = "float32"
    flops: float = 0.0
    bytes_moved: float = 0.0


def tensor(device: str, *shape: int, dtype: str = "float32") -> torch.Tensor:
    """Return random values in ``shape``; small enough that no kernel overflows."""
    return torch.randn(shape, device=device).mul_(0.1).to(getattr(torch, dtype))
