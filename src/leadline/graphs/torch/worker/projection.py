"""Steps of a whole run that is too long to be counted, by how far its first steps brought it through its loops."""

from typing import NamedTuple, Optional

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
    """Limits of the steps of a whole run, if it goes on as in the second half of the steps that it made."""

    low: float
    high: float

    @property
    def steps(self) -> Optional[int]:
        """Return the steps, ``None`` if the limits are far from each other."""
        return round((self.low + self.high) / 2) if self.high <= TIGHT * self.low else None

    def holds(self, steps: float) -> bool:
        """Return whether a whole run may have so many steps."""
        return self.low / TOLERANCE <= steps <= self.high * TOLERANCE


def project(first: Position, last: Position) -> Optional[Projection]:
    """Return what two places tell of the whole run, ``None`` if the second may be within the first pass."""
    made, left = last.steps - first.steps, max(1 - last.at_most, 0.0)
    least, most = last.done - first.at_most, last.at_most - first.done
    if least <= 0 or made <= 0:
        return None
    # A step more or less may have been due.
    return Projection(last.steps + (made - 1) / most * left, last.steps + (made + 1) / least * (1 - last.done))
