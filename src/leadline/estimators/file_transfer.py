"""Measured copies of folders between two systems, and probes of the path between them."""

from leadline.core.frozen import Frozen


class PathProbe(Frozen):
    """A small timed transfer, which says how busy a path is."""

    moved_bytes: float
    elapsed_s: float
    round_trip_s: float | None = None

    @property
    def bytes_per_s(self) -> float:
        """Throughput, start-up included."""
        return self.moved_bytes / self.elapsed_s


class MeasuredCopy(Frozen):
    """One copy that was measured, and the path as it started.

    ``competing_bytes`` is what each other copy on the path had yet to move, infinite where unknown; ``None`` if the
    copies are not counted. ``probe`` is the last one before.
    """

    moved_bytes: float
    elapsed_s: float
    competing_bytes: tuple[float, ...] | None = None
    probe: PathProbe | None = None
