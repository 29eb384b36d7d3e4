"""One split of one table: what was measured, what each method answered without having seen it, and the rows of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from benchmarks.results import BenchmarkRow, at_least, at_most, within

Array = npt.NDArray[np.float64]
Texts = npt.NDArray[np.str_]

LEVEL = 0.9
COVERED = (85.0, 95.0)
"""Share of measurements, in percent, that a 90 % interval may hold in a group."""
COUNTED = 30
"""A group of fewer rows shows its coverage without a target: chance alone would take it out of bounds too often."""


@dataclass(frozen=True, slots=True)
class SplitResult:
    """Answers to the n rows that a split held out; every array has shape (n,).

    ``answers`` maps a method to its predictions, Leadline's own first; NaN where a method cannot say. ``low`` and
    ``high`` are the ends of Leadline's 90 % intervals, and ``group`` names the rows whose coverage is told apart.
    ``unit`` names rows that hit or miss together (those of one measured curve), where not each stands for itself: they
    tell no more of the coverage than one row. ``apart`` names the rows of one device where the errors of each have a
    target, ``apart_mape``, of their own.
    ``mape``, ``median`` and ``p90`` are targets of the absolute percentage error; ``limits`` says what stands in the
    way where one is missed, and ``how`` what was learned from what.
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

    @property
    def name(self) -> str:
        """Return what the rows of this split are called."""
        return f"{self.table}: {self.split}"

    def errors(self, method: str | None = None) -> Array:
        """Return the absolute percentage errors of a method, by default Leadline's; NaN where it did not answer."""
        predicted = self.answers[method or next(iter(self.answers))]
        found: Array = 100 * np.abs(predicted - self.measured) / self.measured
        return found

    def rows(self) -> list[BenchmarkRow]:
        """Return the figures with their targets, beside the best of the other methods, and the coverage by group."""
        errors = self.errors()
        best, baseline = self._best_other()
        told = f"{self.how}; best other: {best}" if best else self.how
        if self.limits:
            told += f"; limited by {self.limits}"
        found = [_row(f"{self.name}, MAPE", float(np.mean(errors)), self.mape, baseline, len(errors), told)]
        if self.median is not None:
            found.append(_row(f"{self.name}, median", float(np.median(errors)), self.median, None, len(errors), ""))
        if self.p90 is not None:
            found.append(_row(f"{self.name}, P90", float(np.quantile(errors, 0.9)), self.p90, None, len(errors), ""))
        for one, own in self._apart().items():
            found.append(_row(f"{self.name}, {one}, MAPE", float(np.mean(own)), self.apart_mape, None, len(own), ""))
        return found + [self._coverage(str(one)) for one in np.unique(self.group)]

    def document(self) -> dict[str, object]:
        """Return the errors of every method, and of Leadline in every group, for the JSON of the bench."""
        methods = {name: _figures(self.errors(name)) for name in self.answers}
        groups = {str(one): _figures(self.errors()[self.group == one]) for one in np.unique(self.group)}
        covered = {str(one): self._held(str(one)) for one in np.unique(self.group)}
        apart = {one: {**_figures(own), "target": self.apart_mape} for one, own in self._apart().items()}
        targets = {"mape": self.mape, "median": self.median, "p90": self.p90}
        return {
            "table": self.table, "split": self.split, "targets": targets, "methods": methods, "groups": groups,
            "apart": apart,
            "coverage": {name: {"percent": round(share, 2), "n": n, "width": width} for name, (share, n, width) in
                         covered.items()},
            **self.more,
        }  # fmt: skip

    def _apart(self) -> dict[str, Array]:
        """Return the errors of each device that is told apart."""
        if self.apart is None:
            return {}
        return {str(one): self.errors()[self.apart == one] for one in np.unique(self.apart)}

    def _best_other(self) -> tuple[str, float | None]:
        others = {name: float(np.nanmean(self.errors(name))) for name in list(self.answers)[1:]}
        if not others:
            return "", None
        best = min(others, key=lambda name: others[name])
        return best, others[best]

    def _held(self, group: str) -> tuple[float, int, float]:
        """Return the share of a group in its intervals, in percent, its rows, and the median of high ÷ low."""
        own = self.group == group
        held = (self.low[own] <= self.measured[own]) & (self.measured[own] <= self.high[own])
        width = float(np.median(self.high[own] / self.low[own]))
        return 100 * float(np.mean(held)), int(own.sum()), round(width, 3)

    def _coverage(self, group: str) -> BenchmarkRow:
        share, n, width = self._held(group)
        how = f"median interval high ÷ low {width:.2f}; {self._chance(group)}"
        name = f"{self.name}, coverage ({group})" if group else f"{self.name}, coverage"
        if n < COUNTED:
            return BenchmarkRow(name, share, "%", n=n, how=f"{how}; too few rows for a target")
        return within(name, share, COVERED, "%", n=n, how=how)

    def _chance(self, group: str) -> str:
        """Return what chance alone makes of 90 % in a group, in 19 of 20 cases."""
        own = self.group == group
        units = int(own.sum()) if self.unit is None else len(np.unique(self.unit[own]))
        least, most = likely_coverage(units)
        apart = f"{units} rows" if self.unit is None else f"{units} that stand for themselves"
        return f"where 90 % hold, chance leaves {least:.0f} to {most:.0f} % of {apart}"


def likely_coverage(n: int) -> tuple[float, float]:
    """Return the central 95 % range of the share, in percent, of n independent rows that intervals of 90 % hold."""
    from scipy.special import bdtr  # noqa: PLC0415 - only benches need it

    held = np.arange(n + 1)
    below = bdtr(held, n, LEVEL)
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
    """Return several splits of one kind as one; the errors of each stand in ``more``."""
    first = parts[0]
    errors = {part.split or f"part {number}": _figures(part.errors()) for number, part in enumerate(parts)}
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
    """Questions that must not be answered: how many were refused, and how wrong (MAPE) a guess would have been."""

    table: str
    split: str
    refused: int
    questions: int
    guessed: float
    how: str = ""

    def rows(self) -> list[BenchmarkRow]:
        """Return the share that was refused, which is to be all of it."""
        share = 100 * self.refused / self.questions
        return [at_least(f"{self.table}: {self.split}, refused", share, 100.0, "%", n=self.questions, how=self.how)]

    def document(self) -> dict[str, object]:
        """Return the figures for the JSON of the bench."""
        told = {"refused": self.refused, "questions": self.questions, "guessed_mape": round(self.guessed, 3)}
        return {"table": self.table, "split": self.split, **told}


def split_documents(asked: "Sequence[SplitResult | RefusedSplit]") -> tuple[dict[str, object], ...]:
    """Return the details of all splits."""
    return tuple(one.document() for one in asked)


def _row(name: str, value: float, target: float | None, baseline: float | None, n: int, how: str) -> BenchmarkRow:
    if target is None:
        return BenchmarkRow(name, value, "%", baseline=baseline, n=n, how=how)
    return at_most(name, value, target, "%", baseline=baseline, n=n, how=how)


def _figures(errors: Array) -> dict[str, float]:
    known = errors[np.isfinite(errors)]
    if not len(known):
        return {"n": 0}
    mape, median, p90 = float(known.mean()), float(np.median(known)), float(np.quantile(known, 0.9))
    return {"n": len(known), "mape": round(mape, 3), "median": round(median, 3), "p90": round(p90, 3)}
