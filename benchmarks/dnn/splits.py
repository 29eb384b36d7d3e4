"""One split of one table: measurements, each method's predictions of the held-out rows, and the metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from benchmarks.results import BenchmarkRow, at_least, at_most, within

Array = npt.NDArray[np.float64]
Texts = npt.NDArray[np.str_]

LEVEL = 0.9
COVERED = (85.0, 95.0)
"""Target range, in percent, for the coverage of 90 % intervals in a group."""
COUNTED = 30
"""Fewest rows of a group with a target for coverage; with fewer, chance alone misses it too often."""


@dataclass(frozen=True, slots=True)
class SplitResult:
    """Predictions of the n rows that a split holds out; every array has shape (n,).

    Attributes:
        answers: Method → its predictions, Leadline's first; NaN where a method has none.
        low: Low ends of Leadline's 90 % intervals.
        high: High ends.
        group: Group of each row; coverage is reported by group.
        mape: Target of the mean absolute percentage error; ``median`` and ``p90`` are targets of its quantiles.
        how: The training data.
        limits: The reason where a target is missed.
        more: Further entries of the document.
        unit: Rows with correlated errors, such as those of one measured curve; they count as one for coverage.
        apart: Device of each row, where each device has its own target.
        apart_mape: That target.
        compared: Each other method has a row too, not only the best one.
    """

    table: str
    split: str
    measured: Array
    answers: Mapping[str, Array]
    low: Array
    high: Array
    group: Texts
    mape: float | None = None
    median: float | None = None
    p90: float | None = None
    how: str = ""
    limits: str = ""
    more: Mapping[str, object] = field(default_factory=dict)
    unit: Texts | None = None
    apart: Texts | None = None
    apart_mape: float | None = None
    compared: bool = False

    @property
    def name(self) -> str:
        """Return the name of this split's rows."""
        return f"{self.table}: {self.split}"

    def errors(self, method: str | None = None) -> Array:
        """Return the absolute percentage errors of a method, by default Leadline's; NaN where it has no answer."""
        predicted = self.answers[method or next(iter(self.answers))]
        errors: Array = 100 * np.abs(predicted - self.measured) / self.measured
        return errors

    def rows(self) -> list[BenchmarkRow]:
        """Return the errors with their targets and the best other method, and the coverage by group."""
        errors = self.errors()
        best, baseline = self._best_other()
        how = f"{self.how}; best other: {best}" if best else self.how
        if self.limits:
            how += f"; limited by {self.limits}"
        rows = [_row(f"{self.name}, MAPE", float(np.mean(errors)), self.mape, baseline, len(errors), how)]
        if self.median is not None:
            rows.append(_row(f"{self.name}, median", float(np.median(errors)), self.median, None, len(errors), ""))
        if self.p90 is not None:
            rows.append(_row(f"{self.name}, P90", float(np.quantile(errors, 0.9)), self.p90, None, len(errors), ""))
        for device, part in self._by_device().items():
            rows.append(
                _row(f"{self.name}, {device}, MAPE", float(np.mean(part)), self.apart_mape, None, len(part), "")
            )
        for method in list(self.answers)[1:] if self.compared else ():
            value = float(np.nanmean(self.errors(method)))
            rows.append(_row(f"{self.name}, {method}, MAPE", value, None, None, len(errors), "the same runs"))
        return rows + [self._coverage(str(group)) for group in np.unique(self.group)]

    def document(self) -> dict[str, object]:
        """Return the errors of every method, and of Leadline in every group, for the result's details."""
        methods = {name: _summary(self.errors(name)) for name in self.answers}
        groups = {str(group): _summary(self.errors()[self.group == group]) for group in np.unique(self.group)}
        covered = {str(group): self._covered(str(group)) for group in np.unique(self.group)}
        apart = {device: {**_summary(part), "target": self.apart_mape} for device, part in self._by_device().items()}
        targets = {"mape": self.mape, "median": self.median, "p90": self.p90}
        return {
            "table": self.table, "split": self.split, "targets": targets, "methods": methods, "groups": groups,
            "apart": apart, "compared": self.compared,
            "coverage": {name: {"percent": round(share, 2), "n": n, "width": width} for name, (share, n, width) in
                         covered.items()},
            **self.more,
        }  # fmt: skip

    def _by_device(self) -> dict[str, Array]:
        """Return the errors of each device with its own target."""
        if self.apart is None:
            return {}
        return {str(device): self.errors()[self.apart == device] for device in np.unique(self.apart)}

    def _best_other(self) -> tuple[str, float | None]:
        errors = {name: float(np.nanmean(self.errors(name))) for name in list(self.answers)[1:]}
        if not errors:
            return "", None
        best = min(errors, key=lambda name: errors[name])
        return best, errors[best]

    def _covered(self, group: str) -> tuple[float, int, float]:
        """Return the coverage of a group in percent, its rows, and the median of high ÷ low."""
        mask = self.group == group
        covered = (self.low[mask] <= self.measured[mask]) & (self.measured[mask] <= self.high[mask])
        width = float(np.median(self.high[mask] / self.low[mask]))
        return 100 * float(np.mean(covered)), int(mask.sum()), round(width, 3)

    def _coverage(self, group: str) -> BenchmarkRow:
        share, n, width = self._covered(group)
        how = f"median interval high ÷ low {width:.2f}; {self._chance(group)}"
        name = f"{self.name}, coverage ({group})" if group else f"{self.name}, coverage"
        if n < COUNTED:
            return BenchmarkRow(name, share, "%", n=n, how=f"{how}; too few rows for a target")
        return within(name, share, COVERED, "%", n=n, how=how)

    def _chance(self, group: str) -> str:
        """Return the range of coverage by chance at a true 90 %, in 19 of 20 cases."""
        mask = self.group == group
        units = int(mask.sum()) if self.unit is None else len(np.unique(self.unit[mask]))
        least, most = likely_coverage(units)
        rows = f"{units} rows" if self.unit is None else f"{units} independent rows"
        return f"at a true 90 %, chance gives {least:.0f} to {most:.0f} % for {rows}"


def likely_coverage(n: int) -> tuple[float, float]:
    """Return the central 95 % range, in percent, of the coverage of n independent rows at a true 90 %."""
    from scipy.special import bdtr  # noqa: PLC0415 - only benches need it

    below = bdtr(np.arange(n + 1), n, LEVEL)
    return tuple(100 * float(np.searchsorted(below, tail)) / n for tail in (0.025, 0.975))  # type: ignore[return-value]


def joined_split(
    table: str,
    split: str,
    parts: Sequence[SplitResult],
    *,
    mape: float | None = None,
    median: float | None = None,
    how: str = "",
    limits: str = "",
) -> SplitResult:
    """Join several splits of one kind; ``more`` has the errors of each."""
    first = parts[0]
    errors = {part.split or f"part {number}": _summary(part.errors()) for number, part in enumerate(parts)}
    return SplitResult(
        table,
        split,
        np.concatenate([part.measured for part in parts]),
        {name: np.concatenate([part.answers[name] for part in parts]) for name in first.answers},
        np.concatenate([part.low for part in parts]),
        np.concatenate([part.high for part in parts]),
        np.concatenate([part.group for part in parts]),
        mape=mape,
        median=median,
        how=how,
        limits=limits,
        more={"parts": errors},
        unit=None if first.unit is None else np.concatenate([part.unit for part in parts if part.unit is not None]),
    )


@dataclass(frozen=True, slots=True)
class RefusedSplit:
    """Questions that must be refused; ``guessed`` is the error (MAPE) of a guess in percent."""

    table: str
    split: str
    refused: int
    questions: int
    guessed: float
    how: str = ""

    def rows(self) -> list[BenchmarkRow]:
        """Return the share of refused questions, with a target of 100 %."""
        share = 100 * self.refused / self.questions
        return [at_least(f"{self.table}: {self.split}, refused", share, 100.0, "%", n=self.questions, how=self.how)]

    def document(self) -> dict[str, object]:
        """Return the counts for the result's details."""
        counts = {"refused": self.refused, "questions": self.questions, "guessed_mape": round(self.guessed, 3)}
        return {"table": self.table, "split": self.split, **counts}


def split_documents(splits: "Sequence[SplitResult | RefusedSplit]") -> tuple[dict[str, object], ...]:
    """Return the details of all splits."""
    return tuple(split.document() for split in splits)


def _row(name: str, value: float, target: float | None, baseline: float | None, n: int, how: str) -> BenchmarkRow:
    if target is None:
        return BenchmarkRow(name, value, "%", baseline=baseline, n=n, how=how)
    return at_most(name, value, target, "%", baseline=baseline, n=n, how=how)


def _summary(errors: Array) -> dict[str, float]:
    finite = errors[np.isfinite(errors)]
    if not len(finite):
        return {"n": 0}
    mape, median, p90 = float(finite.mean()), float(np.median(finite)), float(np.quantile(finite, 0.9))
    return {"n": len(finite), "mape": round(mape, 3), "median": round(median, 3), "p90": round(p90, 3)}
