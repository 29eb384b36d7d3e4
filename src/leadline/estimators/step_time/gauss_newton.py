"""Damped Gauss-Newton: the search that fits kernel models and op utilization to log errors."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from leadline.estimators.ports import Array

T = TypeVar("T")

LONGEST_STEP = 1.0
MOST_TRIES = 8


def minimize(
    cost_of: Callable[[Array], tuple[float, T]], linearize: Callable[[Array, T], tuple[Array, Array]], x: Array, *,
    damping: float, easier: float, harder: float, enough: float, rounds: int, least: float = 0.0,
    low: float | Array = -np.inf, high: float | Array = np.inf,
) -> tuple[Array, Array]:  # fmt: skip
    """Return the point of least cost between ``low`` and ``high``, and the normal matrix before the last step.

    ``cost_of`` returns the cost at a point (k,), and the intermediate results that ``linearize`` needs to return the
    normal matrix (k, k) and the right side (k,) of a step. ``damping`` is a multiple of that matrix's diagonal: divided
    by ``easier`` after a gain, else multiplied by ``harder``. The search ends after ``rounds``, or when a round lowers
    the cost by a smaller share than ``enough``.
    """
    cost, state = cost_of(x)
    for _ in range(rounds):
        normal, right = linearize(x, state)
        before = cost
        for _ in range(MOST_TRIES):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), right)
            tried = np.clip(x + np.clip(step, -LONGEST_STEP, LONGEST_STEP), low, high)
            reached, tried_state = cost_of(tried)
            if reached < cost:
                x, cost, state = tried, reached, tried_state
                damping = damping / easier if damping > least else 0.0
                break
            damping = max(harder * damping, least)
        if before - cost < enough * before:
            break
    return x, normal
