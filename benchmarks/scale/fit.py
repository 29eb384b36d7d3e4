"""Fit the model of training steps to published steps, and score it on sources that are left out."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.normalized_errors import normalize_errors
from benchmarks.scale.rows import ScaleRow
from leadline.estimators.parallelism.product_times import ProductCurves
from leadline.estimators.parallelism.step_parts import DEVIATIONS, STARTS, log_slopes, step_seconds
from leadline.estimators.parallelism.training_step import StepTable
from leadline.estimators.ports import Array
from leadline.training.decoder_steps import EXPERTS, DecoderStepModel, log_magnitudes

Mask = npt.NDArray[np.bool_]

SCALE = 0.1
"""Log error of a step from which on it counts less: half of its weight at √2 times this."""
MOST_ROWS = 60
"""Rows that a source counts as at most."""
LEAST_NOISE = 0.03


def row_weights(rows: Sequence[ScaleRow]) -> Array:
    """Return the weight of each row (n,): all rows of a large source together count as ``MOST_ROWS``."""
    _, place, counts = np.unique([row.source for row in rows], return_inverse=True, return_counts=True)
    return np.asarray(np.minimum(1.0, MOST_ROWS / counts)[place], float)


def fit_coefficients(rows: Sequence[ScaleRow], curves: ProductCurves) -> tuple[Array, Array]:
    """Return the likeliest log coefficients (k,) and their covariance (k, k), by errors with Student's tails."""
    from scipy.optimize import least_squares  # noqa: PLC0415 - needed to fit alone

    table, target = StepTable([row.step for row in rows], curves), np.log([row.elapsed_s for row in rows])
    weights = row_weights(rows)

    def misfit(theta: Array) -> Array:
        errors = (target - np.log(step_seconds(theta, table))) / SCALE
        tamed = np.sign(errors) * np.sqrt(weights * 2 * np.log1p(errors**2 / 2))
        return np.concatenate([tamed, (theta - STARTS) / DEVIATIONS])

    answer = least_squares(misfit, STARTS, max_nfev=60)
    return np.asarray(answer.x, float), np.linalg.inv(answer.jac.T @ answer.jac)


def log_errors(theta: Array, rows: Sequence[ScaleRow], curves: ProductCurves) -> Array:
    """Return ln(measured ÷ predicted) of each row (n,)."""
    predicted = step_seconds(theta, StepTable([row.step for row in rows], curves))
    return np.asarray(np.log([row.elapsed_s for row in rows]) - np.log(predicted), float)


def left_out_errors(rows: Sequence[ScaleRow], groups: Sequence[str], curves: ProductCurves) -> tuple[Array, Array]:
    """Return the log errors of each row (n,) by a fit without its group, and their spread by that fit (n,)."""
    names = np.asarray(groups, np.str_)
    errors, spread = np.empty(len(rows)), np.empty(len(rows))
    for name in np.unique(names):
        held_out = np.flatnonzero(names == name).tolist()
        theta, covariance = fit_coefficients([rows[i] for i in np.flatnonzero(names != name).tolist()], curves)
        scored = [rows[i] for i in held_out]
        errors[held_out] = log_errors(theta, scored, curves)
        slopes = log_slopes(theta, StepTable([row.step for row in scored], curves))
        spread[held_out] = np.sqrt(np.einsum("ij,jk,ik->i", slopes, covariance, slopes))
    return errors, spread


def fit_step_model(rows: Sequence[ScaleRow], curves: ProductCurves) -> DecoderStepModel:
    """Fit the model of all rows; its intervals come from the errors on sources that are left out one by one."""
    theta, covariance = fit_coefficients(rows, curves)
    sources = [row.source for row in rows]
    errors, spread = left_out_errors(rows, sources, curves)
    noise = source_noise(errors, sources)
    steps = [row.step for row in rows]
    expert_noise = EXPERTS * np.array([step.work.expert_weights > 0 for step in steps])
    sizes = log_magnitudes(steps)
    return DecoderStepModel(
        curves, theta, covariance, noise,
        normalize_errors(errors, np.sqrt(spread**2 + noise**2 + expert_noise**2), sources),
        tuple(sorted({step.device.architecture or "" for step in steps})), sizes.min(axis=0), sizes.max(axis=0),
    )  # fmt: skip


def source_noise(errors: Array, sources: Sequence[str]) -> float:
    """Return the typical log error on a source that is left out: the median over sources of their median."""
    names = np.asarray(sources, np.str_)
    return max(float(np.median([np.median(np.abs(errors[names == name])) for name in np.unique(names)])), LEAST_NOISE)
