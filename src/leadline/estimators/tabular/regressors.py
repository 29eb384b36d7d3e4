"""Ridge regression and small perceptrons."""

import warnings

import numpy as np

from leadline.core.frozen import Frozen
from leadline.estimators.ports import Array, Regression, State, Stored, floats

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


def _repeat(weight: Array, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return rows, each about as often as its weight over the least, and at most ``LARGEST`` in all."""
    often = np.maximum(np.rint(weight / weight.min()), 1).astype(np.int64)
    rows = np.repeat(np.arange(len(weight)), often)
    if len(rows) > LARGEST:
        rows = np.sort(np.random.default_rng(seed).choice(rows, LARGEST, replace=False))
    return rows
