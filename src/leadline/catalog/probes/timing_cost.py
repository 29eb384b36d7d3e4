"""What timing a kernel costs, and which kernels of a list are worth it."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

CALLS, BLOCK_S, PREPARED_S = 5, 2e-3, 5e-3
"""A kernel with its operands made is timed in so many blocks, warm-up included, each of one call or about so long."""
TURN = (5**0.5 - 1) / 2
"""The golden ratio: its multiples fill the unit interval evenly, however many of them there are."""


def timing_cost_s(elapsed_s: Array) -> Array:
    """Return what timing kernels of so many seconds takes, of shape (n,)."""
    found: Array = CALLS * np.maximum(elapsed_s, BLOCK_S) + PREPARED_S
    return found


def timing_probability(elapsed_s: Array) -> Array:
    """Return how likely each kernel should be timed, of shape (n,): 1 for the shortest.

    One whose timing takes c times as long is worth 1 ÷ √c, which is best for a given total where all say as much
    (Neyman 1934).
    """
    found: Array = np.sqrt(timing_cost_s(np.zeros(1)) / timing_cost_s(elapsed_s))
    return found


def worth_timing(elapsed_s: Array) -> npt.NDArray[np.bool_]:
    """Tell which of n kernels to time, given what each is expected to take; the same ones every time."""
    chance = (0.5 + TURN * np.arange(len(elapsed_s))) % 1.0
    found: npt.NDArray[np.bool_] = chance < timing_probability(elapsed_s)
    return found
