"""Damped Gauss-Newton: the search that fits kernel models and op utilization to log errors."""

from typing import Protocol, TypeVar

import numpy as np

from leadline.core.frozen import Frozen
from leadline.estimators.ports import Array

T = TypeVar("T")

LONGEST_STEP = 1.0
MOST_TRIES = 8


class LeastSquares(Protocol[T]):
    """A cost to minimise, linearised at points x (k,)."""

    def cost(self, x: Array) -> tuple[float, T]:
        """Return the cost at ``x``, and the intermediate results that ``normal`` needs."""

    def normal(self, x: Array, state: T) -> tuple[Array, Array]:
        """Return the normal matrix (k, k) and the right side (k,) of a step."""


class Damping(Frozen):
    """Multiple of the normal matrix's diagonal: divided by ``easier`` after a gain, else multiplied by ``harder``.

    A search ends after ``rounds``, or when a round lowers the cost by a smaller share than ``enough``.
    """

    start: float
    easier: float
    harder: float
    enough: float
    rounds: int
    least: float = 0.0


def minimize(
    problem: LeastSquares[T], x: Array, damping: Damping, *, low: float | Array = -np.inf, high: float | Array = np.inf
) -> tuple[Array, Array]:
    """Return the point of least cost between ``low`` and ``high``, and the normal matrix before the last step."""
    (cost, state), amount = problem.cost(x), damping.start
    for _ in range(damping.rounds):
        normal, right = problem.normal(x, state)
        before = cost
        for _ in range(MOST_TRIES):
            step = np.linalg.solve(normal + amount * np.diag(np.diag(normal)), right)
            tried = np.clip(x + np.clip(step, -LONGEST_STEP, LONGEST_STEP), low, high)
            reached, tried_state = problem.cost(tried)
            if reached < cost:
                x, cost, state = tried, reached, tried_state
                amount = amount / damping.easier if amount > damping.least else 0.0
                break
            amount = max(damping.harder * amount, damping.least)
        if before - cost < damping.enough * before:
            break
    return x, normal
