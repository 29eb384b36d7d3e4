"""What runs of a campaign take: a start-up, and work by a power law with a smooth residual; its prior before any run.

The model is ``t(x) = c · exp(d) + exp(f(x))``, with noise on ``log t``. ``f`` is a Gaussian process: a linear part in
the logarithms of the parameters (a parameter that carries scale has slope 1 before anything is known) and a smooth
residual. ``c`` is the shortest run or a share of it, and ``d`` is normal around 0. Given the hyperparameters, the
posterior is found by Gauss-Newton steps, in which ``log t`` is linear in ``f`` and ``d``; these are chosen by marginal
likelihood (Laplace's approximation).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_solve, solve_triangular
from scipy.special import erfcx

from leadline.campaigns.encoding import Array, Encoding
from leadline.core.campaigns import Campaign, Configuration

ALIKE = 0.6
"""Correlation of the residual between two categories."""
STARTUP_SD = 0.4
"""Prior spread of d."""
LEAST_SHARE = 0.01
"""Of work in a run's time: a run with less says nothing of f."""
STEPS, CLOSE = 30, 1e-3
"""The most Gauss-Newton steps, and the change of f at which they end."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One figure to learn from: seconds, or a lower bound of them; ``sd`` is its logarithm's spread beyond noise."""

    configuration: Configuration
    seconds: float
    censored: bool = False
    sd: float = 0.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Hyperparameters.

    ``startup`` is c as a share of the shortest run, ``unlike`` how much the start-up of configurations differs,
    ``amplitude`` and ``length`` the residual's, in logarithms and in ranges of a parameter, ``noise`` that of log t.
    """

    startup: float = 0.0
    unlike: float = 0.05
    amplitude: float = 0.2
    length: float = 1.0
    noise: float = 0.03


CHOICES: dict[str, tuple[float, ...]] = {
    "startup": (0.0, 0.3, 0.7, 1.0),
    "unlike": (0.02, 0.05, 0.15, 0.4),
    "amplitude": (0.03, 0.08, 0.2, 0.5),
    "length": (0.35, 0.6, 1.0, 2.0),
    "noise": (0.005, 0.015, 0.03, 0.08, 0.2),
}
PRIOR_SD = {"unlike": 1.0, "amplitude": 1.0, "length": 0.8, "noise": 1.0}
"""Spread of the logarithm of each around its default, so that few runs do not decide on extremes."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is known of n configurations: seconds (their median), the covariance of log t, and the noise on it.

    ``log_covariance`` has shape (n, n), or (n,) where only variances were asked for; noise comes on top of it.
    """

    seconds: Array
    log_covariance: Array
    log_noise: Array


class Law:
    """What is known from ``observations`` under given hyperparameters; without any, the prior."""

    def __init__(
        self, encoding: Encoding, observations: Sequence[Observation] = (), settings: Settings = Settings()
    ) -> None:
        self.encoding = encoding
        self.observations = observations
        self.settings = settings
        self.evidence = 0.0
        times = [one.seconds for one in observations if not one.censored and not one.sd]
        self._startup = settings.startup * min(times, default=0.0)
        self._basis = encoding.basis([one.configuration for one in observations])
        self._mean = encoding.mean.copy()
        if observations:
            self._mean[0] = self._level()
            self._prior = self._basis @ self._mean
            self._condition()

    def _level(self) -> float:
        """Return the prior mean of f where every logarithm is 0, such that work is a third of the usual run."""
        beyond = np.log([one.seconds for one in self.observations]) - self._basis @ self.encoding.mean
        return float(np.median(beyond)) - (1.0 if self._startup else 0.0)

    def _condition(self) -> None:
        """Find the posterior mode of f at what was observed, and factor the covariance there."""
        said = np.log([one.seconds for one in self.observations])
        extra = np.array([one.sd for one in self.observations])
        censored = np.array([one.censored for one in self.observations])
        plain = self._covariance(self._basis, self._basis)
        f, d, target = said + math.log(0.5 if self._startup else 1.0), 0.0, said
        for _ in range(STEPS):
            fitted, share, pull = self._linear(f, d)
            noise = np.hypot(self._noise(share), extra)
            target = np.where(censored, _expected_above(said, fitted, np.hypot(noise, 0.1)), said)
            working = f + pull * d + (target - fitted) / share
            covariance = plain + STARTUP_SD**2 * np.outer(pull, pull)
            self._lower = np.linalg.cholesky(covariance + np.diag((noise / share) ** 2 + 1e-9))
            self._weights = cho_solve((self._lower, True), working - self._prior)
            change = np.clip(self._prior + plain @ self._weights - f, -1.5, 1.5)
            f, d = f + change, float(np.clip(STARTUP_SD**2 * pull @ self._weights, -1.0, 1.0))
            if np.abs(change).max() < CLOSE or not (self._startup or censored.any()):
                break
        self._pull, self._shift = pull, d
        white = solve_triangular(self._lower, working - self._prior, lower=True)
        self.evidence = float(-0.5 * white @ white - np.log(np.diag(self._lower)).sum() - np.log(share).sum())

    def _linear(self, f: Array, d: float) -> tuple[Array, Array, Array]:
        """Return log t, its derivative by f, and that by d in units of the former."""
        work, startup = np.exp(np.clip(f, -50.0, 50.0)), self._startup * math.exp(d)
        share = np.maximum(work / (work + startup), LEAST_SHARE)
        return np.log(work + startup), share, (1 - share) / share

    def _covariance(self, one: Array, other: Array) -> Array:
        """Return the prior covariance of f between the rows of two bases, shape (n, m)."""
        linear = (one * self.encoding.sd**2) @ other.T
        (numeric, categories), (numeric2, categories2) = map(self.encoding.coordinates, (one, other))
        apart = squared_distances(numeric, numeric2) / (self.settings.length**2 * max(1.0, math.sqrt(numeric.shape[1])))
        different = 0.5 * squared_distances(categories, categories2)
        return np.asarray(linear + self.settings.amplitude**2 * np.exp(-0.5 * apart) * ALIKE**different)

    def predict(self, found: Sequence[Configuration], *, jointly: bool = False) -> Forecast:
        """Return what runs of these configurations take, with covariances if ``jointly``."""
        basis = self.encoding.basis(found)
        if not self.observations:
            own = self._covariance(basis, basis)
            own = own if jointly else np.diag(own).copy()
            return Forecast(np.exp(basis @ self._mean), own, self._noise(np.ones(len(found))))
        cross = self._covariance(self._basis, basis)
        logs, share, pull = self._linear(basis @ self._mean + cross.T @ self._weights, self._shift)
        explained = solve_triangular(self._lower, cross + STARTUP_SD**2 * np.outer(self._pull, pull), lower=True)
        if jointly:
            own = self._covariance(basis, basis) + STARTUP_SD**2 * np.outer(pull, pull) - explained.T @ explained
            own = own * np.outer(share, share)
        else:
            own = (basis**2) @ self.encoding.sd**2 + self.settings.amplitude**2 + (STARTUP_SD * pull) ** 2
            own = np.maximum(own - (explained**2).sum(0), 0.0) * share**2
        return Forecast(np.exp(logs), own, self._noise(share))

    def _noise(self, share: Array) -> Array:
        """Return the spread of log t of one run, where work is that share of its time."""
        return np.asarray(np.hypot(self.settings.noise, self.settings.unlike * (1 - share)))


def squared_distances(one: Array, other: Array) -> Array:
    """Return the squared distances between the rows of two tables, shape (n, m)."""
    return np.asarray(np.maximum((one**2).sum(1)[:, None] + (other**2).sum(1)[None, :] - 2 * one @ other.T, 0.0))


def _expected_above(bound: Array, fitted: Array, spread: Array) -> Array:
    """Return the mean of normal variables around ``fitted``, given that they lie above ``bound``."""
    hazard = math.sqrt(2 / math.pi) / erfcx(np.clip((bound - fitted) / spread, -30, 30) / math.sqrt(2))
    return np.asarray(np.maximum(fitted + spread * hazard, bound))


def fit(campaign: Campaign, observations: Sequence[Observation]) -> Law:
    """Return the law with the hyperparameters under which what was observed is most likely."""
    encoding = Encoding(campaign)
    best = Law(encoding, observations)
    if len(observations) < 3:
        return best
    score = _score(best)
    for _ in range(2):
        before = best.settings
        for name, choices in CHOICES.items():
            for choice in choices:
                if choice == getattr(best.settings, name) or (name == "unlike" and not best.settings.startup):
                    continue
                tried = Law(encoding, observations, replace(best.settings, **{name: choice}))
                if (found := _score(tried)) > score:
                    best, score = tried, found
        if best.settings == before:
            break
    return best


def _score(law: Law) -> float:
    """Return the log of marginal likelihood times prior."""
    usual = Settings()
    off = [math.log(getattr(law.settings, name) / getattr(usual, name)) / spread for name, spread in PRIOR_SD.items()]
    return law.evidence - 0.5 * sum(one**2 for one in off)
