"""Sums of power products (posynomials), fitted in logarithms.

ln t = ln Σₖ exp(bₖ + u·eₖ), where u are the log features and eₖ the exponents of term k (Boyd et al. 2007). It is
convex in u, so it approximates sums of costs and the maximum of two costs well. The fit is non-linear least squares as
in Hoburg, Kirschen and Abbeel (2016), with priors on the exponents.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from leadline.core.frozen import Frozen
from leadline.estimators.ports import Array, Mask
from leadline.estimators.tabular.scaling_model import FittedForm, FormFit, FormProblem, ModelForm, log_sum

# Exponents that costs have more often than others, with their probabilities.
PLAIN = ((0.0, 0.35), (1.0, 0.3), (-1.0, 0.05), (0.5, 0.05), (-0.5, 0.03), (2.0, 0.05), (1.5, 0.04), (3.0, 0.03))
STEADY = 0.15  # deviation about zero of an exponent of scale of the time of a unit
CROSSED = 0.2  # prior deviation of a category's effect on an exponent of scale, per deviation of its column
SLAB = 0.1  # probability that an exponent is none of them
# Exponents that are set to plain numbers between two fits, where each gains at least half as much as the likeliest.
AT_ONCE = 4
WILD_AT = 2.0  # where Huber's loss turns from squares to straight lines, in deviations
# Of the steps to a least loss: how short the first may be, when to give up, and when the loss falls no more.
FIRST_DAMPING, LAST_DAMPING, CLOSE = 1e-3, 1e9, 1e-8
WILD = 3.0  # a sample farther than so many deviations gets a proportionally larger deviation
ENOUGH = 10.0  # loss of log evidence by a further term that ends the search
NOISE = (0.02, 0.5)  # bounds of a sample's log deviation


class Posynomial(FittedForm):
    """A fitted posynomial: ``theta`` (terms, 1 + columns) holds log coefficients and exponents.

    Term 0 does not grow with scale. ``root`` (free, free) gives the variance of a prediction of gradient g as
    |root·g|². ``free`` marks the fitted entries of theta.
    """

    theta: Array
    root: Array
    free: Mask

    def terms(self, u: Array) -> Array:
        """Return the logarithm of each term (n, terms)."""
        return np.asarray(self.theta[:, 0] + u @ self.theta[:, 1:].T, np.float64)

    def halves(self, u: Array) -> tuple[Array, Array]:
        """Return the logarithms of the start-up and of the other terms' sum (n,)."""
        terms = self.terms(u)
        return terms[:, 0], log_sum(terms[:, 1:])

    def spread(self, u: Array) -> Array:
        """Return the log deviation (n,) due to the uncertainty of theta."""
        # The gradient of the logarithm of the sum by theta, shape (n, terms × (1 + columns)).
        share, design = _sum(self.terms(u))[1], np.column_stack([np.ones(len(u)), u])
        gradient = (share[:, :, None] * design[:, None, :]).reshape(len(u), self.theta.size)[:, self.free.ravel()]
        return np.asarray(np.sqrt(np.sum((gradient @ self.root) ** 2, axis=1)), np.float64)


class PosynomialPrior(Frozen):
    """Prior ``mean`` and ``deviation`` of theta (terms, 1 + columns); deviation 0 fixes an entry."""

    mean: Array
    deviation: Array
    low: Array  # lower bounds: no exponent of scale is negative
    odds: float = 0.0  # log odds that the fixed exponents are plain numbers

    @property
    def free(self) -> Mask:
        """Return which entries of theta are fitted."""
        return self.deviation > 0


class PosynomialForm(ModelForm):
    """Fits ``Posynomial`` with one to ``most`` terms and a start-up."""

    fitted = Posynomial

    largest: int = 800
    most: int = 4

    def fit(self, problem: FormProblem, seed: int) -> list[FormFit]:
        """Return a fit for each number of terms, started from the one before and from random draws."""
        # It stops when the last term made the model much less likely.
        chance = np.random.default_rng(seed)
        fits: list[FormFit] = []
        before: Array | None = None
        for count in range(2, self.most + 2):
            prior = _prior(problem, count)
            if fits and int(prior.free.sum()) > len(problem.logs):
                break
            sigma = fits[-1].sigma if fits else np.full(len(problem.logs), 0.1)
            starts = [_begin(problem, prior, before, chance) for _ in range(4)]
            losses = _Losses(problem, prior, sigma)
            thetas = [losses.minimize(start, rounds=25) for start in starts]
            theta = min(thetas, key=lambda candidate: float(np.minimum(losses.at(candidate)[0] ** 2, 25.0).sum()))
            for _ in range(2):
                sigma = _sigma(problem, prior, theta)
                theta = _Losses(problem, prior, sigma).minimize(theta, rounds=60)
            prior, theta = _simplify(problem, prior, theta, sigma)
            sigma = _sigma(problem, prior, theta)
            before = theta = _Losses(problem, prior, sigma).minimize(theta, rounds=60)
            fits.append(_judge(problem, prior, theta, sigma))
            if fits[-1].evidence < max(candidate.evidence for candidate in fits) - ENOUGH:
                break
        return fits


def _prior(problem: FormProblem, count: int) -> PosynomialPrior:
    """Return the prior of ``count`` terms: exponents about 1 for scale, about 0 for others."""
    columns = problem.u.shape[1]
    mean, deviation = np.zeros((count, 1 + columns)), np.ones((count, 1 + columns))
    low = np.full((count, 1 + columns), -np.inf)
    mean[0, 0], mean[1:, 0] = problem.logs.min() - 1, np.median(problem.logs) - np.arange(count - 1)
    deviation[:, 0] = 4.0
    deviation[:, 1:] = np.where(problem.steady, STEADY, np.where(problem.stretched, 1.0, 0.5))
    mean[1:, 1:] = np.where(problem.scales, 0.7, 0.0)
    low[1:, 1:] = np.where(problem.scales, 0.0, -np.inf)
    deviation[:, 1:] = np.where(problem.crossed, CROSSED, deviation[:, 1:])
    fixed = problem.scales | problem.crossed | problem.steady
    deviation[0, 1:] = np.where(fixed, 0.0, 0.5 * deviation[0, 1:])
    return PosynomialPrior(mean, deviation, low)


def _simplify(
    problem: FormProblem, prior: PosynomialPrior, theta: Array, sigma: Array
) -> tuple[PosynomialPrior, Array]:
    """Set exponents to plain numbers, likeliest first, while the evidence rises."""
    # A plain number has a probability of its own (the spike), all others share the rest (the slab), as in Mitchell and
    # Beauchamp (1988). An exponent that the samples hardly determine becomes plain and no longer spoils extrapolation.
    refused: set[tuple[int, int]] = set()
    for _ in range(int(prior.free[:, 1:].sum())):
        losses = _Losses(problem, prior, sigma)
        jacobian = losses.jacobian(losses.at(theta)[1])
        variance = np.zeros(theta.shape)
        variance[prior.free] = np.diag(np.linalg.pinv(jacobian.T @ jacobian))
        likely = sorted(_plain_candidates(problem, prior, theta, variance), reverse=True)
        likely = [exponent for exponent in likely if (exponent.row, exponent.column) not in refused]
        if not likely or likely[0].gain <= 0:
            break
        several = [exponent for exponent in likely[:AT_ONCE] if exponent.gain > 0.5 * likely[0].gain]
        simplified = _make_plain(problem, prior, theta, sigma, several)
        if simplified is None and len(several) > 1:
            simplified = _make_plain(problem, prior, theta, sigma, several[:1])
        if simplified is None:
            refused.add((several[0].row, several[0].column))
        else:
            prior, theta = simplified
    return prior, theta


class PlainExponent(NamedTuple):
    """A possible plain exponent: expected gain of evidence, and its ``worth`` before any loss."""

    gain: float
    worth: float
    odds: float
    value: float
    row: int
    column: int


def _make_plain(
    problem: FormProblem, prior: PosynomialPrior, theta: Array, sigma: Array, chosen: Sequence[PlainExponent]
) -> tuple[PosynomialPrior, Array] | None:
    """Set the chosen exponents and refit; ``None`` if that makes the model much less likely."""
    # Correlated exponents each look dispensable alone.
    mean, deviation, odds, worth = prior.mean.copy(), prior.deviation.copy(), prior.odds, 0.0
    for exponent in chosen:
        if deviation[exponent.row, exponent.column] > 0:
            mean[exponent.row, exponent.column], deviation[exponent.row, exponent.column] = exponent.value, 0.0
            odds, worth = odds + exponent.odds, worth + exponent.worth
    simpler = PosynomialPrior(mean, deviation, prior.low, odds)
    losses = _Losses(problem, simpler, sigma)
    again = losses.minimize(theta, rounds=12)
    loss = _huber(losses.at(again)[0]) - _huber(_Losses(problem, prior, sigma).at(theta)[0])
    return None if 0.5 * loss > worth + ENOUGH else (simpler, again)


def _plain_candidates(
    problem: FormProblem, prior: PosynomialPrior, theta: Array, variance: Array
) -> Iterator[PlainExponent]:
    for row, column in zip(*np.nonzero(prior.free), strict=True):
        if column == 0:
            continue
        uncertainty = max(float(variance[row, column]), 1e-12)
        wide = float(prior.deviation[row, column])
        off_mean = (theta[row, column] - prior.mean[row, column]) / wide
        may = problem.stretched[column - 1] and not problem.steady[column - 1]
        for value, probability in PLAIN if may else PLAIN[:1]:
            if value >= prior.low[row, column] - 1e-9:
                lost = (theta[row, column] - value) ** 2 / uncertainty - off_mean**2
                odds = math.log(probability / SLAB)
                worth = odds + 0.5 * math.log(wide**2 / uncertainty)
                yield PlainExponent(worth - 0.5 * lost, worth, odds, value, int(row), int(column))


def _begin(problem: FormProblem, prior: PosynomialPrior, before: Array | None, chance: np.random.Generator) -> Array:
    """Return a start: the previous terms and a small new one, or a draw from the prior."""
    theta = prior.mean + 0.7 * prior.deviation * chance.standard_normal(prior.mean.shape)
    theta[:, 0] = prior.mean[:, 0]
    if before is not None:
        theta[: len(before)] = before
        theta[-1, 0] = 0.0
        small = _sum(before[:, 0] + problem.u @ before[:, 1:].T)[0] - problem.u @ theta[-1, 1:]
        theta[-1, 0] = np.median(small) - 2
    else:
        theta[1:, 0] += np.median(problem.logs) - np.median(_sum(theta[1:, 0] + problem.u @ theta[1:, 1:].T)[0])
    return np.maximum(theta, prior.low + 1e-6)


class _Losses:
    """Residuals of samples and prior by theta, and their Jacobian; it keeps all that theta does not change."""

    def __init__(self, problem: FormProblem, prior: PosynomialPrior, sigma: Array) -> None:
        self._problem, self._prior, self._sigma, self._root = problem, prior, sigma, np.sqrt(problem.weight)
        self._free, self._deviation = prior.free, prior.deviation[prior.free]
        self._term, column = np.nonzero(prior.free)
        self._design = np.column_stack([np.ones(len(sigma)), problem.u])[:, column]
        self._scale, self._believed = (self._root / sigma)[:, None], np.diag(1 / self._deviation)

    def at(self, theta: Array) -> tuple[Array, Array]:
        """Return the residuals in deviations (n + free,), and each term's share of the sum (n, terms)."""
        total, share = _sum(theta[:, 0] + self._problem.u @ theta[:, 1:].T)
        off = self._root * (total - self._problem.logs) / self._sigma
        return np.concatenate([off, (theta - self._prior.mean)[self._free] / self._deviation]), share

    def jacobian(self, share: Array) -> Array:
        """Return the derivative (n + free, free) of the residuals where the terms have these shares."""
        return np.concatenate([share[:, self._term] * self._design * self._scale, self._believed])

    def minimize(self, start: Array, *, rounds: int) -> Array:
        """Return the theta of least Huber loss near ``start``, by Levenberg and Marquardt."""
        # Bounds are kept by projection: an entry stays on its bound while the gradient pushes it out.
        free, low = self._free, self._prior.low[self._free]
        theta = np.where(free, np.maximum(start, self._prior.low), self._prior.mean)
        off, share = self.at(theta)
        loss, damping, diagonal = _huber(off), FIRST_DAMPING, np.diag_indices(len(low))
        for _ in range(rounds):
            jacobian = self.jacobian(share)
            heed = np.minimum(1.0, WILD_AT / np.maximum(np.abs(off), 1e-12))
            slope, curve = jacobian.T @ (heed * off), jacobian.T @ (heed[:, None] * jacobian)
            fixed = (theta[free] <= low) & (slope > 0)
            curve[fixed], curve[:, fixed] = 0.0, 0.0
            steep, down, moved, before = curve[diagonal], np.where(fixed, 0.0, -slope), theta.copy(), loss
            while damping < LAST_DAMPING:
                curve[diagonal] = np.where(fixed, 1.0, steep + damping * steep)
                moved[free] = np.maximum(theta[free] + np.linalg.solve(curve, down), low)
                off, share = self.at(moved)
                loss = _huber(off)
                if loss < before:
                    break
                damping *= 4
            else:
                return theta
            theta, damping = moved, max(damping / 8, 1e-9)
            if before - loss < CLOSE * before:
                break
        return theta


def _huber(off: Array) -> float:
    """Return Huber's loss of residuals: squares, and straight lines above ``WILD_AT``."""
    size = np.abs(off)
    return float(np.sum(np.where(size <= WILD_AT, size**2, 2 * WILD_AT * size - WILD_AT**2)))


def _sum(terms: Array) -> tuple[Array, Array]:
    """Return the logarithm of the sum of exp(terms) over each row, and each term's share of it."""
    most = terms.max(axis=1, keepdims=True)
    powers = np.exp(terms - most)
    total = powers.sum(axis=1, keepdims=True)
    return (most + np.log(total))[:, 0], powers / total


def _sigma(problem: FormProblem, prior: PosynomialPrior, theta: Array) -> Array:
    """Return each sample's deviation; short runs may be noisier, and outliers count less."""
    logs = _sum(theta[:, 0] + problem.u @ theta[:, 1:].T)[0]
    off = logs - problem.logs
    count = len(off)
    centred = logs - logs.mean()
    size = np.log(np.abs(off) + 1e-3)
    slope = float(centred @ size / (centred @ centred + 30 * max(float(centred.var()), 1e-3)))
    shape = np.exp(np.clip(np.clip(slope, -0.5, 0.0) * centred, -1.5, 1.5))
    scaled = np.abs(off) / shape
    clipped = np.minimum(scaled, 4 * 1.4826 * np.median(scaled) + 1e-12)
    spent = min(float(prior.free.sum()), 0.6 * count)
    level = np.sqrt((np.sum(problem.weight * clipped**2) + 3 * 0.04**2) / (count - spent + 3))
    usual = np.clip(level * shape, *NOISE)
    return np.asarray(usual * np.maximum(1.0, np.abs(off) / (WILD * usual)), np.float64)


def _judge(problem: FormProblem, prior: PosynomialPrior, theta: Array, sigma: Array) -> FormFit:
    """Return the fit with its posterior covariance and evidence by Laplace's approximation."""
    losses = _Losses(problem, prior, sigma)
    residuals, share = losses.at(theta)
    jacobian = losses.jacobian(share)
    values, vectors = np.linalg.eigh(jacobian.T @ jacobian)
    values = np.maximum(values, 1e-12)
    evidence = (
        prior.odds
        + (len(theta) - 2) * theta.shape[1] * math.log(SLAB)
        - 0.5 * _huber(residuals)
        - float(np.sum(problem.weight * np.log(sigma)))
    )
    evidence -= 0.5 * float(np.log(values).sum()) + float(np.log(prior.deviation[prior.free]).sum())
    return FormFit(Posynomial(theta, vectors / np.sqrt(values), prior.free), sigma, evidence)
