"""The copies between systems that the plane has measured."""

import math

from leadline.core.plane import EventKind
from leadline.estimators.file_transfer import MeasuredCopy, PathProbe
from leadline.execution.plane.journal import EventDetails, PlaneJournal


def staged_copies(journal: PlaneJournal, source: str, target: str) -> list[MeasuredCopy]:
    """Return the measured copies from one system to another, oldest first."""
    copies = (event.details for event in journal.events(kinds=[EventKind.STAGED]))
    return [_measured_copy(copy) for copy in copies if (copy.get("from"), copy.get("to")) == (source, target)]


def _measured_copy(details: EventDetails) -> MeasuredCopy:
    moved_bytes, elapsed_s, competing, *probed = (
        _number(details.get(name))
        for name in ("moved_bytes", "elapsed_s", "competing", "probe_bytes", "probe_s", "round_trip_s")
    )
    probe = PathProbe(*probed) if all(probed) else None
    return MeasuredCopy(moved_bytes, elapsed_s, (math.inf,) * int(competing), probe)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
