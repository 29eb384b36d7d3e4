"""Cost of timing a kernel, and the choice of kernels that are worth it."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

CALLS, BLOCK_S, PREPARED_S = 5, 2e-3, 5e-3
"""Blocks of a kernel's timing with warm-up, the length of a block of short calls, and the time to make operands."""
TURN = (5**0.5 - 1) / 2
"""Golden ratio, whose multiples fill the unit interval evenly at any count."""


def timing_cost_s(elapsed_s: Array) -> Array:
    """Return the seconds spent to time kernels of these durations, of shape (n,)."""
    cost_s: Array = CALLS * np.maximum(elapsed_s, BLOCK_S) + PREPARED_S
    return cost_s


def timing_probability(elapsed_s: Array) -> Array:
    """Return the probability with which each kernel should be timed, of shape (n,): 1 for the shortest.

    A kernel whose timing takes c times as long gets 1 ÷ √c, the optimum for a given total if all are equally
    informative (Neyman 1934).
    """
    probability: Array = np.sqrt(timing_cost_s(np.zeros(1)) / timing_cost_s(elapsed_s))
    return probability


def worth_timing(elapsed_s: Array) -> npt.NDArray[np.bool_]:
    """Return which of n kernels to time, given their expected seconds; deterministic."""
    chance = (0.5 + TURN * np.arange(len(elapsed_s))) % 1.0
    selected: npt.NDArray[np.bool_] = chance < timing_probability(elapsed_s)
    return selected
