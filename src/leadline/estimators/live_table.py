"""How far off live estimates were, by the share of the job that was over: what their intervals are made of."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97)
"""The shares done around which errors are gathered; between them quantiles are interpolated."""
ENOUGH = 19
"""Errors below which those of the neighbouring shares count too: so many have a 5 % tail."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One error of a live estimate: the ``share`` that was over by its own reckoning, and its ``score``.

    The score is ln(what was left ÷ what was estimated to be left), in the estimate's own spreads; of memory that of
    the peak. ``run`` is shared by the polls of one run.
    """

    share: float
    score: float
    run: str


@dataclass(frozen=True, slots=True)
class LiveTable:
    """Errors of live estimates by the share that was done, each figure for one of ``SHARES``.

    ``excess`` is the spread of forecasts from progress beyond what they say themselves, and ``scores`` has the sorted
    scores of each kind of evidence: ``both`` are those of progress with an estimate from before, ``seen`` those
    without, ``memory`` those of the peak.
    """

    excess: tuple[float, ...]
    scores: Mapping[str, tuple[tuple[float, ...], ...]]
    runs: int = 0

    def excess_at(self, share: float) -> float:
        """Return how much a forecast is to be doubted beyond what it says itself when this share is done."""
        return _between(self.excess, share)

    def bounds(self, kind: str, share: float, level: float) -> tuple[float, float]:
        """Return the quantiles of the scores between which a new one lies with probability ``level`` (0 to 1).

        They are conformal: of n scores the ends are those of rank (n + 1) tail, the extreme ones where n is too small.
        """
        tail = (1 - level) / 2
        bands = [self._band(kind, place) for place in range(len(SHARES))]
        low = [-_upper([-one for one in band], tail) for band in bands]
        return _between(low, share), _between([_upper(band, tail) for band in bands], share)

    def _band(self, kind: str, place: int) -> list[float]:
        """Return the scores at a share, with those of its neighbours as far as are needed."""
        every = self.scores[kind]
        for reach in range(len(SHARES)):
            band = [one for near in every[max(place - reach, 0) : place + reach + 1] for one in near]
            if len(band) >= ENOUGH:
                return band
        return band


def gathered(errors: Sequence[Seen]) -> tuple[tuple[float, ...], ...]:
    """Return the scores at each of ``SHARES``, sorted; of one run there is one at each, that of the nearest poll."""
    found = []
    for place, share in enumerate(SHARES):
        nearest: dict[str, Seen] = {}
        for one in errors:
            if place_of(one.share) != place:
                continue
            kept = nearest.get(one.run)
            if kept is None or abs(one.share - share) < abs(kept.share - share):
                nearest[one.run] = one
        found.append(tuple(sorted(round(one.score, 4) for one in nearest.values())))
    return tuple(found)


def place_of(share: float) -> int:
    """Return the number of the nearest of ``SHARES``, in log-odds."""
    return min(range(len(SHARES)), key=lambda place: abs(_odds(SHARES[place]) - _odds(share)))


def _upper(scores: Sequence[float], tail: float) -> float:
    """Return what a new score exceeds with probability ``tail`` at most, as far as so few can tell."""
    ranked = sorted(scores)
    rank = math.ceil((len(ranked) + 1) * (1 - tail))
    return ranked[min(rank, len(ranked)) - 1] if ranked else math.inf


def _between(figures: Sequence[float], share: float) -> float:
    """Return a figure between those of ``SHARES``, along log-odds."""
    at = _odds(share)
    odds = [_odds(one) for one in SHARES]
    if at <= odds[0]:
        return figures[0]
    for place in range(1, len(odds)):
        if at <= odds[place]:
            part = (at - odds[place - 1]) / (odds[place] - odds[place - 1])
            return (1 - part) * figures[place - 1] + part * figures[place]
    return figures[-1]


def _odds(share: float) -> float:
    inside = min(max(share, 1e-6), 1 - 1e-6)
    return math.log(inside / (1 - inside))
