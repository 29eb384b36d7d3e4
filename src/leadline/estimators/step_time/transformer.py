"""Time of a transformer's training step on many GPUs: a parametric model and its residuals.

t = m · [(c⁴ + e⁴)^¼ + u·e + layers · l] + optimizer + constant, over m microbatches. Here c are the seconds of
computing (products, attention, memory-bound passes), e those of communication, and u the share that never overlaps.
A Gaussian process of bounded size models the residuals and vanishes far from the training data.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from leadline.estimators.gp import Process
from leadline.estimators.ports import Array, Predictions, Stored
from leadline.estimators.step_time.transformer_terms import (
    TransformerStep,
    efficiency_features,
    gpu_generation,
    log_magnitudes,
    step_terms,
)

# Products: less than the peak where the width or the tokens of a microbatch are of the order of `narrow` and
# `few_tokens`. Activations and logits: bytes that pass for each. Optimizer: bytes a weight.
COEFFICIENTS = ("products", "narrow", "few_tokens", "float8", "attention", "activations", "logits", "optimizer",
                "transfer", "hops", "unhidden", "layer_s", "step_s")  # fmt: skip
# Spread of the efficiency on a GPU generation without training steps.
UNSEEN_PRODUCTS, UNSEEN_ATTENTION = 0.10, 0.20
# llm-foundry's steps at up to this log distance in length or GPUs stayed within the model's own spread.
VALIDATED_LOG_DISTANCE = math.log(32)
# Spread for each further unit of log distance: congestion, stragglers and other kernels have no term. An assumption,
# since nothing was measured there.
GROWTH = 0.2
# Spread of unmeasured block shapes (gated, fewer key-value heads), which pass over memory differently. An assumption.
UNLIKE = 0.05


class TransformerStepModel(Stored):
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
        point, slopes = predict_seconds(self.theta, features), _slopes(self.theta, features)
        x = (efficiency_features(steps) - self.middle) / self.scale
        remainder, unsure = self.process.predict(x)
        parameter_variance = np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes)
        magnitudes = log_magnitudes(steps)
        beyond = np.maximum(np.maximum(magnitudes - self.most, self.least - magnitudes), 0.0).max(axis=1)
        grown = GROWTH * np.maximum(beyond - VALIDATED_LOG_DISTANCE, 0.0)
        variance = parameter_variance + unsure**2 + self.noise**2 + grown**2 + self.untested_spread(steps) ** 2
        return Predictions(point * np.exp(remainder), np.sqrt(variance), beyond)

    def parts(self, steps: Sequence[TransformerStep]) -> dict[str, Array]:
        """Return the seconds of one step by kind of computing, and of communication without overlap."""
        features = step_terms(steps)
        coefficients = dict(zip(COEFFICIENTS, np.exp(self.theta), strict=True))
        shares = {**_computing(coefficients, features), "exchange": _exchange(coefficients, features)}
        return {name: seconds * features["microbatches"] for name, seconds in shares.items()}

    def untested_spread(self, steps: Sequence[TransformerStep]) -> Array:
        """Return the part of the spread (n,) that no training step can test: new GPUs, other blocks."""
        slopes = _slopes(self.theta, step_terms(steps))
        new = np.array([gpu_generation(step.device) not in self.generations for step in steps])
        unlike = np.array([not step.usual for step in steps])
        products, attention = slopes[:, COEFFICIENTS.index("products")], slopes[:, COEFFICIENTS.index("attention")]
        carried = new * np.hypot(UNSEEN_PRODUCTS * products, UNSEEN_ATTENTION * attention)
        return np.asarray(np.hypot(carried, UNLIKE * unlike), np.float64)


def predict_seconds(theta: Array, features: Mapping[str, Array]) -> Array:
    """Return the seconds of each step (n,) by the parametric model alone."""
    p = dict(zip(COEFFICIENTS, np.exp(theta), strict=True))
    computing = sum(_computing(p, features).values())
    exchange = _exchange(p, features)
    together = (computing**4 + exchange**4) ** 0.25
    microbatch = together + p["unhidden"] * exchange + features["layers"] * p["layer_s"]
    return np.asarray(
        features["microbatches"] * microbatch + p["optimizer"] * features["optimizer_s"] + p["step_s"], np.float64
    )


def _computing(p: dict[str, float], features: Mapping[str, Array]) -> dict[str, Array]:
    """Return the seconds of one microbatch by kind of work."""
    narrow = 1 + p["narrow"] / features["width"]
    few = 1 + p["few_tokens"] / features["tokens"]
    float8 = np.where(features["float8"] > 0, p["float8"], 1.0)
    return {
        "products": features["products_s"] * p["products"] * narrow * few * float8,
        "head": features["head_s"] * p["products"] * narrow,
        "attention": features["attention_s"] * p["attention"],
        "activations": features["activations_s"] * p["activations"],
        "logits": features["logits_s"] * p["logits"],
    }


def _exchange(p: dict[str, float], features: Mapping[str, Array]) -> Array:
    return np.asarray(features["transfer_s"] * p["transfer"] + features["hops_s"] * p["hops"], np.float64)


def _slopes(theta: Array, features: Mapping[str, Array]) -> Array:
    """Return the derivatives of the log seconds by each log coefficient (n, k)."""
    step = 1e-4
    ahead = [np.log(predict_seconds(theta + step * direction, features)) for direction in np.eye(len(theta))]
    behind = [np.log(predict_seconds(theta - step * direction, features)) for direction in np.eye(len(theta))]
    return np.asarray((np.array(ahead) - np.array(behind)).T / (2 * step), np.float64)
