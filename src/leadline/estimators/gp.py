"""Gaussian-process regression: a linear trend and a rough part with one length per column.

The trend in logarithms makes it a power law far from the samples, including the uncertainty of its slopes. The rough
part has Matérn's covariance with smoothness 5/2. Source: Rasmussen and Williams 2006, chapters 2, 4 and 5.
"""

import math
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from leadline.estimators.ports import Array, IntArray, Regression, Stored

# Lengths and amplitudes are found on at most so many rows …
TUNED_ON = 250
# … and at most so many stand for all rows in prediction.
KEPT = 350
ROUNDS = 40
ROOT5 = math.sqrt(5)
# Shares of the mean variance that are added to all where rounding has made a covariance indefinite.
RESCUES = (0.0, 1e-10, 1e-8, 1e-6, 1e-4)

Number = TypeVar("Number", bound=np.floating[Any])


class Process(Stored):
    """``mean`` + k(x, points) · ``alpha``; the variance is k(x, x) - |k(x, points) · ``root``|².

    ``slopes`` (1 + columns) are the variances of the constant and the linear part, ``rough`` that of the rest, with
    ``lengths`` (columns).
    """

    figures = ("mean", "rough")

    mean: float
    points: Array
    alpha: Array
    root: Array
    slopes: Array
    rough: float
    lengths: Array

    def predict(self, x: Array) -> tuple[Array, Array]:
        """Return the mean and the deviation of the function (not of a new measurement) at each row."""
        covariance = _linear(x, self.points, self.slopes) + self.rough * _matern(x, self.points, self.lengths)
        prior = self.slopes[0] + x**2 @ self.slopes[1:] + self.rough
        explained = np.sum((covariance @ self.root) ** 2, axis=1)
        return self.mean + covariance @ self.alpha, np.sqrt(np.maximum(prior - explained, 0.0))


class GaussianProcess(Regression):
    """Lengths, amplitudes and noise by the most probable evidence; ``trend`` adds the linear part.

    Many rows are represented by those farthest from each other, through which all are seen (the projected process,
    Rasmussen and Williams 2006, section 8.3.4).
    """

    fitted = Process

    trend: bool = True

    def fit(self, x: Array, y: Array, weight: Array, seed: int) -> Process:
        """Fit the process; a row of twice the weight has half the noise variance."""
        mean = float(np.average(y, weights=weight))
        tuned = farthest_points(x, TUNED_ON, seed)
        scale = max(float(y.std()), 1e-6)
        slopes, rough, noise, lengths = _tune(x[tuned], (y[tuned] - mean) / scale, weight[tuned], trend=self.trend)
        slopes, rough, noises = slopes * scale**2, rough * scale**2, noise * scale**2 / weight
        kept = farthest_points(x, KEPT, seed)
        points = x[kept]
        among = _linear(points, points, slopes) + rough * _matern(points, points, lengths)
        jitter = 1e-8 * (float(np.trace(among)) / len(points) + 1e-12) * np.eye(len(points))
        if len(kept) == len(x):
            alpha, root = _solve(among + np.diag(noises[kept]) + jitter, y[kept] - mean)
            return Process(mean, points, alpha, root, slopes, rough, lengths)
        between = _linear(x, points, slopes) + rough * _matern(x, points, lengths)
        posterior = among + jitter + (between / noises[:, None]).T @ between
        alpha, _ = _solve(posterior, between.T @ ((y - mean) / noises))
        reduction = np.linalg.inv(among + jitter) - np.linalg.inv(posterior)
        values, vectors = np.linalg.eigh((reduction + reduction.T) / 2)
        return Process(mean, points, alpha, vectors * np.sqrt(np.maximum(values, 0)), slopes, rough, lengths)


def farthest_points(x: Array, most: int, seed: int) -> IntArray:
    """Return at most ``most`` rows in ascending order, each farthest from those chosen before.

    The greedy selection is Gonzalez's (1985).
    """
    if len(x) <= most:
        return np.arange(len(x))
    chosen = [int(np.random.default_rng(seed).integers(len(x)))]
    away = np.full(len(x), np.inf)
    while len(chosen) < most:
        away = np.minimum(away, np.sum((x - x[chosen[-1]]) ** 2, axis=1))
        if away.max() <= 0:  # the others repeat those chosen
            break
        chosen.append(int(away.argmax()))
    remaining = np.setdiff1d(np.arange(len(x)), chosen)
    return np.sort(np.array([*chosen, *remaining[: most - len(chosen)]], np.int64))


def _linear(x: Array, points: Array, slopes: Array) -> Array:
    return np.asarray(slopes[0] + (x * slopes[1:]) @ points.T, np.float64)


def _matern(x: Array, points: Array, lengths: Array) -> Array:
    distance = ROOT5 * np.sqrt(squared_distances(x / lengths, points / lengths))
    return np.asarray((1 + distance + distance**2 / 3) * np.exp(-distance), np.float64)


def exponential(x: npt.NDArray[Number], points: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return the covariance (n, m) of a surface without slopes, in units of its lengths."""
    return np.asarray(np.exp(-np.sqrt(squared_distances(x, points))))


def squared_exponential(x: npt.NDArray[Number], points: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return the covariance (n, m) of a smooth surface, in units of its lengths."""
    return np.asarray(np.exp(-0.5 * squared_distances(x, points)))


def squared_distances(x: npt.NDArray[Number], points: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return squared distances (n, m) in the inputs' precision."""
    # Rounding may make the distance of equal rows slightly negative.
    return np.asarray(np.maximum((x**2).sum(1)[:, None] + (points**2).sum(1) - 2 * x @ points.T, 0.0))


def leave_one_out(covariance: Array, values: Array) -> tuple[Array, Array]:
    """Return the weights (n,) of measured ``values``, and the error at each when it is left out.

    These errors have a closed form (Rasmussen and Williams 2006, section 5.4.2).
    """
    inverse = np.linalg.inv(covariance)
    weights = inverse @ values
    return weights, weights / np.diag(inverse)


def _solve(matrix: Array, right: Array) -> tuple[Array, Array]:
    """Return the inverse of a covariance times ``right``, and a root R of the inverse: R Rᵀ."""
    root = np.asarray(np.linalg.inv(factor_covariance(matrix)).T, np.float64)
    return root @ (root.T @ right), root


def factor_covariance(covariance: Array) -> Array:
    """Return Cholesky's factor, with as little more on the diagonal as rounding makes necessary."""
    usual = float(np.trace(covariance)) / len(covariance) * np.eye(len(covariance))
    for more in RESCUES[:-1]:
        with suppress(np.linalg.LinAlgError):
            return np.asarray(np.linalg.cholesky(covariance + more * usual), np.float64)
    return np.asarray(np.linalg.cholesky(covariance + RESCUES[-1] * usual), np.float64)


def _tune(x: Array, y: Array, weight: Array, *, trend: bool) -> tuple[Array, float, float, Array]:
    """Return the variances of linear part (1 + columns), rough part and noise, and the rough part's lengths.

    They have the most evidence times prior; ``y`` has deviation one.
    """
    from scipy.optimize import minimize  # noqa: PLC0415 - needed to fit alone

    columns = x.shape[1]
    prior = np.concatenate([np.full(columns, math.log(3.0)), [math.log(0.3), math.log(1.0), math.log(0.05)]])
    width = np.concatenate([np.full(columns, 1.0), [1.0, 1.0, 1.5]])
    squares = (x[:, None, :] - x[None, :, :]) ** 2
    answer = minimize(
        lambda at: _badness(at, x, y, weight, squares, prior, width, trend=trend),
        prior,
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(prior - 4 * width, prior + 4 * width, strict=True)),
        options={"maxiter": ROUNDS},
    )
    lengths, (rough, slope, noise) = np.exp(answer.x[:columns]), np.exp(2 * answer.x[columns:])
    return _slopes(columns, float(slope), trend=trend), float(rough), float(noise), lengths


def _slopes(columns: int, slope: float, *, trend: bool) -> Array:
    return np.concatenate([[1.0 if trend else 0.05], np.full(columns, slope if trend else 0.0)])


def _badness(
    at: Array, x: Array, y: Array, weight: Array, squares: Array, prior: Array, width: Array, *, trend: bool
) -> tuple[float, Array]:
    """Return minus the logarithm of evidence times prior, with its gradient by the logarithms ``at``."""
    columns = x.shape[1]
    lengths, (rough, slope, noise) = np.exp(at[:columns]), np.exp(2 * at[columns:])
    distance = ROOT5 * np.sqrt(squares @ lengths**-2.0)
    fall = np.exp(-distance)
    shape = (1 + distance + distance**2 / 3) * fall
    linear = _linear(x, x, _slopes(columns, float(slope), trend=trend))
    noisy = noise / weight + 1e-8
    covariance = linear + rough * shape + np.diag(noisy)
    factor = factor_covariance(covariance)
    root = np.linalg.inv(factor)
    inverse = root.T @ root
    alpha = inverse @ y
    believed = (at - prior) / width
    value = 0.5 * float(y @ alpha) + float(np.log(np.diag(factor)).sum()) + 0.5 * float(believed @ believed)
    pull = 0.5 * (inverse - np.outer(alpha, alpha))
    gradient = np.zeros(len(at))
    steep = pull * rough * (5 / 3) * (1 + distance) * fall
    gradient[:columns] = np.einsum("ij,ijk->k", steep, squares) / lengths**2
    gradient[columns] = 2 * float(np.sum(pull * rough * shape))
    gradient[columns + 1] = 2 * float(np.sum(pull * (linear - 1.0))) if trend else 0.0
    gradient[columns + 2] = 2 * float(np.sum(np.diag(pull) * noise / weight))
    return value, gradient + believed / width
