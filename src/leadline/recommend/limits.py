"""The limit to ask for on a quantity that is known by a distribution: the cheapest, kills and reruns included."""

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Interval
from leadline.core.recommendation import Weights
from leadline.uncertainty.distributions import Distribution, HalfLogNormals, spreads

GROWTH = 1.5
"""How much more a rerun asks for than the run that was killed, as people and batch tools do."""

_TAILS = tuple(0.5 * 0.85**step for step in range(80))
"""Probabilities of a kill among which the cheapest is looked for: from a half to one in a million.

A limit below the median is never asked for: most runs would be killed.
"""
_NEVER = 1e-9
"""A probability of a kill that no longer counts."""


class Loss(StrEnum):
    """What a kill at a limit loses."""

    LIMIT = "limit"
    """As much as the limit: a run killed for its time has used all of it."""
    RUN = "run"
    """The whole run, whatever the limit: one killed for its memory."""


class Decided(StrEnum):
    """What set a limit."""

    RISK = "risk"
    """The accepted probability of a kill; more kills would have been cheaper."""
    COST = "cost"
    """The least expected cost; more kills were accepted."""
    CAP = "cap"
    """The most that may be asked for; it lies between the two."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit, the probability ``risk`` of exceeding it, that which would cost least, and which of them decided."""

    value: float
    risk: float
    cheapest_risk: float
    decided: Decided


def expected_loss(known: Distribution, limit: float, weights: Weights, loss: Loss) -> float:
    """Return what asking for ``limit`` is expected to lose, in the unit of the quantity.

    A run that needs more than its limit is killed and run again with ``GROWTH`` times as much, until it is through.
    With the limits l₀ < l₁ < …, the loss is Σ kill × lost(lᵢ) × P(X > lᵢ) + Σ waste × E[lᵢ - X; lᵢ₋₁ < X ≤ lᵢ], where
    lost(l) is l itself or, for ``Loss.RUN``, the median. What the last run uses is the same for every limit and left
    out, and so is the price of an hour, which multiplies the whole.
    """
    total, below, mean = 0.0, 0.0, 0.0
    while True:
        above, mean_here = known.above(limit), known.mean_below(limit)
        total += weights.waste * (limit * (1 - above - below) - (mean_here - mean))
        if above < _NEVER:
            return total
        total += weights.kill * above * (limit if loss is Loss.LIMIT else known.median)
        limit, below, mean = limit * GROWTH, 1 - above, mean_here


def limit_for(
    interval: Interval, risk: float, weights: Weights, loss: Loss = Loss.LIMIT, *, cap: float | None = None
) -> Limit:
    """Return the limit of least expected loss that the quantity exceeds with a probability of at most ``risk``.

    ``cap`` is the most that may be asked for; it is overstepped only where the risk cannot be held below it, so that
    the caller sees what would be needed. An interval without width gives its point.

    Raises:
        InvalidInput: ``risk`` is not between 0 and 1, or a weight is negative or not a number.
    """
    below, above = spreads(interval)
    if not above:
        return Limit(interval.point, 0.0, 0.0, Decided.RISK)
    known = HalfLogNormals(interval.point, below, above)
    return _within(known, risk, _cheapest_risk(_stepped(above), weights.kill, weights.waste, loss), cap)


def limit_of(known: Distribution, risk: float, weights: Weights, loss: Loss, *, cap: float | None = None) -> Limit:
    """Return what ``limit_for`` does, of a quantity whose distribution is known.

    Raises:
        InvalidInput: as ``limit_for``.
    """
    _check_weights(weights)
    return _within(known, risk, _cheapest(known, weights, loss), cap)


def _check_weights(weights: Weights) -> None:
    for name, value in (("kill", weights.kill), ("waste", weights.waste)):
        if not 0 <= value < math.inf:
            raise InvalidInput(f"a weight of {value:g} for {name} is not usable: choose 0 or more, such as 1")


def _within(known: Distribution, risk: float, cheapest: float, cap: float | None) -> Limit:
    if not 0 < risk < 1:
        raise InvalidInput(f"a risk of {risk:g} is not usable: choose one between 0 and 1, such as 0.05")
    chosen = min(risk, cheapest)
    value = known.quantile(1 - chosen)
    if cap is not None and cap < value and known.quantile(1 - risk) <= cap:
        return Limit(cap, known.above(cap), cheapest, Decided.CAP)
    return Limit(value, chosen, cheapest, Decided.RISK if risk <= cheapest else Decided.COST)


def _stepped(spread: float) -> float:
    """Round a spread to steps of 5 %, so that the search is made once for many alike."""
    return math.exp(round(math.log(max(spread, 1e-4)) / 0.05) * 0.05)


@lru_cache(maxsize=4096)
def _cheapest_risk(spread: float, kill: float, waste: float, loss: Loss) -> float:
    """Return the probability of a kill at which a log-normal with that spread is cheapest, whatever its median."""
    _check_weights(Weights(kill, waste))
    return _cheapest(HalfLogNormals(1.0, spread, spread), Weights(kill, waste), loss)


def _cheapest(known: Distribution, weights: Weights, loss: Loss) -> float:
    return min(_TAILS, key=lambda tail: expected_loss(known, known.quantile(1 - tail), weights, loss))
