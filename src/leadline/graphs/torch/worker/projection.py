"""Steps of a whole run that is too long to be counted, by how far its first steps brought it through its loops."""

from typing import NamedTuple, Optional, Sequence

TIGHT = 1.2
"""Upper over lower limit of steps, up to which they are told."""
TOLERANCE = 1.03
"""Ratio of steps that are alike: a pass at the end may be shorter."""


class Position(NamedTuple):
    """Steps made, and the share of the loops around them that is done, which is between ``done`` and ``at_most``."""

    steps: int = 0
    done: float = 0.0
    at_most: float = 1.0


class Projection(NamedTuple):
    """Limits of the steps of a whole run, if it goes on as it did."""

    low: float
    likely: float
    high: float

    @property
    def steps(self) -> Optional[int]:
        """Return the likely steps, ``None`` if the limits are far from each other."""
        return round(self.likely) if self.high <= TIGHT * self.low else None

    def holds(self, steps: float) -> bool:
        """Return whether a whole run may have so many steps."""
        return self.low / TOLERANCE <= steps <= self.high * TOLERANCE


def project(course: Sequence[Position]) -> Optional[Projection]:
    """Return what the positions of a run tell of the whole one, ``None`` if the last may be within the first pass.

    The run goes on as between the last position and those at an eighth to a half of its steps. Where steps come in
    rounds, these tell different numbers.
    """
    last = course[-1]
    found = [_between(place, last) for place in course if last.steps / 8 <= place.steps <= last.steps / 2]
    told = [projection for projection in found if projection is not None]
    if not told or len(told) < len(found):
        return None
    return Projection(min(each.low for each in told), told[-1].likely, max(each.high for each in told))


def _between(first: Position, last: Position) -> Optional[Projection]:
    made, left = last.steps - first.steps, max(1 - last.at_most, 0.0)
    least, most = last.done - first.at_most, last.at_most - first.done
    if least <= 0 or made <= 0:
        return None
    # A step more or less may have been due.
    low, high = last.steps + (made - 1) / most * left, last.steps + (made + 1) / least * (1 - last.done)
    return Projection(low, (low + high) / 2, high)
