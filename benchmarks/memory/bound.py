"""One-sided factors on predicted memory, from the ratios of measured to predicted memory, with 5 % on either side.

A factor is the conformal quantile of m ratios (Vovk et al. 2005): the one of rank 0.95·(m + 1). The errors of a model
family are correlated, so coverage is judged by leaving out each family in turn.
"""

import math
from collections.abc import Mapping, Sequence

from leadline.estimators.gpu_memory_interval import DOMAIN_FACTORS
from leadline.estimators.step_time.selection import Domain

TAIL = 0.05
ENOUGH = 19
"""The least number of points with a quantile that 5 % exceed."""


def bound_factors(ratios: Sequence[float], families: Sequence[str], *, without: str = "") -> tuple[float, float]:
    """Return the factors that 5 % of the ratios stay below, and that 5 % exceed.

    Args:
        ratios: Measured ÷ predicted memory of each point.
        families: Model family of each point.
        without: A family to leave out.

    Raises:
        ValueError: Fewer than 19 points remain.
    """
    kept = sorted(ratio for ratio, family in zip(ratios, families, strict=True) if family != without)
    rank = math.ceil((1 - TAIL) * (len(kept) + 1))
    if rank > len(kept):
        raise ValueError(f"{len(kept)} points are too few for a bound that 5 % exceed: it needs {ENOUGH}")
    return kept[len(kept) - rank], kept[rank - 1]


def exceeded_left_out(ratios: Sequence[float], families: Sequence[str]) -> float:
    """Return the share (0 to 1) of points above the bound fitted without their family."""
    above = [
        ratio > bound_factors(ratios, families, without=family)[1]
        for ratio, family in zip(ratios, families, strict=True)
    ]
    return sum(above) / len(above)


def transfer_bounds(sources: Mapping[str, Sequence[float]]) -> tuple[tuple[float, float], dict[str, float]]:
    """Return the bounds of language models on a new source, and the share of each source above the others' bounds.

    The bounds of a source are its own quantiles. Those of a new one are the widest of all sources, with those of vision
    models, widened by how much the second widest were too narrow for the widest.

    Args:
        sources: Measured ÷ predicted memory of the runs of each source.
    """
    own = {name: bound_factors(ratios, [""] * len(ratios), without="none") for name, ratios in sources.items()}
    shares = {}
    for name, ratios in sources.items():
        _, high = _widened([bounds for other, bounds in own.items() if other != name])
        shares[name] = sum(ratio > high for ratio in ratios) / len(ratios)
    return _widened(list(own.values())), shares


def _widened(bounds: Sequence[tuple[float, float]]) -> tuple[float, float]:
    lows, highs = zip(*bounds, DOMAIN_FACTORS[Domain.VISION], strict=True)
    lowest, low, *_ = sorted(lows)
    highest, high, *_ = sorted(highs, reverse=True)
    return lowest * min(lowest / low, 1.0), highest * max(highest / high, 1.0)
