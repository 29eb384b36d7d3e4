"""The one-sided factors of the host's memory: what the process took over what was foretold, at 5 % on either side.

A factor is the conformal quantile of the ratios (Vovk et al. 2005): of m others, the one of rank 0.95·(m + 1). A family
of models goes wrong together, so that coverage is told by leaving each of them out in turn.
"""

import math
from collections.abc import Sequence

TAIL = 0.05
ENOUGH = 19
"""So few points have a quantile that 5 % exceed."""


def bound_factors(ratios: Sequence[float], families: Sequence[str], *, without: str = "") -> tuple[float, float]:
    """Return the factors on the point that measured ÷ foretold is below, and above, with 5 % each.

    Args:
        ratios: measured ÷ foretold of each point.
        families: of each point.
        without: a family that is left out.

    Raises:
        ValueError: fewer points remain than the quantile needs (19).
    """
    kept = sorted(ratio for ratio, family in zip(ratios, families, strict=True) if family != without)
    rank = math.ceil((1 - TAIL) * (len(kept) + 1))
    if rank > len(kept):
        raise ValueError(f"{len(kept)} points are too few for a bound that 5 % exceed: {ENOUGH} are needed")
    return kept[len(kept) - rank], kept[rank - 1]


def exceeded_left_out(ratios: Sequence[float], families: Sequence[str]) -> float:
    """Return the share (0 to 1) of points above the bound that was fitted without their family."""
    above = [
        ratio > bound_factors(ratios, families, without=family)[1]
        for ratio, family in zip(ratios, families, strict=True)
    ]
    return sum(above) / len(above)
