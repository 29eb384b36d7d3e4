"""Sizes to measure: spread evenly over the logarithms of what models use."""

import math
from collections.abc import Iterator

from torch.quasirandom import SobolEngine

SEED = 2026


def spread(count: int, *bounds: tuple[int, int]) -> Iterator[tuple[int, ...]]:
    """Yield ``count`` tuples of whole numbers, each within its inclusive bounds and even in its logarithm.

    A scrambled Sobol sequence fills the space with any number of its first points.
    """
    for point in SobolEngine(len(bounds), scramble=True, seed=SEED).draw(count).tolist():
        yield tuple(
            min(round(math.exp(math.log(low) + share * (math.log(high + 1) - math.log(low)))), high)
            for share, (low, high) in zip(point, bounds, strict=True)
        )
