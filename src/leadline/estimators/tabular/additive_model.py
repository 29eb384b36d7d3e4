"""Sums of power products with plain exponents, selected by non-negative least squares.

t = Σ aₖ · Π xⱼ^eₖⱼ with aₖ ≥ 0 in the target's own unit. The fit is to relative errors (Lawson and Hanson 1974). The
extended Bayesian information criterion thins the terms (Chen and Chen 2008).
"""

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import field

from leadline.core.frozen import Frozen
from leadline.estimators.ports import Array, integers
from leadline.estimators.tabular.scaling_model import FittedForm, FormFit, FormProblem, ModelForm, log_sum
from leadline.estimators.tabular.tables import robust_deviation

SCALE_POWERS = ((1.0, 0.0), (2.0, 1.0), (1.5, 1.5), (1.07, 2.0), (3.0, 2.0), (0.5, 2.5))
# Powers of a feature in a product, each with its log prior penalty against none. n log n is about n^1.07 for the n of
# large jobs.
OTHER_POWERS = ((1.0, 1.0), (-1.0, 1.0), (0.5, 2.0), (-0.5, 2.0), (2.0, 2.5), (-0.75, 2.5))
MOST = 3000  # the dictionary holds the simplest products, at most so many
# No history determines a model better than to 1 %.
FLOOR = 0.01
LEAST = 1e-12
ROUNDS, PROMISING, BELIEVED, THIN = 30, 3, 6, 6


class AdditiveModel(FittedForm):
    """A fitted sum: ``theta`` (terms, 1 + columns) holds each log coefficient and its exponents.

    ``gate`` (terms, 4) is the column of a term's category (or -1), the column's values without and with it, and whether
    the term grows with scale. ``root`` (terms, terms) is a root of the coefficients' covariance.
    """

    theta: Array
    gate: Array
    root: Array

    def terms(self, u: Array) -> Array:
        """Return the logarithm of each term (n, terms)."""
        return np.asarray(self.theta[:, 0] + u @ self.theta[:, 1:].T + _gates(u, self.gate), np.float64)

    def halves(self, u: Array) -> tuple[Array, Array]:
        """Return the logarithms (n,) of the start-up and of the part that grows with scale."""
        terms, grows = self.terms(u), self.gate[:, 3] > 0
        return log_sum(terms[:, ~grows]), log_sum(terms[:, grows])

    def spread(self, u: Array) -> Array:
        """Return the log deviation (n,) due to the uncertainty of the coefficients."""
        terms = self.terms(u)
        share = np.exp(terms - log_sum(terms)[:, None])
        return np.asarray(np.sqrt(np.sum((share @ self.root) ** 2, axis=1)), np.float64)


class TermDictionary(Frozen):
    """Possible terms: ``powers`` (products, columns), and ``gate`` (products, 4) as in the model."""

    powers: Array
    gate: Array
    price: Array  # (products,): loss of log evidence by a term, in addition to that of one more number

    def logs(self, u: Array) -> Array:
        """Return the logarithm of each product (n, products)."""
        return np.asarray(u @ self.powers.T + _gates(u, self.gate), np.float64)


class AdditiveForm(ModelForm):
    """Fits ``AdditiveModel``."""

    fitted = AdditiveModel

    largest: int = 300

    def fit(self, problem: FormProblem, seed: int) -> list[FormFit]:  # noqa: ARG002 - nothing is drawn
        """Return the likeliest sums of the search, each with its evidence."""
        dictionary = _dictionary(problem)
        # The combination of the columns should be `target`: relative errors by weight.
        target = np.sqrt(problem.weight)
        design = np.exp(np.minimum(dictionary.logs(problem.u) - problem.logs[:, None], 300.0)) * target[:, None]
        search = TermSearch(design, target, dictionary.price, np.sum(design**2, axis=0))
        first = max((search.climb(start) for start in search.starts()), key=search.evidence)
        off = search.off(first)
        usual = max(robust_deviation(off), 1e-6)
        damping = np.sqrt(np.minimum(1.0, 2.5 * usual / np.maximum(np.abs(off), LEAST)))  # wild ones count less
        design, target = design * damping[:, None], target * damping
        search = TermSearch(design, target, dictionary.price, np.sum(design**2, axis=0))
        search.climb(first)
        search.evidence((0,))  # a constant at least
        ranked = sorted(search.met, key=lambda columns: -search.met[columns])
        best = [columns for columns in ranked if columns and np.all(search.weights(columns) > 0)]
        return [_judge(problem, dictionary, search, np.array(columns, np.int64)) for columns in best[:BELIEVED]]


def _gates(u: Array, gate: Array) -> Array:
    """Return the log membership of each row in each term's category (n, terms)."""
    if not u.shape[1]:
        return np.zeros((len(u), len(gate)))
    column = integers(gate[:, 0])
    off, on = gate[:, 1], gate[:, 2]
    share = (u[:, np.maximum(column, 0)] - off) / np.where(column >= 0, on - off, 1.0)
    return np.where(column >= 0, np.log(np.clip(share, LEAST, 1.0)), 0.0)


def _dictionary(problem: FormProblem) -> TermDictionary:
    """Return the simplest products, fewest and plainest powers first."""
    stretched = [int(j) for j in np.flatnonzero(problem.stretched)]
    powers = [SCALE_POWERS if scale else OTHER_POWERS for scale in problem.scales.tolist()]
    gates = _categories(problem)
    room = max(1, MOST // len(gates))
    products: list[tuple[float, tuple[tuple[int, float], ...]]] = []
    for count in range(min(len(stretched), 4) + 1):
        for chosen in itertools.combinations(stretched, count):
            if math.comb(len(stretched), count) * 6**count > 20 * MOST:
                break  # so many features that products of so many of them are out of reach
            for each in itertools.product(*(powers[j] for j in chosen)):
                pairs = tuple((j, power) for j, (power, _) in zip(chosen, each, strict=True))
                products.append((sum(price for _, price in each), pairs))
    products = sorted(products, key=lambda gate: gate[0])[:room]
    table = np.zeros((len(products), problem.u.shape[1]))
    for row, (_, product) in enumerate(products):
        for j, power in product:
            table[row, j] = power
    grows = np.any(table[:, problem.scales] > 0, axis=1).tolist()
    return TermDictionary(
        np.concatenate([table] * len(gates)),
        np.array([(*gate, float(grow)) for gate in gates for grow in grows]),
        np.array([price + (1.5 if gate[0] >= 0 else 0.0) for gate in gates for price, _ in products]) + 1.0,
    )


def _categories(problem: FormProblem) -> list[tuple[float, float, float]]:
    """Return two-valued columns as gates open at either value, after the always-open gate."""
    gates = [(-1.0, 0.0, 1.0)]
    for column in np.flatnonzero(~problem.stretched):
        values = np.unique(np.round(problem.u[:, column], 9))
        if len(values) == 2:
            gates += [(float(column), float(values[0]), float(values[1]))]
            gates += [(float(column), float(values[1]), float(values[0]))]
    return gates


class TermSearch(Frozen):
    """Search for few columns of ``design`` whose non-negative sum meets ``target``."""

    design: Array
    target: Array
    price: Array
    size: Array  # squares of the columns
    met: dict[tuple[int, ...], float] = field(default_factory=dict)  # visited sets with their log evidence
    promising: dict[tuple[int, ...], list[tuple[int, ...]]] = field(default_factory=dict)

    def climb(self, start: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Return the best set reached by adding a column and dropping up to two at a time."""
        current, height = start, self.evidence(start)
        for _ in range(ROUNDS):
            near = {candidate for base in _within(current) for candidate in (base, *self._with(base))}
            best = max(near, key=self.evidence)
            if self.evidence(best) <= height + 1e-9:
                break
            current, height = best, self.evidence(best)
        return tuple(int(current[i]) for i in np.flatnonzero(self.weights(current)))

    def starts(self) -> list[tuple[int, ...]]:
        """Return the starting sets: empty, and the best sum regardless of price, thinned."""
        weights = self.weights(tuple(range(self.design.shape[1])))
        most = np.argsort(-(weights**2) * self.size)[: 3 * THIN]
        start = tuple(int(columns) for columns in np.sort(most) if weights[columns] > 0)
        while len(start) > THIN:
            fewer = [start[:i] + start[i + 1 :] for i in range(len(start))]
            start = min(fewer, key=lambda columns: float(np.sum(self.off(columns) ** 2)))
        return [(), start]

    def evidence(self, columns: tuple[int, ...]) -> float:
        """Return the logarithm of the evidence of a set, by the extended Bayesian information criterion."""
        key = tuple(sorted(columns))
        if key not in self.met:
            off = self.off(key)
            self.met[key] = self._worth(float(off @ off), len(key)) - float(self.price[list(key)].sum())
        return self.met[key]

    def weights(self, columns: tuple[int, ...]) -> Array:
        """Return the coefficients of a set, none below zero, of least squares."""
        from scipy.optimize import nnls  # noqa: PLC0415 - needed to fit alone

        if not columns:
            return np.zeros(0)
        part = self.design[:, list(columns)]
        size = np.sqrt(np.sum(part**2, axis=0)) + 1e-300
        return np.asarray(nnls(part / size, self.target, maxiter=10 * part.shape[1] + 100)[0] / size, np.float64)

    def off(self, columns: tuple[int, ...]) -> Array:
        """Return the residual of the target under a set."""
        return np.asarray(self.target - self.design[:, list(columns)] @ self.weights(columns), np.float64)

    def _with(self, base: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the base with one more column, for the most promising ones."""
        if base in self.promising:
            return self.promising[base]
        residual = self.off(base)
        basis = np.linalg.qr(self.design[:, list(base)])[0] if base else np.zeros((len(residual), 0))
        inside = basis.T @ self.design
        free = np.maximum(self.size - np.einsum("ij,ij->j", inside, inside), 1e-9 * self.size + 1e-300)
        gain = np.maximum(self.design.T @ residual, 0.0) ** 2 / free
        worth = self._worth(np.maximum(residual @ residual - gain, 0.0), len(base) + 1) - self.price
        worth[list(base)] = -np.inf
        best = np.argpartition(-worth, PROMISING)[:PROMISING] if len(worth) > PROMISING else np.arange(len(worth))
        self.promising[base] = [(*base, int(column)) for column in best]
        return self.promising[base]

    def _worth(self, squares: Any, terms: int) -> Any:  # noqa: ANN401 - a number or an array of them
        count = len(self.target)
        return -0.5 * count * np.log(squares / count + FLOOR**2) - 0.5 * terms * math.log(count)


def _within(columns: tuple[int, ...]) -> list[tuple[int, ...]]:
    every, most = range(len(columns)), 2 if len(columns) <= THIN + 2 else 1
    dropped = itertools.chain.from_iterable(itertools.combinations(every, count) for count in range(most + 1))
    return [tuple(columns[i] for i in every if i not in drop) for drop in dropped]


def _judge(
    problem: FormProblem, dictionary: TermDictionary, search: TermSearch, columns: npt.NDArray[np.int64]
) -> FormFit:
    """Return a set of columns as a model, without columns of zero weight."""
    weights = search.weights(tuple(columns))
    active, values = columns[weights > 0], weights[weights > 0]
    design = search.design[:, active] * values
    off = search.target - design.sum(axis=1)
    level = float(off @ off) / max(len(off) - len(active), 1) + FLOOR**2
    roots, vectors = np.linalg.eigh(design.T @ design + 1e-9 * np.eye(len(active)))
    root = vectors * np.sqrt(level / np.maximum(roots, 1e-9))
    law = AdditiveModel(np.column_stack([np.log(values), dictionary.powers[active]]), dictionary.gate[active], root)
    return FormFit(law, np.full(len(problem.logs), math.sqrt(level)), search.met[tuple(columns.tolist())])
