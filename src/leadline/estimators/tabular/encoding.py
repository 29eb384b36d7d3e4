"""Encode configurations as a matrix of numbers, fitted to the training samples."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from leadline.core.runs import Value
from leadline.estimators.ports import Array, IntArray, Mask, Stored

ALIKE = 0.999  # columns that correlate more than this say the same, and become one
LEAST_RANGE = math.log(2)  # range of a (nearly) constant feature: twice its value is one range away
# Transformation of a number: its logarithm (all positive), ln(1 + x ÷ least positive) (none negative), or none.
LOG, COUNT, RAW = 0, 1, 2
ABSENT, UNUSABLE = 1, 2
LARGEST = 1e100  # larger numbers count as infinite, and numbers below the inverse as zero

Row = Mapping[str, Value]
_Group = list[tuple[int, float]]


class NumericFeatures(Stored):
    """Numeric features: transformation, fitted range, and fill value where missing."""

    names: tuple[str, ...]
    kinds: IntArray
    units: Array
    low: Array
    high: Array
    fill: Array
    gaps: IntArray

    @property
    def widths(self) -> Array:
        """Return the fitted range of each, transformed; for a constant feature that of a factor of two."""
        least = np.where(self.kinds == RAW, np.maximum(np.abs(self.high), 1.0), LEAST_RANGE)
        return np.where(self.high > self.low, np.maximum(self.high - self.low, 0.1 * least), least)


class CategoryFeatures(Stored):
    """Category features: the labels seen in the training samples and their shares."""

    names: tuple[str, ...]
    owners: IntArray
    seen: tuple[str, ...]
    shares: Array
    gaps: IntArray


class FeatureEncoding(Stored):
    """The encoding fitted by ``learn_encoding``; all that ``encode`` needs.

    ``columns`` name the matrix columns: a feature, ``feature=category``, ``feature?`` where it is missing, or several
    joined by `` + `` where they are equivalent. ``scales`` are 1 for columns that carry scale. ``stretch`` is the
    standard deviation of a column's logarithms, so that ``weight ÷ stretch`` is an exponent; NaN for columns that are
    no logarithms.
    """

    numbers: NumericFeatures
    categories: CategoryFeatures
    mean: Array
    deviation: Array
    merge: Array
    columns: tuple[str, ...]
    scales: IntArray
    stretch: Array

    def encode(self, rows: Sequence[Row]) -> tuple[Array, Array]:
        """Return the standardised matrix (n, columns), and each row's extrapolation (n,)."""
        wide, beyond = _widen(rows, self.numbers, self.categories)
        return ((wide - self.mean) / self.deviation) @ self.merge, beyond


def learn_encoding(rows: Sequence[Row], scale_features: Sequence[str] = ()) -> FeatureEncoding:
    """Return the encoding fitted to the training samples' features."""
    # A feature becomes its logarithm where all its values are positive, since a linear model in logarithms extrapolates
    # as a power. Text becomes one column per category. Constant columns drop out, and equivalent ones become their
    # mean.
    numbers, categories = _learn_numbers(rows), _learn_names(rows)
    wide, _ = _widen(rows, numbers, categories)
    names = _wide_names(numbers, categories)
    mean, deviation = wide.mean(axis=0), wide.std(axis=0)
    varied = deviation > 1e-9 * np.maximum(np.abs(mean), 1.0)
    deviation = np.where(varied, deviation, 1.0)
    carries = np.array([name in scale_features for name in names], bool)
    groups = _groups((wide - mean) / deviation, varied, carries)
    merge = np.zeros((wide.shape[1], len(groups)))
    for column, group in enumerate(groups):
        for member, sign in group:
            merge[member, column] = sign / len(group)
    is_log = np.array([*(kind == LOG for kind in numbers.kinds)] + [False] * (len(names) - len(numbers.names)))
    stretch = [
        float(np.mean([deviation[member] for member, _ in group if is_log[member]]))
        if is_log[group[0][0]]
        else math.nan
        for group in groups
    ]
    columns = tuple(" + ".join(names[member] for member, _ in group) for group in groups)
    scales = np.array([int(carries[group[0][0]]) for group in groups], np.int64)
    return FeatureEncoding(numbers, categories, mean, deviation, merge, columns, scales, np.array(stretch, np.float64))


def _learn_numbers(rows: Sequence[Row]) -> NumericFeatures:
    names = _features(rows, numeric=True)
    kinds, gaps = np.zeros((2, len(names)), np.int64)
    units, low, high, fill = np.ones((4, len(names)))
    for at, name in enumerate(names):
        column = np.array([_number(row.get(name)) for row in rows])
        finite = column[np.isfinite(column)]
        least = finite[finite > 0].min(initial=math.inf)
        kinds[at] = LOG if finite.min() > 0 else COUNT if finite.min() == 0 and least < math.inf else RAW
        units[at] = least if kinds[at] == COUNT else 1.0
        scaled = _scale(finite, kinds[at], units[at])
        low[at], high[at], fill[at] = scaled.min(), scaled.max(), scaled.mean()
        gaps[at] = finite.size < column.size
    return NumericFeatures(tuple(names), kinds, units, low, high, fill, gaps)


def _learn_names(rows: Sequence[Row]) -> CategoryFeatures:
    names, owners, values, shares, gaps = _features(rows, numeric=False), [], [], [], []
    for owner, name in enumerate(names):
        column = [_category(row.get(name)) for row in rows]
        present = [text for text in column if text is not None]
        for text in sorted(set(present)):
            owners.append(owner)
            values.append(text)
            shares.append(present.count(text) / len(present))
        gaps.append(int(len(present) < len(column)))
    return CategoryFeatures(
        tuple(names), np.array(owners, np.int64), tuple(values), np.array(shares, np.float64), np.array(gaps, np.int64)
    )


def _features(rows: Sequence[Row], *, numeric: bool) -> list[str]:
    """Return the sorted names of the numeric (and somewhere finite) features, or of the others."""
    selected = []
    for name in sorted({name for row in rows for name in row}):
        values = [row[name] for row in rows if name in row]
        are_numbers = all(isinstance(value, int | float) for value in values)
        finite = are_numbers and any(math.isfinite(_number(value)) for value in values)
        if (numeric and finite) or (not numeric and not are_numbers):
            selected.append(name)
    return selected


def _number(value: Value | None) -> float:
    """Return a number, infinite where it is out of range, or NaN for other values."""
    if not isinstance(value, int | float):
        return math.nan
    if abs(value) > LARGEST:
        return math.inf if value > 0 else -math.inf
    return float(value) if abs(value) >= 1 / LARGEST or value != value else 0.0  # noqa: PLR0124 - not a number


def _category(value: Value | None) -> str | None:
    if value is None or value != value:  # noqa: PLR0124 - not a number
        return None
    number = _number(value)
    return f"{number:.12g}" if math.isfinite(number) else str(value)[:50]


def _scale(values: Array, kind: int, unit: float) -> Array:
    if kind == LOG:
        return np.log(values)
    return np.log1p(values / unit) if kind == COUNT else values


def _widen(rows: Sequence[Row], numbers: NumericFeatures, categories: CategoryFeatures) -> tuple[Array, Array]:
    """Return columns of numbers and their gaps, then of categories and theirs; and extrapolation."""
    beyond, columns, gaps = np.zeros(len(rows)), [], []
    for at, (name, widest) in enumerate(zip(numbers.names, numbers.widths, strict=True)):
        column, missing = _numeric(np.array([_number(row.get(name)) for row in rows], np.float64), numbers, at)
        low, high = numbers.low[at], numbers.high[at]
        slack = 1e-9 * (1 + abs(low) + abs(high))
        excess = np.maximum(np.maximum(low - slack - column, column - high - slack), 0) / widest
        strange = (missing == UNUSABLE) | ((missing == ABSENT) & (not numbers.gaps[at]))
        beyond = np.maximum(beyond, np.where(strange, math.inf, excess))
        columns.append(column)
        gaps += [missing == ABSENT] if numbers.gaps[at] else []
    columns += gaps
    for owner, name in enumerate(categories.names):
        texts = [_category(row.get(name)) for row in rows]
        labels = np.flatnonzero(categories.owners == owner)
        hot, is_known = _one_hot(texts, [categories.seen[i] for i in labels], categories.shares[labels])
        absent = np.array([text is None for text in texts], bool)
        strange = ~is_known & ~(absent & bool(categories.gaps[owner]))
        beyond = np.where(strange, math.inf, beyond)
        columns += [*hot.T, absent] if categories.gaps[owner] else [*hot.T]
    return np.ascontiguousarray(np.array(columns, np.float64).reshape(len(columns), len(rows)).T), beyond


def _numeric(values: Array, numbers: NumericFeatures, at: int) -> tuple[Array, IntArray]:
    """Return a number's column, and marks of ``ABSENT`` and (clipped) ``UNUSABLE`` rows."""
    kind, unit = int(numbers.kinds[at]), float(numbers.units[at])
    missing = np.isnan(values)
    under = values <= 0 if kind == LOG else values < 0 if kind == COUNT else np.zeros(len(values), bool)
    unusable = ~missing & (under | np.isinf(values))
    column = _scale(np.where(missing | unusable, unit, values), kind, unit)
    column = np.where(missing, numbers.fill[at], column)
    ends = np.where(under | (values < 0), numbers.low[at], numbers.high[at])
    return np.where(unusable, ends, column), np.where(unusable, UNUSABLE, np.where(missing, ABSENT, 0))


def _one_hot(texts: list[str | None], categories: list[str], shares: Array) -> tuple[Array, Mask]:
    """Return a column per category, with their shares where unknown; and which rows are known."""
    places = {text: place for place, text in enumerate(categories)}
    at = np.array([places.get(text, -1) if text is not None else -1 for text in texts], np.int64)
    hot = np.where((at >= 0)[:, None], np.equal.outer(at, np.arange(len(categories))), shares)
    return hot.astype(np.float64), at >= 0


def _wide_names(numbers: NumericFeatures, categories: CategoryFeatures) -> list[str]:
    names = [*numbers.names, *(f"{name}?" for name, gap in zip(numbers.names, numbers.gaps, strict=True) if gap)]
    for owner, name in enumerate(categories.names):
        names += [f"{name}={categories.seen[i]}" for i in np.flatnonzero(categories.owners == owner)]
        names += [f"{name}?"] if categories.gaps[owner] else []
    return names


def _groups(columns: Array, varied: Mask, carries: Mask) -> list[_Group]:
    """Return the varying columns, scale first, with equivalent columns grouped."""
    # A column that carries scale never joins one that falls as it rises, so more work never looks like less.
    groups: list[_Group] = []
    for column in [*np.flatnonzero(varied & carries), *np.flatnonzero(varied & ~carries)]:
        for group in groups:
            likeness = float(np.mean(columns[:, group[0][0]] * columns[:, column]))
            if abs(likeness) > ALIKE and (likeness > 0 or not carries[column]):
                group.append((int(column), math.copysign(1.0, likeness)))
                break
        else:
            groups.append([(int(column), 1.0)])
    return groups
