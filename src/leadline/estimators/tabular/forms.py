"""What a law's form is: a sum of a part that does not grow with scale, the start-up, and one that does, the work."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from leadline.estimators.tabular.ports import Array, State

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Problem:
    """``logs`` (n,) to be met at ``u`` (n, columns), each with its ``weight``, whose mean is one.

    ``u`` are logarithms about their mean where ``stretched``, else standardised; ``scales`` are the columns that carry
    scale; ``crossed`` those that let its exponents differ between categories; ``steady`` those that carry scale and on
    which the time of a unit, which is asked for, hardly depends.
    """

    u: Array
    logs: Array
    weight: Array
    scales: Mask
    stretched: Mask
    crossed: Mask
    steady: Mask


class Law(Protocol):
    """A fitted form; needs numpy alone."""

    def halves(self, u: Array) -> tuple[Array, Array]:
        """Return the logarithms of the start-up and of the work (n,), minus infinity where there is none."""

    def spread(self, u: Array) -> Array:
        """Return the deviation of the sum's logarithm that comes from not knowing the law better (n,)."""

    def dump(self) -> State:
        """Return all that the law needs."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A law with the deviation of each sample about it (n,), and the logarithm of its evidence."""

    law: Law
    sigma: Array
    evidence: float


class Form(Protocol):
    """A recipe for a ``Law``."""

    @property
    def largest(self) -> int:
        """Return how many samples it is fitted on at most: it has few numbers to find."""

    def fit(self, problem: Problem, seed: int) -> list[Fitted]:
        """Return laws of different complexity, at least one."""

    def load(self, state: State) -> Law:
        """Return the law that ``dump`` gave."""


def total(terms: Array) -> Array:
    """Return the logarithm of the sum of exp(terms) over each row."""
    most = np.maximum(terms.max(axis=1, initial=-np.inf), -1e300)
    with np.errstate(divide="ignore"):
        return np.asarray(most + np.log(np.exp(terms - most[:, None]).sum(axis=1)), np.float64)
