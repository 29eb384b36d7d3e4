"""The model of whole training steps, adapted to measured steps or to a measured host.

The measured steps update the fitted coefficients as data update a Gaussian prior: a ridge in logarithms. The prior is
the fit's own uncertainty, the spread between sources as one factor of the device's speed, and that between hosts as one
factor of their launches.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from msgspec import structs

from leadline.core.errors import InvalidInput
from leadline.estimators.parallelism.step_parts import NAMES, log_slopes, step_seconds
from leadline.estimators.parallelism.training_step import StepTable, TrainingStep
from leadline.estimators.ports import Array, Stored
from leadline.estimators.step_time.gauss_newton import minimize
from leadline.estimators.step_time.roofline import MEASURED_HOST_SPREAD
from leadline.training.decoder_steps import (
    CLUSTER,
    NEW_GENERATION,
    OTHER_BOARD,
    DecoderStepModel,
    is_measured_board,
    log_magnitudes,
)

# Deviations of logarithms before the steps, assumptions; the seven published sources that were left out one by one had
# such factors. Hosts took 9 to 50 µs for a launch. Frameworks differ in how they move data and in their attention.
HOST = 1.0
OWN = {"reduction_launch_s": 1.0, "step_s": 0.6, "eager": 0.5, "flash2": 0.3, "written": 0.3, **CLUSTER}
SPEED = ("products", "products_narrow", "flash1", "flash2", "flash3", "written", "eager", "stream", "inner", "head",
         "optimizer_bytes")  # fmt: skip
# Host seconds of an op in a model of transformers over those in plain modules, which `leadline calibrate` times, and
# their log deviation: 5 models on a busy CPU took 1.2 to 3.6 times as long (`python -m benchmarks.gpu_steps.host`).
TRANSFORMERS_HOST, TRANSFORMERS_SPREAD = 2.2, 0.35
# Log deviation of a step between models of one source; measured steps count as ``NOISE_COUNT`` such steps against it.
NOISE, NOISE_COUNT = 0.15, 5.0
TAILS = 4.0  # degrees of freedom of a step's error: one odd step has little weight


class AdaptedCoefficients(Stored):
    """Log coefficients (k,) after the steps, their covariance (k, k), a step's noise, and the log sizes measured."""

    theta: Array
    covariance: Array
    noise: float
    least: Array
    most: Array

    @property
    def launch_s(self) -> float:
        """Host seconds of an op."""
        return math.exp(float(self.theta[NAMES.index("launch_s")]))

    def require_names(self) -> None:
        """Refuse coefficients of another version; ``InvalidInput`` says so."""
        size = len(NAMES)
        if self.theta.shape != (size,) or self.covariance.shape != (size, size):
            raise InvalidInput(f"it has {self.theta.size} coefficients of a training step, not {size}")


class KnownHostStepModel(DecoderStepModel):
    """The model in a host whose launches were measured."""

    slow_host: ClassVar[Array] = np.zeros(len(NAMES))
    cluster: ClassVar[Mapping[str, float]] = {name: size for name, size in CLUSTER.items() if name != "launch_s"}


class AdaptedStepModel(DecoderStepModel):
    """The model after measured steps of the device in its host."""

    slow_host: ClassVar[Array] = np.zeros(len(NAMES))
    cluster: ClassVar[Mapping[str, float]] = {}

    def _new_board(self, steps: Sequence[TrainingStep]) -> Array:
        return np.zeros(len(steps))


def with_measured_host(
    model: DecoderStepModel, launch_s: float, spread: float = MEASURED_HOST_SPREAD
) -> KnownHostStepModel:
    """Return the model in a host that takes ``launch_s`` seconds for an op, with the deviation of its logarithm."""
    theta, covariance = model.theta.copy(), model.covariance.copy()
    place = NAMES.index("launch_s")
    ratio = math.log(launch_s) - theta[place]
    for name in ("launch_s", "reduction_launch_s"):
        each = NAMES.index(name)
        theta[each] += ratio
        covariance[each, :] = covariance[:, each] = 0.0
        covariance[each, each] = spread**2
    return KnownHostStepModel(**_fields(model) | {"theta": theta, "covariance": covariance})


def adapt_step_model(model: DecoderStepModel, steps: Sequence[TrainingStep], step_s: Array) -> AdaptedCoefficients:
    """Return the likeliest coefficients, given the seconds (n,) of n steps on one kind of device in one host.

    Raises:
        InvalidInput: as ``DecoderStepModel.predict``.
    """
    table, target = StepTable(steps, model.curves), np.log(step_s)
    prior = _prior(model, steps)
    precision = np.linalg.inv(prior)

    def errors(theta: Array) -> Array:
        return np.asarray(target - np.log(step_seconds(theta, table)))

    def cost(theta: Array) -> tuple[float, Array]:
        error, moved = errors(theta), theta - model.theta
        misfit = (TAILS + 1) * float(np.log1p(error**2 / (TAILS * NOISE**2)).sum())
        return misfit + float(moved @ precision @ moved), error

    def weights(error: Array) -> Array:
        return np.asarray((TAILS + 1) / (TAILS + (error / NOISE) ** 2) / NOISE**2)

    def linearize(theta: Array, error: Array) -> tuple[Array, Array]:
        slopes, weight = log_slopes(theta, table), weights(error)
        normal = slopes.T @ (weight[:, None] * slopes) + precision
        return normal, slopes.T @ (weight * error) - precision @ (theta - model.theta)

    theta, _ = minimize(cost, linearize, model.theta.copy(), damping=0.01, easier=10, harder=10, enough=1e-5, rounds=30)
    noise = _noise(errors(theta), log_slopes(theta, table), prior)
    slopes = log_slopes(theta, table)
    covariance = np.linalg.inv(slopes.T @ slopes / noise**2 + precision)
    sizes = log_magnitudes(steps)
    return AdaptedCoefficients(theta, covariance, noise, sizes.min(axis=0), sizes.max(axis=0))


def with_coefficients(model: DecoderStepModel, adapted: AdaptedCoefficients) -> AdaptedStepModel:
    """Return the model with adapted coefficients."""
    ranges = {"least": np.minimum(model.least, adapted.least), "most": np.maximum(model.most, adapted.most)}
    kept = {"theta": adapted.theta, "covariance": adapted.covariance, "noise": adapted.noise, **ranges}
    return AdaptedStepModel(**_fields(model) | kept)


def _fields(model: DecoderStepModel) -> dict[str, Any]:
    return {name: getattr(model, name) for name in structs.asdict(model)}


def _prior(model: DecoderStepModel, steps: Sequence[TrainingStep]) -> Array:
    """Return the covariance (k, k) of the log coefficients before the steps."""
    device = steps[0].device
    new = OTHER_BOARD if not is_measured_board(device) else NEW_GENERATION * (
        device.architecture not in model.architectures
    )  # fmt: skip
    speed, host = np.isin(NAMES, SPEED) * 1.0, np.isin(NAMES, ("launch_s", "reduction_launch_s")) * 1.0
    own = np.array([OWN.get(name, 0.0) for name in NAMES])
    shared = (model.noise**2 + new**2) * np.outer(speed, speed) + HOST**2 * np.outer(host, host)
    return np.asarray(model.covariance + shared + np.diag(own**2))


def _noise(errors: Array, slopes: Array, prior: Array) -> float:
    """Return the log deviation of a step, from its prior value and the errors on steps that are left out."""
    fitted = slopes @ prior @ slopes.T
    share = np.diag(fitted @ np.linalg.inv(fitted + NOISE**2 * np.eye(len(errors))))
    left_out = errors / np.maximum(1 - share, 0.1)
    # One odd step must not widen all intervals.
    squares = np.minimum(left_out**2, (3 * NOISE) ** 2)
    return math.sqrt((NOISE_COUNT * NOISE**2 + float(squares.sum())) / (NOISE_COUNT + len(errors)))
