"""Time of a transformer's training step on many GPUs: a parametric model and its residuals.

t = m · [(c⁴ + e⁴)^¼ + u·e + layers · l] + optimizer + constant, over m microbatches. Here c are the seconds of
computing (products, attention, memory-bound passes), e those of communication, and u the share that never overlaps.
Coefficients are positive, with priors from published figures. The fit minimises relative errors (pseudo-Huber). A
Gaussian process of bounded size models the residuals and vanishes far from the training data.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leadline.core.errors import InvalidInput
from leadline.estimators.gp import GaussianProcess, Process
from leadline.estimators.ports import Array, Predictions, State, floats, nest, strings, text_array, unnest
from leadline.estimators.step_time.transformer_terms import (
    StepTerms,
    TransformerStep,
    efficiency_features,
    gpu_generation,
    log_magnitudes,
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

# Relative errors below this count by their square, larger ones by their size.
SCALE = 0.03
# Errors are clipped to so many typical ones before the process is fitted, and weigh less.
WILD = 3.0
# Spread of the efficiency on a GPU generation without training steps.
UNSEEN_PRODUCTS, UNSEEN_ATTENTION = 0.10, 0.20
# llm-foundry's steps at up to this log distance in length or GPUs stayed within the model's own spread.
VALIDATED_LOG_DISTANCE = math.log(32)
# Spread for each further unit of log distance: congestion, stragglers and other kernels have no term. An assumption,
# since nothing was measured there.
GROWTH = 0.2
# Spread of unmeasured block shapes (gated, fewer key-value heads), which pass over memory differently. An assumption.
UNLIKE = 0.05
LEAST = 8
COEFFICIENTS = tuple(BELIEFS)
_CENTRE = np.log([value for value, _ in BELIEFS.values()])
_WIDTH = np.array([width for _, width in BELIEFS.values()])


@dataclass(frozen=True, slots=True)
class TransformerStepModel:
    """Log coefficients (k,) with covariance (k, k), and the Gaussian process of the residuals.

    ``middle`` and ``scale`` (columns,) standardise the process's inputs. ``noise`` is the deviation of the final
    residuals. ``least`` and ``most`` are the log sizes (``log_magnitudes``) of the training data.
    """

    theta: Array
    covariance: Array
    process: Process
    middle: Array
    scale: Array
    noise: float
    generations: tuple[str, ...]
    least: Array
    most: Array

    def predict(self, steps: Sequence[TransformerStep]) -> Predictions:
        """Return the seconds of each step; ``extrapolation`` is its log distance to the training data.

        Raises:
            InvalidInput: a device lacks a figure, or a size is not above zero.
        """
        features = step_terms(steps)
        point, slopes = _predict_seconds(self.theta, features), _slopes(self.theta, features)
        x = (efficiency_features(steps) - self.middle) / self.scale
        remainder, unsure = self.process.predict(x)
        parameter_variance = np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes)
        beyond = self._extrapolation(steps)
        grown = GROWTH * np.maximum(beyond - VALIDATED_LOG_DISTANCE, 0.0)
        variance = parameter_variance + unsure**2 + self.noise**2 + grown**2 + self._untested_spread(steps, slopes) ** 2
        return Predictions(point * np.exp(remainder), np.sqrt(variance), beyond)

    def untested_spread(self, steps: Sequence[TransformerStep]) -> Array:
        """Return the part of the spread (n,) that no training step can test: new GPUs, other blocks."""
        return self._untested_spread(steps, _slopes(self.theta, step_terms(steps)))

    def parts(self, steps: Sequence[TransformerStep]) -> dict[str, Array]:
        """Return the seconds of one step by kind of computing, and of communication without overlap."""
        features = step_terms(steps)
        coefficients = dict(zip(COEFFICIENTS, np.exp(self.theta), strict=True))
        shares = {**_computing(coefficients, features), "exchange": _exchange(coefficients, features)}
        return {name: seconds * features.microbatches for name, seconds in shares.items()}

    def dump(self) -> State:
        """Return the model as arrays."""
        arrays = {"theta": self.theta, "covariance": self.covariance, "middle": self.middle, "scale": self.scale}
        reach = {"least": self.least, "most": self.most}
        context = {"noise": np.array([self.noise]), "generations": text_array(self.generations), **reach}
        return {**arrays, **context, **nest("process", self.process.dump())}

    def _extrapolation(self, steps: Sequence[TransformerStep]) -> Array:
        magnitudes = log_magnitudes(steps)
        return np.asarray(
            np.maximum(np.maximum(magnitudes - self.most, self.least - magnitudes), 0.0).max(axis=1), np.float64
        )

    def _untested_spread(self, steps: Sequence[TransformerStep], slopes: Array) -> Array:
        """Return the spread due to GPU generations and block shapes outside the training data."""
        new = np.array([gpu_generation(step.device) not in self.generations for step in steps])
        unlike = np.array([not step.usual for step in steps])
        products, attention = slopes[:, COEFFICIENTS.index("products")], slopes[:, COEFFICIENTS.index("attention")]
        carried = new * np.hypot(UNSEEN_PRODUCTS * products, UNSEEN_ATTENTION * attention)
        return np.asarray(np.hypot(carried, UNLIKE * unlike), np.float64)


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
        error = (np.log(_predict_seconds(theta, features)) - target) / SCALE
        damped = np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1))
        return np.concatenate([damped, (theta - _CENTRE) / _WIDTH])

    answer = least_squares(off, _CENTRE)
    theta = np.asarray(answer.x, np.float64)
    errors = target - np.log(_predict_seconds(theta, features))
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


def load_transformer_steps(state: State) -> TransformerStepModel:
    """Return the model that ``dump`` wrote."""
    theta, covariance, middle, scale, least, most = (
        floats(state[name]) for name in ("theta", "covariance", "middle", "scale", "least", "most")
    )
    process = GaussianProcess(trend=False).load(unnest("process", state))
    noise = float(floats(state["noise"])[0])
    return TransformerStepModel(
        theta, covariance, process, middle, scale, noise, strings(state["generations"]), least, most
    )


def _remainder(x: Array, errors: Array, usual: float) -> tuple[Process, Array, Array]:
    """Return the process of the residuals with outliers cut, and the scaling of its inputs."""
    middle, scale = x.mean(axis=0), np.maximum(x.std(axis=0), 0.3)
    most = WILD * usual
    weight = np.minimum(1.0, (most / np.maximum(np.abs(errors), 1e-12)) ** 2)
    cut = np.clip(errors, -most, most)
    process = GaussianProcess(trend=False).fit((x - middle) / scale, cut, weight / weight.mean(), 0)
    return process, middle, scale


def _predict_seconds(theta: Array, features: StepTerms) -> Array:
    """Return the seconds of each step (n,) by the parametric model alone."""
    p = dict(zip(COEFFICIENTS, np.exp(theta), strict=True))
    computing = sum(_computing(p, features).values())
    exchange = _exchange(p, features)
    together = (computing**4 + exchange**4) ** 0.25
    microbatch = together + p["unhidden"] * exchange + features.layers * p["layer_s"]
    return np.asarray(
        features.microbatches * microbatch + p["optimizer"] * features.optimizer_s + p["step_s"], np.float64
    )


def _computing(p: dict[str, float], features: StepTerms) -> dict[str, Array]:
    """Return the seconds of one microbatch by kind of work."""
    narrow = 1 + p["narrow"] / features.width
    few = 1 + p["few_tokens"] / features.tokens
    float8 = np.where(features.float8 > 0, p["float8"], 1.0)
    return {
        "products": features.products_s * p["products"] * narrow * few * float8,
        "head": features.head_s * p["products"] * narrow,
        "attention": features.attention_s * p["attention"],
        "activations": features.activations_s * p["activations"],
        "logits": features.logits_s * p["logits"],
    }


def _exchange(p: dict[str, float], features: StepTerms) -> Array:
    return np.asarray(features.transfer_s * p["transfer"] + features.hops_s * p["hops"], np.float64)


def _slopes(theta: Array, features: StepTerms) -> Array:
    """Return the derivatives of the log seconds by each log coefficient (n, k)."""
    step = 1e-4
    ahead = [np.log(_predict_seconds(theta + step * direction, features)) for direction in np.eye(len(theta))]
    behind = [np.log(_predict_seconds(theta - step * direction, features)) for direction in np.eye(len(theta))]
    return np.asarray((np.array(ahead) - np.array(behind)).T / (2 * step), np.float64)
