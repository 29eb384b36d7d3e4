"""Sizes to measure: spread evenly over the logarithms of what models use."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.quasirandom import SobolEngine

SEED = 2026


def log_spread_sizes(count: int, *bounds: tuple[int, int]) -> Iterator[tuple[int, ...]]:
    """Yield ``count`` tuples of whole numbers, each within its inclusive bounds and even in its logarithm.

    A scrambled Sobol sequence fills the space with any number of its first points.
    """
    for point in SobolEngine(len(bounds), scramble=True, seed=SEED).draw(count).tolist():
        yield tuple(
            min(round(math.exp(math.log(low) + share * (math.log(high + 1) - math.log(low)))), high)
            for share, (low, high) in zip(point, bounds, strict=True)
        )


OPERANDS_BYTES = 48e6
"""What the operands of a streaming kernel, rotated, hold together: more than the caches that a step has to itself."""


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One kernel to time.

    ``kind`` is the name of the aten operator without its namespace, ``prepare`` allocates the operands and returns
    the call. ``elements`` in ``dims`` is the largest operand or result, the size that pointwise kernels follow. A
    kernel that ``streams`` is bound by memory: it is timed on operands that the one before did not leave in a cache.
    """

    kind: str
    dims: dict[str, int]
    prepare: Callable[[], Callable[[], object]]
    dtype: str = "float32"
    flops: float = 0.0
    bytes_moved: float = 0.0
    streams: bool = False

    def call(self) -> Callable[[], object]:
        """Return the call to time; a streaming kernel takes other operands at every call."""
        copies = int(min(OPERANDS_BYTES // max(self.bytes_moved, 1), 16)) if self.streams else 1
        if copies < 2:
            return self.prepare()
        calls = [self.prepare() for _ in range(copies)]
        turn = 0

        def next_call() -> object:
            nonlocal turn
            turn = (turn + 1) % copies
            return calls[turn]()

        return next_call


def tensor(device: str, *shape: int, dtype: str = "float32") -> torch.Tensor:
    """Return random values in ``shape``; small enough that no kernel overflows."""
    count = torch.Size(shape).numel()
    values = _values(device)
    if count > values.numel():
        return torch.randn(shape, device=device).mul_(0.1).to(getattr(torch, dtype))
    return values[:count].clone().view(shape).to(getattr(torch, dtype))


@lru_cache(maxsize=1)
def _values(device: str) -> torch.Tensor:
    return torch.randn(2**22, device=device).mul_(0.1)
