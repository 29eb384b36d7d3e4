"""Estimators without a parametric form: a regression on the log target, by ridge regression or perceptrons."""

import math
import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from leadline.core.frozen import Frozen
from leadline.core.runs import Sample, Value
from leadline.estimators.ports import (
    Array,
    FittedModel,
    IntArray,
    Mask,
    Predictions,
    Regression,
    Regressor,
    State,
    Stored,
    floats,
)
from leadline.estimators.tabular import encoding, tables
from leadline.estimators.tabular.encoding import FeatureEncoding

FOLDS = 5
ENOUGH = 1500  # so many samples determine the out-of-fold error well enough


class FittedBlackBox(FittedModel):
    """A regressor of ln(target) with its encoding; ``error`` is its deviation out of fold."""

    figures = ("error", "growth", "limits")

    encoding: FeatureEncoding
    regressor: Regressor
    error: float
    growth: float
    limits: Array

    def predict(self, rows: Sequence[Mapping[str, Value]]) -> Predictions:
        """Predict each row."""
        x, beyond = self.encoding.encode(rows)
        logs, spread = self.regressor.predict(x)
        spreads = np.where(np.isfinite(spread), np.maximum(spread, self.error), self.error)
        return tables.predictions(logs, self.limits, spreads, beyond, self.growth)


class BlackBox(Frozen):
    """Fits ``regression`` to the log target."""

    name: str
    regression: Regression
    growth: float  # spread added for each fitted range of extrapolation, about the error of such regressions there
    tells_noise: bool = False  # True if the regression's own spread is not widened to the out-of-fold error

    def fit(self, samples: Sequence[Sample], *, scale_features: Sequence[str] = (), seed: int = 0) -> FittedBlackBox:
        """Fit the regression; censored samples count with what is expected above them."""
        table = tables.tabulate_samples(samples, least=self.regression.least, estimator=self.name)
        encoder = encoding.learn_encoding(table.rows, scale_features)
        x, _ = encoder.encode(table.rows)
        error = 0.0 if self.tells_noise else self._error(x, table, seed)

        def expect(logs: Array, use: Mask) -> tuple[Array, float]:
            expected, spread = self.regression.fit(x[use], logs[use], table.weight[use], seed).predict(x)
            return expected, float(np.median(spread)) if self.tells_noise else error

        logs = tables.impute_censored(table, expect)
        regressor = self.regression.fit(x, logs, table.weight, seed)
        limits = np.array([table.logs.min(), table.logs.max()])
        return FittedBlackBox(self.name, encoder, regressor, error, self.growth, limits)

    def load(self, state: State) -> FittedBlackBox:
        """Return the fitted estimator that ``dump`` gave."""
        return FittedBlackBox.load(state, regressor=self.regression.fitted.load)

    def _error(self, x: Array, table: tables.SampleTable, seed: int) -> float:
        """Return the deviation out of fold on (at most ``ENOUGH``) measured samples, split by configuration."""
        measured = np.flatnonzero(~table.censored)
        if len(measured) > ENOUGH:
            measured = np.random.default_rng(seed).choice(measured, ENOUGH, replace=False)
        part = tables.assign_folds(table.folds[measured], min(FOLDS, len(measured)), seed)
        residuals = np.full(len(measured), math.nan)
        for fold in range(FOLDS):
            inside, outside = measured[part != fold], part == fold
            if len(inside) >= max(2, self.regression.least - 3) and outside.any():
                weight = table.weight[inside] / table.weight[inside].mean()
                fitted = self.regression.fit(x[inside], table.logs[inside], weight, seed)
                residuals[outside] = table.logs[measured[outside]] - fitted.predict(x[measured[outside]])[0]
        tested = np.isfinite(residuals)
        return min(tables.robust_deviation(residuals[tested], table.weight[measured][tested]), tables.WIDEST)


PENALTIES = tuple(10.0**power for power in (-6, -5, -4, -3, -2, -1, 0))  # tried ridge penalties, per row


class LinearModel(Stored):
    """``intercept + x · slopes``."""

    intercept: float
    slopes: Array

    def predict(self, x: Array) -> tuple[Array, Array]:
        """Return the prediction for each row; it has no spread of its own."""
        return self.intercept + x @ self.slopes, np.full(len(x), np.nan)


class RidgeRegression(Regression):
    """Least squares with a penalty on the slopes (Hoerl and Kennard 1970)."""

    fitted = LinearModel

    def fit(self, x: Array, y: Array, weight: Array, seed: int) -> LinearModel:  # noqa: ARG002 - nothing is drawn
        """Fit a linear model with the penalty of least leave-one-out error (closed form)."""
        root = np.sqrt(weight)[:, None]
        centre, mean = np.average(x, axis=0, weights=weight), float(np.average(y, weights=weight))
        inside, target = root * (x - centre), root[:, 0] * (y - mean)
        rotation, sizes, right = np.linalg.svd(inside, full_matrices=False)
        share = weight / weight.sum()
        best: tuple[float, Array] = (np.inf, np.zeros(x.shape[1]))
        for penalty in PENALTIES:
            kept = sizes**2 / (sizes**2 + penalty * len(y))
            fitted = rotation @ (kept * (rotation.T @ target))
            leverage = np.minimum(rotation**2 @ kept + share, 1 - 1e-9)
            error = float(np.mean(((target - fitted) / (1 - leverage)) ** 2))
            if error < best[0]:
                slopes = right.T @ (
                    np.divide(kept, sizes, out=np.zeros_like(sizes), where=sizes > 0) * (rotation.T @ target)
                )
                best = (error, slopes)
        return LinearModel(mean - float(centre @ best[1]), best[1])


MEMBERS = 4
HIDDEN = (16, 8)
# Columns are clipped to so many deviations: tanh saturates there.
FAR = 6.0
LARGEST = 4000


class Perceptrons(Frozen):
    """Several perceptrons with tanh between their layers."""

    mean: float
    deviation: float
    layers: tuple[tuple[Array, Array], ...]  # weights (members, inputs, outputs) and biases (members, 1, outputs)

    def predict(self, x: Array) -> tuple[Array, Array]:
        """Return the members' mean, and their disagreement as its deviation."""
        clipped = np.clip(x, -FAR, FAR)
        signal = np.broadcast_to(clipped, (self.layers[0][0].shape[0], *clipped.shape))
        for weights, bias in self.layers[:-1]:
            signal = np.tanh(signal @ weights + bias)
        weights, bias = self.layers[-1]
        each = (signal @ weights + bias)[:, :, 0] * self.deviation + self.mean
        return each.mean(axis=0), each.std(axis=0)

    def dump(self) -> State:
        """Return the networks as arrays."""
        state: State = {"figures": np.array([self.mean, self.deviation])}
        for i, (weights, bias) in enumerate(self.layers):
            state |= {f"weights{i}": weights, f"bias{i}": bias}
        return state

    @classmethod
    def load(cls, state: State) -> "Perceptrons":
        """Return the networks that ``dump`` gave."""
        mean, deviation = floats(state["figures"]).tolist()
        layers = tuple((floats(state[f"weights{i}"]), floats(state[f"bias{i}"])) for i in range(len(HIDDEN) + 1))
        return cls(mean, deviation, layers)


class PerceptronRegression(Regression):
    """Perceptrons fitted by scikit-learn's L-BFGS with weight decay; many rows are subsampled."""

    fitted = Perceptrons

    def fit(self, x: Array, y: Array, weight: Array, seed: int) -> Perceptrons:
        """Fit each member from its own start; weights become repetitions of rows."""
        from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415 - needed to fit alone
        from sklearn.neural_network import MLPRegressor  # noqa: PLC0415 - needed to fit alone

        inputs = x if x.shape[1] else np.zeros((len(x), 1))
        mean, deviation = float(np.average(y, weights=weight)), max(float(y.std()), 1e-9)
        at = _repeat(weight, seed)
        networks = []
        for member in range(MEMBERS):
            network = MLPRegressor(
                hidden_layer_sizes=HIDDEN,
                activation="tanh",
                solver="lbfgs",
                alpha=0.03,
                max_iter=200,
                random_state=seed + member,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # stopped early on purpose
                network.fit(np.clip(inputs[at], -FAR, FAR), (y[at] - mean) / deviation)
            networks.append(network)
        layers = []
        for i in range(len(HIDDEN) + 1):
            weights = np.stack([network.coefs_[i] for network in networks])[:, : x.shape[1] if i == 0 else None]
            layers.append((weights, np.stack([network.intercepts_[i] for network in networks])[:, None, :]))
        return Perceptrons(mean, deviation, tuple(layers))


def _repeat(weight: Array, seed: int) -> IntArray:
    """Return rows, each about as often as its weight over the least, and at most ``LARGEST`` in all."""
    often = np.maximum(np.rint(weight / weight.min()), 1).astype(np.int64)
    rows = np.repeat(np.arange(len(weight)), often)
    if len(rows) > LARGEST:
        rows = np.sort(np.random.default_rng(seed).choice(rows, LARGEST, replace=False))
    return rows
