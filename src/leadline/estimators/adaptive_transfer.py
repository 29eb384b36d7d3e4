"""Time of a copy on a path that copies share: adaptive regression on probes, competing copies and the last copy.

It follows AdRM (Faerman, Su, Wolski and Berman 1999): the time of a copy is regressed on a light, recent probe of its
path, and refitted as copies end. The regression is Bayesian and linear, on logarithms, over a window of copies. Before
two copies, its prior decides.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean, median

from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.units import format_bytes
from leadline.estimators.file_transfer import MeasuredCopy, PathProbe
from leadline.estimators.student_t import student_90

WINDOW = 60
"""Latest copies that count."""
DEFAULT_BYTES_PER_S = 1e7
"""Capacity of a path about which nothing is known: between a mobile uplink and a campus network."""
LEVEL_SD = {"probes": 1.0, "copies": 1.0, "catalog": 0.7, "default": 2.3}
"""Prior standard deviation of log time by the source of the capacity."""
PRIOR_MEAN = (0.0, 1.0, -0.3, 0.0, -0.6, 0.3)
PRIOR_SD = (math.nan, 0.15, 0.2, 0.05, 0.2, 0.3)
"""Of the coefficients of level, flows, probe, size, last copy and round trip; the first depends on the source."""
PRIOR_ERROR, PRIOR_COUNT = 0.3, 4.0
"""Standard deviation of log time around the regression, and the copies that it weighs as much as."""
MOST_PROBE = 0.7
"""Largest logarithm of a probe ÷ the usual probe. One lost packet makes a short probe several times slower."""
MOST_FLOWS = 8.0
"""Most flows that a round trip is taken as a sign of: it also grows with the size of buffers."""
ALIKE = 0.3
"""Bandwidth of the kernel on the logarithm of flows: errors at a similar sharing decide the width."""
RECENT, ENOUGH = 20, 5
"""Errors that choose between regression and last value, and the fewest that do."""
GROWTH = 0.3
"""Standard deviation added for each e-fold outside the measured sizes or flows."""


class PathState(Frozen):
    """A path as a copy would start.

    Attributes:
        competing_bytes: What each other copy on the path has yet to move, infinite where unknown; ``None`` if the
            copies are not counted. Then the round trip of the probe is a sign of their number.
        probe: The latest probe.
        capacity_bytes_per_s: Of the path, from a catalog.
    """

    competing_bytes: tuple[float, ...] | None = None
    probe: PathProbe | None = None
    capacity_bytes_per_s: float | None = None


class TransferPrediction(Frozen):
    """The 90 % interval of a copy's time, its estimator, and the reasons; ``extrapolating`` beyond measured copies."""

    elapsed_s: Interval
    estimator: str
    reasons: tuple[str, ...]
    extrapolating: bool = False


def predict_transfer(size_bytes: float, copies: Sequence[MeasuredCopy], path: PathState) -> TransferPrediction:
    """Predict the time of a copy of ``size_bytes`` (> 0) from earlier copies on its path, oldest first."""
    usable = [copy for copy in copies if copy.moved_bytes > 0 and copy.elapsed_s > 0][-WINDOW:]
    model = _fit(usable, path)
    row = model.features(size_bytes, path.competing_bytes, path.probe)
    outside, reasons = _outside(size_bytes, row[1], usable, model)
    interval = model.interval(size_bytes, row, outside)
    least = min((copy.moved_bytes for copy in usable), default=0.0)
    if size_bytes < least:
        # Start-up dominates a small copy. It takes no longer than the smallest measured one may.
        high = model.interval(least, model.features(least, path.competing_bytes, path.probe), outside).high
        interval = Interval(interval.point, interval.low, max(interval.high, high))
    if len(usable) < 2:
        why = _PRIOR_REASONS[model.source].format(model.share)
        return TransferPrediction(interval, "prior", (why,), extrapolating=True)
    estimator = "last value" if model.prefers_last() else "adaptive regression"
    reasons = (f"{len(usable)} measured copies", *reasons)
    return TransferPrediction(interval, estimator, reasons, extrapolating=outside > 0)


_PRIOR_REASONS = {
    "probes": "wide prior: fewer than 2 measured copies, and probes moved {:.3g} bytes/s",
    "copies": "wide prior: 1 measured copy, which moved {:.3g} bytes/s",
    "catalog": "wide prior: fewer than 2 measured copies, and the catalog has {:.3g} bytes/s",
    "default": "wide prior: no measured copy, no probe and no known capacity; it assumes {:.3g} bytes/s",
}


def shared_flows(size_bytes: float, competing_bytes: Sequence[float]) -> float:
    """Return the mean number of flows on a path while a copy moves, itself included.

    With max-min fair shares, flows of one bottleneck have equal rates: while a copy moves S bytes, a competitor with r
    left moves min(r, S). So the time is (S + Σ min(r, S)) ÷ capacity.
    """
    return 1 + sum(min(left / size_bytes, 1.0) for left in competing_bytes)


@dataclass(slots=True)
class _Regression:
    """ln(time · share ÷ size) regressed on ``features``; ``share`` is the usual capacity in bytes/s.

    ``errors`` has for each copy, before it was fitted: log flows, the errors of the regression and of the last value,
    and the squared error of the chosen one ÷ its predictive variance factor.
    """

    share: float
    source: str
    round_trip_s: float | None
    usual_bytes: float
    last: float = 0.0  # logarithm of the last copy's share ÷ the usual one
    coefficients: list[float] = field(default_factory=lambda: list(PRIOR_MEAN))
    covariance: list[list[float]] = field(default_factory=list)  # ÷ the variance of the errors
    errors: list[tuple[float, float, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        deviations = (LEVEL_SD[self.source], *PRIOR_SD[1:])
        self.covariance = [
            [(deviation / PRIOR_ERROR) ** 2 if row == column else 0.0 for column in range(len(deviations))]
            for row, deviation in enumerate(deviations)
        ]

    def features(self, size_bytes: float, competing: Sequence[float] | None, probe: PathProbe | None) -> list[float]:
        """Return 1 and the logarithms of flows, probe, size, last share and round trip, relative to the usual.

        N flows that fill a path inflate its round trip by √N (after Appenzeller, Keslassy and McKeown 2004). That
        counts where they are not counted.
        """
        flows = shared_flows(size_bytes, competing or ())
        probed = math.log(_share(probe, competing) / self.share) if probe else 0.0
        probed = min(max(probed, -MOST_PROBE), MOST_PROBE)
        hidden = 0.0
        if competing is None and probe and probe.round_trip_s and self.round_trip_s:
            hidden = min(2 * math.log(probe.round_trip_s / self.round_trip_s), math.log(MOST_FLOWS))
        return [1.0, math.log(flows), probed, math.log(size_bytes / self.usual_bytes), self.last, hidden]

    def update(self, copy: MeasuredCopy) -> None:
        """Refit with a copy that ended: recursive least squares."""
        row = self.features(copy.moved_bytes, copy.competing_bytes, copy.probe)
        target = math.log(copy.elapsed_s * self.share / copy.moved_bytes)
        chosen = target - self._log_time(row)
        error = target - _dot(row, self.coefficients)
        gains = [_dot(line, row) for line in self.covariance]
        variance = 1 + _dot(row, gains)
        self.errors.append((row[1], error, target - row[1] + self.last, chosen**2 / variance))
        self.coefficients = [old + gain * error / variance for old, gain in zip(self.coefficients, gains, strict=True)]
        self.covariance = [
            [old - gain * other / variance for old, other in zip(line, gains, strict=True)]
            for line, gain in zip(self.covariance, gains, strict=True)
        ]
        self.last = row[1] - target

    def prefers_last(self) -> bool:
        """True if the last share has predicted recent copies better than the regression."""
        recent = self.errors[1:][-RECENT:]  # nothing came before the first copy
        return len(recent) >= ENOUGH and median(abs(row[2]) for row in recent) < median(abs(row[1]) for row in recent)

    def _log_time(self, row: Sequence[float]) -> float:
        return row[1] - self.last if self.prefers_last() else _dot(row, self.coefficients)

    def interval(self, size_bytes: float, row: Sequence[float], outside: float) -> Interval:
        """Return the 90 % interval: Student's t, with the errors of copies that shared the path with as many flows."""
        count = PRIOR_COUNT + len(self.errors)
        mean = (PRIOR_COUNT * PRIOR_ERROR**2 + sum(error[3] for error in self.errors)) / count
        alike = [math.exp(-0.5 * ((row[1] - error[0]) / ALIKE) ** 2) for error in self.errors]
        weight = PRIOR_COUNT + sum(alike)
        squares = sum(share * error[3] for share, error in zip(alike, self.errors, strict=True))
        factor = 1 + _dot(row, [_dot(line, row) for line in self.covariance])
        scale = math.hypot(math.sqrt(factor * (PRIOR_COUNT * mean + squares) / weight), GROWTH * outside)
        width = math.exp(student_90(int(weight)) * scale)
        point = size_bytes / self.share * math.exp(self._log_time(row))
        return Interval(point, point / width, point * width)


def _fit(copies: Sequence[MeasuredCopy], path: PathState) -> _Regression:
    """Fit copies in order of their ends."""
    rows = [(copy.competing_bytes, copy.probe) for copy in copies]
    if path.probe is not None:
        rows.append((path.competing_bytes, path.probe))
    round_trips = [probe.round_trip_s for _, probe in rows if probe and probe.round_trip_s]
    probed = [_share(probe, competing) for competing, probe in rows if probe]
    copied = [
        copy.moved_bytes / copy.elapsed_s * shared_flows(copy.moved_bytes, copy.competing_bytes or ())
        for copy in copies
    ]
    source, share = "default", DEFAULT_BYTES_PER_S
    if probed or copied:
        source, share = "probes" if probed else "copies", median(probed or copied)
    elif path.capacity_bytes_per_s:
        source, share = "catalog", path.capacity_bytes_per_s
    usual = geometric_mean(copy.moved_bytes for copy in copies) if copies else 1.0
    model = _Regression(share, source, min(round_trips, default=None), usual)
    for copy in copies:
        model.update(copy)
    return model


def _share(probe: PathProbe, competing: Sequence[float] | None) -> float:
    """Return the capacity in bytes/s that a probe shared with the other copies."""
    return probe.bytes_per_s * (1 + len(competing or ()))


def _outside(
    size_bytes: float, log_flows: float, copies: Sequence[MeasuredCopy], model: _Regression
) -> tuple[float, tuple[str, ...]]:
    """Return the distance outside the measured copies in e-folds, and what is outside."""
    if not copies:
        return 0.0, ()
    sizes = [copy.moved_bytes for copy in copies]
    most = max(error[0] for error in model.errors)
    size = max(math.log(size_bytes / max(sizes)), math.log(min(sizes) / size_bytes), 0.0)
    flows = max(log_flows - most, 0.0)
    reasons = []
    if size:
        reasons.append(
            f"extrapolating: {format_bytes(size_bytes)}, but the measured copies have {format_bytes(min(sizes))} to "
            f"{format_bytes(max(sizes))}"
        )
    if flows:
        reasons.append(
            f"extrapolating: {math.exp(log_flows):.1f} flows, but at most {math.exp(most):.1f} were measured"
        )
    return math.hypot(size, flows), tuple(reasons)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))
