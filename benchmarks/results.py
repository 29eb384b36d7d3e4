"""The result of a benchmark: rows with targets, and where they come from."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One promised metric, measured.

    Attributes:
        value: None where it could not be measured; ``how`` gives the reason.
        target: A bound, or the low end of a range.
        met: None without a target or a value.
        baseline: The same metric of the alternative, measured in the same run.
        n: Sample size.
        how: How it was measured.
        target_high: The high end of a range.
    """

    name: str
    value: float | None
    unit: str
    target: float | None = None
    met: bool | None = None
    baseline: float | None = None
    n: int = 1
    how: str = ""
    target_high: float | None = None


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """All rows of one benchmark and their provenance, which the command adds.

    Attributes:
        bench: The benchmark's name.
        date: When it ran, in UTC.
        machine: CPU model, cores, memory, system and Python.
        details: What the rows summarize.
        commit: The commit that was measured.
        seed: The seed of all random draws; None where nothing is drawn.
        measures: Files and folders of the code that was measured, relative to the repository.
    """

    bench: str
    rows: tuple[BenchmarkRow, ...]
    date: str = ""
    machine: dict[str, str] = field(default_factory=dict)
    details: tuple[dict[str, object], ...] = ()
    commit: str = ""
    seed: int | None = None
    measures: tuple[str, ...] = ()


def at_most(name: str, value: float, target: float, unit: str, **more: object) -> BenchmarkRow:
    """Return a row whose target is an upper bound."""
    return BenchmarkRow(name, value, unit, target=target, met=value <= target, **more)  # type: ignore[arg-type]


def at_least(name: str, value: float, target: float, unit: str, **more: object) -> BenchmarkRow:
    """Return a row whose target is a lower bound."""
    return BenchmarkRow(name, value, unit, target=target, met=value >= target, **more)  # type: ignore[arg-type]


def within(name: str, value: float, targets: tuple[float, float], unit: str, **more: object) -> BenchmarkRow:
    """Return a row whose target is a range, its ends included."""
    low, high = targets
    return BenchmarkRow(name, value, unit, target=low, target_high=high, met=low <= value <= high, **more)  # type: ignore[arg-type]


def target_sign(value: float | None, target: float, met: bool | None) -> str:
    """Return the side that a target bounds: ``≤ ``, ``≥ `` or nothing."""
    # a row stores no side: it follows from the value and whether that met the target
    if value is None or met is None or value == target:
        return ""
    return "≤ " if met == (value <= target) else "≥ "


def missed_targets(rows: Sequence[BenchmarkRow]) -> list[str]:
    """Return the names of the rows that missed their target."""
    return [row.name for row in rows if row.met is False]
