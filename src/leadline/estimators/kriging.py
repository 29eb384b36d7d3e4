"""Interpolate scattered measurements: ordinary kriging from the nearest ones.

Kriging (Matheron 1963), which is Gaussian-process regression with an unknown mean, restricted to a neighbourhood so
that a prediction costs milliseconds without a numerical library.
"""

import math
from dataclasses import dataclass
from heapq import nsmallest
from operator import mul

NEIGHBOURS = 32
NUGGET = 0.05
"""Variance of a single measurement over the variance of the surface."""


@dataclass(frozen=True, slots=True)
class Surface:
    """Measured ``values`` at ``points``; coordinates are scaled so that one unit is the length of correlation.

    Covariance falls off as ``exp(-r²/2)``. Far from every point a prediction returns to the neighbours' mean.
    """

    points: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]

    def at(self, where: tuple[float, ...]) -> float:
        """Return the value expected at ``where``."""
        near = nsmallest(NEIGHBOURS, ((math.dist(point, where), i) for i, point in enumerate(self.points)))
        if len(near) == 1:
            return self.values[near[0][1]]
        points = [self.points[i] for _, i in near]
        values = [self.values[i] for _, i in near]
        matrix = [[_covariance(math.dist(one, other)) for other in points] for one in points]
        for i, row in enumerate(matrix):
            row[i] += NUGGET
        factor = _cholesky(matrix)
        ones = _solve(factor, [1.0] * len(near))
        solved = _solve(factor, values)
        mean = sum(solved) / (sum(ones) + 1.0)
        return mean + sum(
            _covariance(distance) * (s - mean * o) for (distance, _), s, o in zip(near, solved, ones, strict=True)
        )


def _covariance(distance: float) -> float:
    return math.exp(-0.5 * distance * distance)


def _cholesky(matrix: list[list[float]]) -> list[list[float]]:
    """Return the lower factor of a symmetric positive definite matrix."""
    factor: list[list[float]] = []
    for i, row in enumerate(matrix):
        line: list[float] = []
        for j in range(i):
            line.append((row[j] - _dot(line, factor[j][:j])) / factor[j][j])
        line.append(math.sqrt(row[i] - _dot(line, line)))
        factor.append(line)
    return factor


def _solve(factor: list[list[float]], right: list[float]) -> list[float]:
    """Return x of ``L Lᵀ x = right``."""
    forward: list[float] = []
    for line, value in zip(factor, right, strict=True):
        forward.append((value - _dot(line[:-1], forward)) / line[-1])
    x = [0.0] * len(right)
    for i in reversed(range(len(right))):
        x[i] = (forward[i] - sum(factor[k][i] * x[k] for k in range(i + 1, len(right)))) / factor[i][i]
    return x


def _dot(one: list[float], other: list[float]) -> float:
    return sum(map(mul, one, other), 0.0)
