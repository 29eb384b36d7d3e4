"""Scores of held-out errors, from which shipped models make their intervals."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from leadline.uncertainty.normalized_scores import LEAST_SPREAD, NormalizedScores


def normalize_errors(
    log_error: npt.ArrayLike, spread: npt.ArrayLike, unit: Sequence[str] | None = None
) -> NormalizedScores:
    """Return the scores of m errors.

    An error is ln(measured ÷ predicted), ``spread`` the estimator's standard deviation of the logarithm. ``unit``
    names errors that occur together, such as those of one curve. All units weigh the same, whatever their number of
    errors. Later questions are about the same units, so each error still counts as one run.

    Raises:
        ValueError: there is no error, or one is not finite.
    """
    errors = np.abs(np.asarray(log_error, float))
    if not len(errors) or not np.isfinite(errors).all():
        raise ValueError("scores need errors of held-out runs, all finite, and at least one")
    units = np.arange(len(errors)) if unit is None else np.asarray(unit, np.str_)
    _, place, counts = np.unique(units, return_inverse=True, return_counts=True)
    scores = errors / np.maximum(np.asarray(spread, float), LEAST_SPREAD)
    order = np.argsort(scores)
    weights = len(errors) / len(counts) / counts[place]
    return NormalizedScores(scores[order], weights[order])
