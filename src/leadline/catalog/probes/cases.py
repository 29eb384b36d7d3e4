"""Kernel cases of the sweep, and sizes evenly spread over the logarithms of common sizes."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import cycle

import torch
from torch.quasirandom import SobolEngine

from leadline.core.frozen import Frozen

SEED = 2026


def log_spread_sizes(count: int, *bounds: tuple[int, int]) -> Iterator[tuple[int, ...]]:
    """Yield ``count`` integer tuples within inclusive bounds, uniform in the logarithm.

    Any prefix of a scrambled Sobol sequence covers the space.
    """
    for point in SobolEngine(len(bounds), scramble=True, seed=SEED).draw(count).tolist():
        yield tuple(
            min(round(math.exp(math.log(low) + share * (math.log(high + 1) - math.log(low)))), high)
            for share, (low, high) in zip(point, bounds, strict=True)
        )


Prepare = Callable[..., Callable[[], object]]
"""Allocates a kernel's operands on a device in a shape, and returns the call."""

MOST_ELEMENTS = 2**22
"""Elements of the largest operand of a kernel that works by rows."""

OPERANDS_BYTES = 48e6
"""Total bytes of the rotated operands of a kernel, more than the caches available to a step."""


class KernelCase(Frozen):
    """One kernel to time."""

    kind: str
    """Name of the aten operator without its namespace."""
    dims: dict[str, int]
    """Sizes; ``elements`` is the largest operand or result, which determines pointwise kernels."""
    prepare: Callable[[], Callable[[], object]]
    """Allocates the operands and returns the call."""
    dtype: str = "float32"
    flops: float = 0.0
    bytes_moved: float = 0.0

    def call(self) -> Callable[[], object]:
        """Return the call to time, on other operands each time: in a step, other kernels have filled the caches."""
        operand_sets = int(min(OPERANDS_BYTES // max(self.bytes_moved, 1), 16))
        if operand_sets < 2:
            return self.prepare()
        calls = cycle([self.prepare() for _ in range(operand_sets)])

        def next_call() -> object:
            return next(calls)()

        return next_call


def row_cases(
    device: str, kernels: Mapping[str, Prepare], shapes: Iterable[tuple[int, int, tuple[int, ...]]]
) -> Iterator[KernelCase]:
    """Yield memory-bound kernels by (rows, columns, shape of the operand); each element is read and written once."""
    for rows, columns, shape in shapes:
        if rows * columns > MOST_ELEMENTS:
            continue
        for kind, prepare in kernels.items():
            yield KernelCase(kind, {"rows": rows, "columns": columns, "elements": rows * columns},
                             partial(prepare, device, *shape), bytes_moved=8.0 * rows * columns)  # fmt: skip


def on_tensors(count: int, function: Callable[..., object], *arguments: object, **options: object) -> Prepare:
    """Return what prepares a ``function`` of ``count`` tensors of one shape and of the ``arguments`` after them."""

    def prepare(device: str, *shape: int) -> Callable[[], object]:
        return partial(function, *(tensor(device, *shape) for _ in range(count)), *arguments, **options)

    return prepare


def tensor(device: str, *shape: int, dtype: str = "float32") -> torch.Tensor:
    """Return random values in ``shape``, small enough that no kernel overflows."""
    count = torch.Size(shape).numel()
    values = _values(device)
    if count > values.numel():
        return torch.randn(shape, device=device).mul_(0.1).to(getattr(torch, dtype))
    return values[:count].clone().view(shape).to(getattr(torch, dtype))


@lru_cache(maxsize=1)
def _values(device: str) -> torch.Tensor:
    return torch.randn(2**22, device=device).mul_(0.1)
