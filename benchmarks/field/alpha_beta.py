"""The α–β model of a copy's time, fitted to measured copies: a baseline of the transfer benchmark."""

import math
from collections.abc import Sequence
from statistics import geometric_mean

from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.estimators.file_transfer import MeasuredCopy
from leadline.estimators.student_t import student_90

SPREAD = 4.0  # sizes must differ by this factor to separate latency from bandwidth
REACH = 10.0  # a copy this many times larger than all measured ones gets no prediction


class TransferModel(Frozen):
    """The α–β model ``elapsed_s = latency_s + bytes / bandwidth`` of one direction between two systems."""

    latency_s: float
    seconds_per_byte: float
    scatter: float  # standard deviation of log time around the fit
    freedom: int  # degrees of freedom of the scatter
    count: int  # of the copies that were measured
    least_bytes: float
    most_bytes: float

    def expected_s(self, size_bytes: float) -> Interval | None:
        """Return the 90 % interval of a copy of that size; ``None`` far above the measured sizes."""
        # The interval is Student's t on logarithms, since scatter and fit come from the same few copies. A copy below
        # all measured sizes takes no longer than the smallest one may.
        if size_bytes > REACH * self.most_bytes:
            return None
        width = student_90(self.freedom) * self.scatter * math.sqrt(1 + 1 / self.count)
        point = self._point_s(size_bytes)
        high = self._point_s(max(size_bytes, self.least_bytes)) * math.exp(width)
        return Interval(point, point * math.exp(-width), high)

    def _point_s(self, size_bytes: float) -> float:
        return self.latency_s + self.seconds_per_byte * size_bytes


def fit_transfer(copies: Sequence[MeasuredCopy]) -> TransferModel | None:
    """Fit the copies of one pair of systems; ``None`` if there are too few to estimate the scatter."""
    # Errors are relative, since they grow with the time. Neither latency nor time per byte is negative.
    usable = [copy for copy in copies if copy.moved_bytes > 0 and copy.elapsed_s > 0]
    if len(usable) < 2:
        return None
    sizes = [copy.moved_bytes for copy in usable]
    fits_latency = len(usable) >= 3 and max(sizes) >= SPREAD * min(sizes)
    rate = geometric_mean(copy.elapsed_s / copy.moved_bytes for copy in usable)
    latency_s, per_byte = _line(usable) if fits_latency else (0.0, rate)
    freedom = len(usable) - (2 if fits_latency else 1)
    errors = [math.log(copy.elapsed_s / (latency_s + per_byte * copy.moved_bytes)) for copy in usable]
    scatter = math.sqrt(sum(copy**2 for copy in errors) / freedom)
    return TransferModel(latency_s, per_byte, scatter, freedom, len(usable), min(sizes), max(sizes))


def _line(copies: Sequence[MeasuredCopy]) -> tuple[float, float]:
    # (latency + rate x - t) / t: columns 1/t and x/t against 1.
    rows = [(1 / copy.elapsed_s, copy.moved_bytes / copy.elapsed_s) for copy in copies]
    aa, ab, bb = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = sum(r[0] for r in rows), sum(r[1] for r in rows)
    determinant = aa * bb - ab * ab
    latency_s = (a * bb - b * ab) / determinant
    per_byte = (b * aa - a * ab) / determinant
    if latency_s < 0:
        return 0.0, b / bb
    return (a / aa, 0.0) if per_byte < 0 else (latency_s, per_byte)
