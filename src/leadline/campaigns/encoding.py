"""A campaign's configurations as numbers: logarithms and categories, and what is believed of them before any run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leadline.campaigns.space import Axis, axes, values_of
from leadline.core.campaigns import Campaign, Configuration
from leadline.core.runs import Scale
from leadline.core.samples import Value

Array = npt.NDArray[np.float64]

INTERCEPT_SD, SLOPE_SD, CATEGORY_SD = 2.5, 0.7, 0.7
"""Prior standard deviations of the linear part, in natural logarithms."""
CORES_SLOPE = -0.5
"""Before anything is known a job is taken to gain half the logarithm of its cores."""


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of the linear part: an axis's logarithm, or one of its categories."""

    name: str
    category: Value | None
    mean: float
    sd: float
    low: float
    span: float
    shift: float = 0.0
    """Added before the logarithm is taken; NaN for an axis that reaches below zero, which stays linear."""


class Encoding:
    """Configurations of a campaign as numbers: a basis with a prior, and coordinates for the residual."""

    def __init__(self, campaign: Campaign) -> None:
        found = [_columns(small, full) for small, full in zip(*_both(campaign), strict=True)]
        self._columns = [column for columns in found for column in columns]
        self.mean = np.array([0.0, *(column.mean for column in self._columns)])
        self.sd = np.array([INTERCEPT_SD, *(column.sd for column in self._columns)])

    def basis(self, found: Sequence[Configuration]) -> Array:
        """Return the columns of the linear part, shape (n, 1 + columns): natural logarithms, and 0 or 1."""
        rows = [values_of(one) for one in found]
        table = [[1.0, *(_value(column, row) for column in self._columns)] for row in rows]
        return np.array(table, dtype=np.float64).reshape(len(rows), 1 + len(self._columns))

    def coordinates(self, basis: Array) -> tuple[Array, Array]:
        """Return the numeric columns in units of their range over both scales, and the categories as 0 and 1."""
        numeric = [index for index, one in enumerate(self._columns, 1) if one.category is None]
        others = [index for index, one in enumerate(self._columns, 1) if one.category is not None]
        low = np.array([self._columns[index - 1].low for index in numeric])
        span = np.array([self._columns[index - 1].span for index in numeric])
        return (basis[:, numeric] - low) / span if numeric else basis[:, :0], basis[:, others]


def _both(campaign: Campaign) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    return axes(campaign, Scale.SCALED_DOWN), axes(campaign, Scale.FULL_SCALE)


def _columns(small: Axis, full: Axis) -> list[_Column]:
    """Return the columns of an axis; none of one that never varies."""
    if not small.numeric:
        if len(small.levels) < 2:
            return []
        return [_Column(small.name, level, 0.0, CATEGORY_SD, 0.0, 1.0) for level in small.levels]
    ends = [float(end) for axis in (small, full) for end in (axis.levels or (axis.low, axis.high))]
    low, high = min(ends), max(ends)
    if low == high:
        return []
    shift = 0.0 if low > 0 else math.nan if low < 0 else 1.0 if small.whole else high / 10
    mean = CORES_SLOPE if small.name == "cores" else 0.0
    if small.carries_scale and low >= 0:
        mean = math.copysign(1.0, full.low * full.high - small.low * small.high)
    unknown = _Column(small.name, None, mean, SLOPE_SD, 0.0, high - low if math.isnan(shift) else 1.0, shift)
    ends = [_value(unknown, {small.name: end}) for end in (low, high)]
    sd = 2 * SLOPE_SD if math.isnan(shift) else SLOPE_SD
    return [_Column(small.name, None, mean, sd, ends[0], ends[1] - ends[0], shift)]


def _value(column: _Column, row: dict[str, Value]) -> float:
    value = row.get(column.name)
    if column.category is not None:
        return float(value == column.category)
    if value is None or isinstance(value, str):
        return column.low
    if math.isnan(column.shift):
        return float(value) / column.span
    return math.log(max(float(value) + column.shift, 1e-12))
