"""Measured times of one link and layout by message size, with extrapolation and spread."""

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass

import numpy as np

from leadline.estimators.parallelism.fabric import LINK_EFFICIENCY
from leadline.estimators.ports import Array

# Measured sizes that differ by less than this share of an octave become one point of the curve.
BIN = 1 / 64
# Largest octaves of a curve, whose slope extrapolates it.
TOP_OCTAVES = 2.0
# Difference of the logarithm of a size within which times are evened out, where they tell of other layouts.
SMOOTH = 0.1
# Least log deviation of a time: clocks tick in microseconds.
LEAST_NOISE = 0.002
# Difference of the logarithm of a size within which single times scatter alike.
NEARBY = math.log(2)
# Factors by which curves are shortened to measure their extrapolation error.
SHORTENED = (2.0, 4.0, 8.0)
# Points that a shortened curve needs, to be tried.
LEAST_POINTS = 8


@dataclass(frozen=True, slots=True)
class CollectiveCurve:
    """Measured log sizes (bytes, ascending) and log seconds of one layout, each (m,).

    ``wire_bytes_per_s`` is NaN where unknown. ``even`` (m,) is the isotonic regression of the seconds: a larger message
    never takes less. ``noise`` (m,) is the variance of a single time. ``roughness`` (m,) is the variance added by each
    unit of log size.
    """

    sizes: Array
    seconds: Array
    wire_bytes_per_s: float
    even: Array
    noise: Array
    roughness: Array

    @property
    def start_share(self) -> float:
        """The share of the largest message's time that the smallest takes: what no bandwidth explains."""
        return float(np.exp(self.even[0] - self.even[-1]))

    def at(self, sizes: Array, passes: float) -> Array:
        """Return the logarithm of seconds at logarithms of sizes (n,)."""
        last_s, slope = self._beyond(passes)
        further = np.maximum(np.exp(sizes) - math.exp(self.sizes[-1]), 0.0)
        inside = np.interp(sizes, self.sizes, self.seconds)
        return np.where(sizes > self.sizes[-1], np.log(last_s + further * slope), inside)

    def smooth(self, sizes: Array, passes: float) -> Array:
        """Return the logarithm of seconds as ``at`` does, jumps of single times evened out within the curve."""
        away = (np.clip(sizes, self.sizes[0], self.sizes[-1])[:, None] - self.sizes) / SMOOTH
        weights = np.exp(-0.5 * away**2)
        evened: Array = np.where(
            sizes > self.sizes[-1], self.at(sizes, passes), weights @ self.even / weights.sum(axis=1)
        )
        return evened

    def spread(self, sizes: Array, growth: "SpreadGrowth") -> Array:
        """Return the deviation of the logarithm of a measured time from ``at`` (n,).

        Between points it is that of a Wiener process seen through noise, for which a straight line is the best guess.
        Below the smallest size time is doubted as over one gap.
        """
        place = np.clip(np.searchsorted(self.sizes, sizes), 1, max(len(self.sizes) - 1, 1))
        low = self.sizes[place - 1]
        gap = np.maximum(self.sizes[np.minimum(place, len(self.sizes) - 1)] - low, 1e-9)
        share = np.clip((sizes - low) / gap, 0.0, 1.0)
        noise, rough = (np.interp(sizes, self.sizes, values) for values in (self.noise, self.roughness))
        below = np.maximum(self.sizes[0] - sizes, 0.0)
        inside = noise * (1 + share**2 + (1 - share) ** 2) + rough * (gap * share * (1 - share) + below)
        beyond = growth.variance(np.maximum(sizes - self.sizes[-1], 0.0), self.start_share)
        return np.asarray(np.sqrt(inside + beyond), np.float64)

    def until(self, size: float) -> "CollectiveCurve":
        """Return the part up to a logarithm of a size."""
        kept = self.sizes <= size
        return make_curve(self.sizes[kept], self.seconds[kept], self.wire_bytes_per_s)

    def _beyond(self, passes: float) -> tuple[float, float]:
        """Return the seconds at the largest size, and the slope for larger sizes.

        The slope comes from the last octaves, where time is proportional to size. As far as it is not proportional
        there, bandwidth is still rising and the slope is drawn to that of the wire. It is never below the wire's slope,
        unless the measurements are.
        """
        chosen = self.sizes >= self.sizes[-1] - TOP_OCTAVES * math.log(2)
        x, y = np.exp(self.sizes[chosen]), np.exp(self.seconds[chosen])
        design = np.column_stack([np.ones(len(x)), x]) / y[:, None]
        start_s, slope = np.linalg.lstsq(design, np.ones(len(x)), rcond=None)[0] if len(x) > 1 else (0.0, y[-1] / x[-1])
        largest = math.exp(self.sizes[-1])
        proportional = float(np.clip(slope * largest / max(start_s + slope * largest, 1e-12), 0.0, 1.0))
        last_s = float(np.median(y[-5:] * (largest / x[-5:]) ** proportional))
        straight, steepest = proportional * last_s / largest, last_s / largest
        if not np.isfinite(self.wire_bytes_per_s):
            return last_s, straight
        wire = min(passes / (LINK_EFFICIENCY * self.wire_bytes_per_s), steepest)
        return last_s, wire if straight <= wire else straight**proportional * wire ** (1 - proportional)


@dataclass(frozen=True, slots=True)
class SpreadGrowth:
    """Growth of the spread past the end of a curve; ``further`` is the log ratio of sizes.

    ``joint`` is the deviation at the start of the extrapolated line. ``steady`` is the deviation gained in the first
    unit: libraries change algorithms now and then, so variance grows in proportion to the distance. ``starting`` is the
    gain for each unit where all time is start-up. The priors are 3 %, 0.1, and 1/√12: the start-up may grow with the
    size or not, and all cases between are equally likely.
    """

    joint: float = 0.03
    steady: float = 0.1
    starting: float = 12**-0.5

    def variance(self, further: Array, start_share: float | Array) -> Array:
        """Return the variance at log distances (n,) past the end of the curve."""
        started = self.joint**2 * (further > 0)
        return np.asarray(started + self.steady**2 * further + (self.starting * start_share * further) ** 2, np.float64)


def make_curve(sizes: Array, seconds: Array, wire_bytes_per_s: float) -> CollectiveCurve:
    """Return the curve through points of log size (ascending) and log seconds, each (m,).

    Noise and roughness follow from the distances of points to the line between their neighbours, and between their
    second neighbours.
    """
    near, far = (_interpolation_errors(sizes, seconds, reach) for reach in (1, 2))
    gap = float(np.median(np.diff(sizes))) if len(sizes) > 1 else 1.0
    rough = np.maximum(2 * (far - near) / gap, 0.0)
    noise = np.maximum(near - rough * gap / 2, 0.0) / 1.5
    return CollectiveCurve(
        sizes, seconds, wire_bytes_per_s, isotonic(seconds), np.maximum(noise, LEAST_NOISE**2), rough
    )


def fit_curve(octaves: Array, log_s: Array, wire_bytes_per_s: float) -> CollectiveCurve:
    """Return the curve through the means of measurements whose sizes (in octaves) are nearly the same."""
    _, which = np.unique(np.floor(octaves / BIN), return_inverse=True)
    counts = np.bincount(which)
    sizes = np.bincount(which, octaves * math.log(2)) / counts
    return make_curve(sizes, np.bincount(which, log_s) / counts, wire_bytes_per_s)


def fit_spread_growth(curves: Iterable[tuple[CollectiveCurve, float]]) -> SpreadGrowth:
    """Return the most likely growth, from shortened curves compared with their own larger sizes.

    ``curves`` come with the number of passes over a link. Errors are Laplace distributed. The errors of one shortened
    curve weigh as much as one error, and so does the prior.
    """
    from scipy.optimize import minimize  # noqa: PLC0415 - needed to fit alone

    errors = [parameter for curve, passes in curves for parameter in _extrapolation_errors(curve, passes)]
    if not errors:
        return SpreadGrowth()
    believed = np.log(astuple(SpreadGrowth()))

    def badness(theta: Array) -> float:
        growth = SpreadGrowth(*np.exp(theta))
        total = float(np.sum((theta - believed) ** 2)) / 2
        for error, further, noise, share in errors:
            scale = np.sqrt(noise + growth.variance(further, share))
            total += float(np.mean(np.log(scale) + np.abs(error) / scale))
        return total

    answer = minimize(badness, believed, method="Nelder-Mead", options={"maxiter": 400})
    return SpreadGrowth(*(float(parameter) for parameter in np.exp(answer.x)))


def isotonic(values: Array) -> Array:
    """Return the nearest ascending values in the mean square, by pooling neighbours that descend."""
    means: list[float] = []
    counts: list[int] = []
    for value in values.tolist():
        means.append(value)
        counts.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            total = counts[-2] + counts[-1]
            means[-2:] = [(means[-2] * counts[-2] + means[-1] * counts[-1]) / total]
            counts[-2:] = [total]
    return np.repeat(np.asarray(means, np.float64), counts)


def _extrapolation_errors(curve: CollectiveCurve, passes: float) -> list[tuple[Array, Array, float, float]]:
    """Return errors of shortened curves at larger sizes, with distance, variance and start-up share."""
    errors = []
    for times in SHORTENED:
        short = curve.until(curve.sizes[-1] - math.log(times))
        if LEAST_POINTS <= len(short.sizes) < len(curve.sizes):
            out = curve.sizes > short.sizes[-1]
            error = curve.seconds[out] - short.at(curve.sizes[out], passes)
            errors.append((error, curve.sizes[out] - short.sizes[-1], 2 * short.noise[-1], short.start_share))
    return errors


def _interpolation_errors(sizes: Array, seconds: Array, reach: int) -> Array:
    """Return the mean squared distance (m,) of points near each size to the line between others.

    The others are ``reach`` places before and after each point.
    """
    if len(sizes) <= 2 * reach:
        return np.zeros(len(sizes))
    low, middle, high = (slice(None, -2 * reach), slice(reach, -reach), slice(2 * reach, None))
    share = (sizes[middle] - sizes[low]) / (sizes[high] - sizes[low])
    square = (seconds[middle] - seconds[low] - share * (seconds[high] - seconds[low])) ** 2
    weights = np.exp(-0.5 * ((sizes[:, None] - sizes[middle]) / NEARBY) ** 2) + 1e-12
    return np.asarray(weights @ square / weights.sum(axis=1), np.float64)
