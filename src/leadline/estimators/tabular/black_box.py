"""Estimators without a parametric form: a regression on the log target."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from leadline.core.frozen import Frozen
from leadline.core.runs import Sample, Value
from leadline.estimators.ports import Array, FittedModel, Mask, Predictions, Regression, Regressor, State
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
        point = np.exp(np.clip(logs, self.limits[0] - tables.REACH, self.limits[1] + tables.REACH))
        spreads = np.where(np.isfinite(spread), np.maximum(spread, self.error), self.error)
        return Predictions(point, tables.add_extrapolation_spread(spreads, beyond, self.growth), beyond)


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
