"""The one shape of a bench's result, as a table for people and a document for scripts."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One promised figure, measured.

    ``met`` is ``None`` when there is no target, or when the figure could not be measured (``value`` is ``None`` and
    ``how`` says why). A target with a ``target_high`` is a range. ``baseline`` is the figure of the alternative
    measured in the same run, ``n`` the sample size.
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
    """All rows of one bench, with the machine and the date, and the details behind the rows."""

    bench: str
    rows: tuple[BenchmarkRow, ...]
    date: str = ""
    machine: dict[str, str] = field(default_factory=dict)
    details: tuple[dict[str, object], ...] = ()

    @property
    def all_met(self) -> bool:
        """Whether no row with a target missed it."""
        return all(row.met is not False for row in self.rows)


def at_most(name: str, value: float, target: float, unit: str, **more: object) -> BenchmarkRow:
    """Return a row whose target is an upper bound."""
    return BenchmarkRow(name, value, unit, target=target, met=value <= target, **more)  # type: ignore[arg-type]


def at_least(name: str, value: float, target: float, unit: str, **more: object) -> BenchmarkRow:
    """Return a row whose target is a lower bound."""
    return BenchmarkRow(name, value, unit, target=target, met=value >= target, **more)  # type: ignore[arg-type]


def within(name: str, value: float, targets: tuple[float, float], unit: str, **more: object) -> BenchmarkRow:
    """Return a row whose value is to lie in a range, its ends included."""
    low, high = targets
    return BenchmarkRow(name, value, unit, target=low, target_high=high, met=low <= value <= high, **more)  # type: ignore[arg-type]


def target_sign(value: float | None, target: float, met: bool | None) -> str:
    """Return the side that a target bounds (``≤ ``, ``≥ ``, or nothing): a row tells it by whether its value met it."""
    if value is None or met is None or value == target:
        return ""
    return "≤ " if met == (value <= target) else "≥ "


def missed_targets(rows: Sequence[BenchmarkRow]) -> list[str]:
    """Return the names of the rows that missed their target."""
    return [row.name for row in rows if row.met is False]
