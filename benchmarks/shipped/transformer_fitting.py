"""Fit the model of transformers' training steps to measured ones, with priors from published figures.

The fit minimises relative errors (pseudo-Huber) and models what remains by a Gaussian process.
"""

from collections.abc import Sequence

import numpy as np

from leadline.core.errors import InvalidInput
from leadline.estimators.gp import GaussianProcess, Process
from leadline.estimators.ports import Array
from leadline.estimators.step_time.transformer import (
    COEFFICIENTS,
    TransformerStep,
    TransformerStepModel,
    efficiency_features,
    gpu_generation,
    log_magnitudes,
    predict_seconds,
    step_terms,
)

# Coefficient → its value before any step was seen, and the deviation of its logarithm. Products: 80 % of the peak,
# less where the width or the tokens of a microbatch are of the order of `narrow` and `few_tokens`. Float8 gains a
# third, not twofold. Activations: bytes that pass for each of a block's (norms, residuals, activation functions,
# dropout, and their gradients), a third of it again where they are recomputed. Logits: bytes for each in cross
# entropy. Optimizer: bytes a weight (Adam in mixed precision). Hops: NCCL's own constants.
BELIEFS = {
    "products": (1.25, 0.15),
    "narrow": (150.0, 0.7),
    "few_tokens": (500.0, 1.0),
    "float8": (1.5, 0.2),
    "attention": (1.0, 0.1),
    "activations": (60.0, 0.4),
    "logits": (20.0, 0.4),
    "optimizer": (30.0, 0.3),
    "transfer": (1.0, 0.3),
    "hops": (1.0, 0.3),
    "unhidden": (0.2, 0.5),
    "layer_s": (3e-4, 0.7),
    "step_s": (5e-3, 0.7),
}
_CENTRE = np.log([BELIEFS[name][0] for name in COEFFICIENTS])
_WIDTH = np.array([BELIEFS[name][1] for name in COEFFICIENTS])
LEAST = 8

# Relative errors below this count by their square, larger ones by their size.
SCALE = 0.03
# Errors are clipped to so many typical ones before the process is fitted, and weigh less.
WILD = 3.0


def fit_transformer_steps(steps: Sequence[TransformerStep], elapsed_s: Sequence[float]) -> TransformerStepModel:
    """Fit the model to measured steps and their seconds.

    Raises:
        InvalidInput: there are too few steps, a time is not above zero, or a device lacks a figure.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415 - needed to fit alone

    times = np.asarray(elapsed_s, np.float64)
    if len(times) < LEAST:
        raise InvalidInput(f"{len(times)} measured steps are too few for the training-step model: give {LEAST} or more")
    if not np.all(times > 0):
        raise InvalidInput(f"a step took {times.min():g} s: leave out what is not above zero")
    features, target = step_terms(steps), np.log(times)

    def off(theta: Array) -> Array:
        error = (np.log(predict_seconds(theta, features)) - target) / SCALE
        damped = np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1))
        return np.concatenate([damped, (theta - _CENTRE) / _WIDTH])

    answer = least_squares(off, _CENTRE)
    theta = np.asarray(answer.x, np.float64)
    errors = target - np.log(predict_seconds(theta, features))
    usual = max(1.4826 * float(np.median(np.abs(errors))), 1e-4)
    process, middle, scale = _remainder(efficiency_features(steps), errors, usual)
    residual = errors - process.predict((efficiency_features(steps) - middle) / scale)[0]
    noise = max(1.4826 * float(np.median(np.abs(residual))), 1e-4)
    covariance = np.linalg.inv(answer.jac.T @ answer.jac)
    generations = tuple(sorted({gpu_generation(step.device) for step in steps}))
    reach = log_magnitudes(steps)
    return TransformerStepModel(
        theta, covariance, process, middle, scale, noise, generations, reach.min(axis=0), reach.max(axis=0)
    )


def _remainder(x: Array, errors: Array, usual: float) -> tuple[Process, Array, Array]:
    """Return the process of the residuals with outliers cut, and the scaling of its inputs."""
    middle, scale = x.mean(axis=0), np.maximum(x.std(axis=0), 0.3)
    most = WILD * usual
    weight = np.minimum(1.0, (most / np.maximum(np.abs(errors), 1e-12)) ** 2)
    cut = np.clip(errors, -most, most)
    process = GaussianProcess(trend=False).fit((x - middle) / scale, cut, weight / weight.mean(), 0)
    return process, middle, scale


def model_flops(step: TransformerStep) -> float:
    """Return the FLOPs of one GPU's step that the model needs: 6 a weight and token, plus attention."""
    weights = step.block_weights + step.vocabulary * step.width
    attention = 6.0 * step.layers * step.sequence * step.attended
    return step.microbatches * step.tokens * (6.0 * weights + attention)
