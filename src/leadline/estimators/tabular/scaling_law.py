"""The scaling law: time = start-up + work × unit time, with learned exponents of scale."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leadline.core.samples import Sample, Value
from leadline.estimators.tabular import encoding, posynomials
from leadline.estimators.tabular.encoding import Encoding
from leadline.estimators.tabular.ports import Array, Predicted, State
from leadline.estimators.tabular.posynomials import Posynomial, Problem
from leadline.estimators.tabular.states import floats, nest, within
from leadline.estimators.tabular.tables import REACH, Table, deviation, doubt, impute, tabulate

MOST_TERMS = 3
LARGEST = 800
"""The law is fitted on at most so many samples; it has few parameters."""
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
    """Posynomials, each with its share of belief."""

    name: str
    encoding: Encoding
    laws: tuple[Posynomial, ...]
    shares: Array
    bend: Bend
    error: float
    limits: Array

    def predict(self, rows: Sequence[Mapping[str, Value]]) -> Predicted:
        """Predict each row; with nothing else changed, more work never takes less."""
        x, beyond = self.encoding.encode(rows)
        u = x * units(self.encoding)
        each = np.stack([law.logs(u) for law in self.laws])
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
    """Fits sums of products of powers: a start-up that does not grow with scale, and terms that do.

    The start-up is the one the jobs reported, where they did (HARP's custom mode), else fitted. How many terms there
    are is weighed by their evidence.
    """

    name: str = "scaling_law"
    terms: int = MOST_TERMS
    least: int = 6

    def fit(self, samples: Sequence[Sample], *, scale_features: Sequence[str] = (), seed: int = 0) -> FittedLaw:
        """Fit the law; censored samples count with what is expected above them.

        Raises:
            InvalidInput: there are too few measured samples, or a value is no number above zero.
        """
        table = tabulate(samples, least=self.least, estimator=self.name)
        found = encoding.learn(table.rows, scale_features)
        u = found.encode(table.rows)[0] * units(found)
        chosen = _choose(u, LARGEST, seed)

        def fit(logs: Array, use: npt.NDArray[np.bool_], terms: int) -> list[posynomials.Fitted]:
            problem = _problem(found, table, u, logs, chosen[use[chosen]])
            return posynomials.fit(problem, terms, seed)

        def expect(logs: Array, use: npt.NDArray[np.bool_]) -> tuple[Array, float]:
            last = fit(logs, use, 1)[-1]
            return last.law.logs(u), float(np.mean(last.sigma))

        logs = impute(table, expect)
        fits = fit(logs, np.ones(len(table), bool), self.terms)
        evidence = np.array([one.evidence for one in fits])
        shares = np.exp(evidence - evidence.max())
        shares /= shares.sum()
        kept = [i for i in range(len(fits)) if shares[i] > 0.01]
        laws, weights = tuple(fits[i].law for i in kept), shares[kept] / shares[kept].sum()
        fitted = np.sum([share * law.logs(u) for share, law in zip(weights, laws, strict=True)], axis=0)
        bend = _bend(fitted, logs, table)
        error = deviation(logs - bend.at(fitted), table.weight)
        limits = np.array([table.logs.min(), table.logs.max()])
        return FittedLaw(self.name, found, laws, weights, bend, error, limits)

    def load(self, state: State) -> FittedLaw:
        """Return the fitted law that ``dump`` gave."""
        figures, shares = floats(state["figures"]), floats(state["shares"])
        laws = tuple(posynomials.load(within(f"law{i}", state)) for i in range(len(shares)))
        bend = Bend(*(float(one) for one in figures[3:6]))
        known = encoding.load(within("encoding", state))
        return FittedLaw(self.name, known, laws, shares, bend, float(figures[0]), figures[1:3])


def units(known: Encoding) -> Array:
    """Return what a standardised column is times, so that its weight is an exponent where it is a logarithm."""
    return np.where(np.isnan(known.stretch), 1.0, known.stretch)


def _problem(known: Encoding, table: Table, u: Array, logs: Array, at: npt.NDArray[np.int64]) -> Problem:
    with np.errstate(divide="ignore", invalid="ignore"):
        startup = np.log(table.startup[at])
    sensible = np.isfinite(startup) & (startup < logs[at])
    return Problem(
        u[at],
        logs[at],
        table.weight[at] / table.weight[at].mean(),
        np.where(sensible, startup, math.nan),
        known.scales.astype(bool),
        ~np.isnan(known.stretch),
    )


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
