"""What every tabular estimator is: fitted on samples, asked about rows, and kept as plain arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from leadline.core.samples import Sample, Value

Array = npt.NDArray[np.float64]
State = dict[str, npt.NDArray[np.generic]]
"""A fitted estimator as named arrays without objects: numbers, and texts as ``<U`` arrays. Kept without pickle."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Figures for n rows, each of shape (n,).

    ``point`` is above zero, in the target's unit. ``spread`` is the standard deviation of ln(true ÷ point) that the
    estimator itself believes, and NaN where it believes none. ``beyond`` is how far a row lies outside what was
    fitted: 0 within, else the largest excess of a feature in units of the fitted range (its logarithm for features
    above zero), infinity for a category never seen.
    """

    point: Array
    spread: Array
    beyond: Array


class FittedEstimator(Protocol):
    """Answers for rows it may never have seen; needs numpy alone, so that asking starts fast."""

    @property
    def name(self) -> str: ...  # noqa: D102 - a field

    def predict(self, rows: Sequence[Mapping[str, Value]]) -> Predicted:
        """Predict each row; a feature that is missing or unknown is answered with a wide spread, never an error."""

    def dump(self) -> State:
        """Return all that ``predict`` needs; the module's ``load`` makes the same estimator of it."""


class TabularEstimator(Protocol):
    """A recipe for fitting; scikit-learn and scipy may be needed to fit."""

    @property
    def name(self) -> str: ...  # noqa: D102 - a field

    def fit(self, samples: Sequence[Sample], *, scale_features: Sequence[str] = (), seed: int = 0) -> FittedEstimator:
        """Fit on ``samples``; censored ones are lower bounds.

        Raises:
            InvalidInput: there are too few samples that are not censored for this estimator; how many it needs.
        """


class Kept(TabularEstimator, Protocol):
    """An estimator that can be made again of its state."""

    def load(self, state: State) -> FittedEstimator:
        """Return the fitted estimator that ``dump`` gave."""
