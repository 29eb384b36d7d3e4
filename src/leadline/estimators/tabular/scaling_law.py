"""Laws of scale: target = start-up + work × unit, in one of several forms."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leadline.core.samples import Sample, Value
from leadline.estimators.tabular import encoding
from leadline.estimators.tabular.encoding import Encoding
from leadline.estimators.tabular.forms import Fitted, Form, Law, Problem
from leadline.estimators.tabular.ports import Array, Predicted, State
from leadline.estimators.tabular.states import floats, nest, within
from leadline.estimators.tabular.tables import REACH, Table, deviation, doubt, impute, tabulate

GROWTH = 0.05
"""What one fitted range beyond the samples adds to the spread, besides what the law's own exponents leave open."""


@dataclass(frozen=True, slots=True)
class Bend:
    """Moves ln t by up to ``offset`` between ``low`` and ``high``: what the full-scale samples say of the law there."""

    offset: float = 0.0
    low: float = 0.0
    high: float = 1.0

    def at(self, logs: Array) -> Array:
        """Return ln t as moved; it rises with ``logs`` still."""
        return logs + self.offset * np.clip((logs - self.low) / (self.high - self.low), 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class FittedLaw:
    """Laws of one form, each with its share of belief."""

    name: str
    encoding: Encoding
    laws: tuple[Law, ...]
    shares: Array
    bend: Bend
    error: float
    limits: Array

    def predict(self, rows: Sequence[Mapping[str, Value]]) -> Predicted:
        """Predict each row; with nothing else changed, more work never takes less."""
        x, beyond = self.encoding.encode(rows)
        u = x * units(self.encoding)
        each = np.stack([np.logaddexp(*law.halves(u)) for law in self.laws])
        logs = self.shares @ each
        between = self.shares @ (each - logs) ** 2
        inside = self.shares @ np.stack([law.spread(u) ** 2 for law in self.laws])
        point = np.exp(np.clip(self.bend.at(logs), self.limits[0] - REACH, self.limits[1] + REACH))
        return Predicted(point, doubt(np.sqrt(self.error**2 + between + inside), beyond, GROWTH), beyond)

    def dump(self) -> State:
        """Return the law as arrays."""
        laws = {key: array for i, law in enumerate(self.laws) for key, array in nest(f"law{i}", law.dump()).items()}
        return {
            "estimator": np.array([self.name]),
            "figures": np.array([self.error, *self.limits, self.bend.offset, self.bend.low, self.bend.high]),
            "shares": self.shares,
            **nest("encoding", self.encoding.dump()),
            **laws,
        }


@dataclass(frozen=True, slots=True)
class ScalingLaw:
    """Fits laws of one form: a start-up that does not grow with scale, and work that does.

    The start-up is the one the jobs reported, where they did and ``reported`` (HARP's custom mode), else it is fitted
    to the whole (its basic mode). How complex the law is, is weighed by evidence.
    """

    name: str
    form: Form
    reported: bool = True
    least: int = 6

    def fit(self, samples: Sequence[Sample], *, scale_features: Sequence[str] = (), seed: int = 0) -> FittedLaw:
        """Fit the law; censored samples count with what is expected above them.

        Raises:
            InvalidInput: there are too few measured samples, or a value is no number above zero.
        """
        table = tabulate(samples, least=self.least, estimator=self.name)
        found = encoding.learn(table.rows, scale_features)
        u = found.encode(table.rows)[0] * units(found)
        chosen = _choose(u, self.form.largest, seed)

        def fit(logs: Array, use: npt.NDArray[np.bool_]) -> tuple[tuple[Law, ...], Array, float]:
            problem = self._problem(found, table, u, logs, chosen[use[chosen]])
            return _believed(self.form.fit(problem, seed))

        def expect(logs: Array, use: npt.NDArray[np.bool_]) -> tuple[Array, float]:
            laws, shares, sigma = fit(logs, use)
            return _mean(laws, shares, u), sigma

        logs = impute(table, expect)
        laws, shares, _ = fit(logs, np.ones(len(table), bool))
        fitted = _mean(laws, shares, u)
        bend = _bend(fitted, logs, table)
        error = deviation(logs - bend.at(fitted), table.weight)
        limits = np.array([table.logs.min(), table.logs.max()])
        return FittedLaw(self.name, found, laws, shares, bend, error, limits)

    def load(self, state: State) -> FittedLaw:
        """Return the fitted law that ``dump`` gave."""
        figures, shares = floats(state["figures"]), floats(state["shares"])
        laws = tuple(self.form.load(within(f"law{i}", state)) for i in range(len(shares)))
        bend = Bend(*(float(one) for one in figures[3:6]))
        known = encoding.load(within("encoding", state))
        return FittedLaw(self.name, known, laws, shares, bend, float(figures[0]), figures[1:3])

    def _problem(self, known: Encoding, table: Table, u: Array, logs: Array, at: npt.NDArray[np.int64]) -> Problem:
        with np.errstate(divide="ignore", invalid="ignore"):
            startup = np.log(table.startup[at])
        sensible = np.isfinite(startup) & (startup < logs[at]) & self.reported
        return Problem(
            u[at],
            logs[at],
            table.weight[at] / table.weight[at].mean(),
            np.where(sensible, startup, math.nan),
            known.scales.astype(bool),
            ~np.isnan(known.stretch),
        )


def _believed(fits: list[Fitted]) -> tuple[tuple[Law, ...], Array, float]:
    """Return the laws of some evidence, their shares of belief, and the deviation about the likeliest."""
    evidence = np.array([one.evidence for one in fits])
    shares = np.exp(evidence - evidence.max())
    kept = np.flatnonzero(shares > 0.01 * shares.sum())
    sigma = float(np.mean(fits[int(evidence.argmax())].sigma))
    return tuple(fits[i].law for i in kept), shares[kept] / shares[kept].sum(), sigma


def _mean(laws: tuple[Law, ...], shares: Array, u: Array) -> Array:
    """Return the mean of the laws' logarithms (n,)."""
    return np.asarray(shares @ np.stack([np.logaddexp(*law.halves(u)) for law in laws]), np.float64)


def units(known: Encoding) -> Array:
    """Return what a standardised column is times, so that its weight is an exponent where it is a logarithm."""
    return np.where(np.isnan(known.stretch), 1.0, known.stretch)


def _choose(u: Array, most: int, seed: int) -> npt.NDArray[np.int64]:
    """Return at most ``most`` rows, drawn by chance."""
    if len(u) <= most:
        return np.arange(len(u))
    return np.sort(np.random.default_rng(seed).choice(len(u), most, replace=False))


def _bend(fitted: Array, logs: Array, table: Table) -> Bend:
    """Return what the full-scale samples say of the law at their scale, where they lie beyond the others."""
    large, small = table.full_scale, ~table.full_scale
    if not large.any() or not small.any():
        return Bend()
    low, high = float(np.quantile(fitted[small], 0.9)), float(np.median(fitted[large]))
    if high - low < 0.5:
        return Bend()
    off = logs[large] - fitted[large]
    noise = max(deviation(logs[small] - fitted[small]), 0.01)
    held = off.mean() / (1 + (noise / 0.1) ** 2 / len(off))
    return Bend(float(np.clip(held, low - high + 1e-6, high - low)), low, high)
