"""Answers of the Python API: typed nouns of the core that show themselves as tables."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Generic, TypeVar

from leadline.core.documents import to_document
from leadline.core.estimate import Estimate
from leadline.core.fit import FitReport
from leadline.core.recommendation import Option, Recommendation
from leadline.core.runs import Value
from leadline.interfaces import tables
from leadline.interfaces.documents import fit_document

T = TypeVar("T")
Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""Title, names of the columns, and cells of each row."""
TERMINAL_WIDTH = 160


class Answers(ABC, Generic[T]):
    """A sequence of answers, one for each place: a text table for ``print``, and an HTML table for a notebook."""

    __slots__ = ()

    @abstractmethod
    def _table(self) -> Table:
        """Return the answers as a table."""

    @abstractmethod
    def _answers(self) -> Sequence[T]:
        """Return the answers in order."""

    def __len__(self) -> int:
        """Return the number of places."""
        return len(self._answers())

    def __iter__(self) -> Iterator[T]:
        """Iterate over the places."""
        return iter(self._answers())

    def __getitem__(self, index: int) -> T:
        """Return the answer for one place."""
        return self._answers()[index]

    def __str__(self) -> str:
        """Return the title and the table as text."""
        title, columns, rows = self._table()
        return "\n".join([title, *tables.table_lines(columns, rows, TERMINAL_WIDTH, words=columns)])

    __repr__ = __str__  # so that a terminal shows the table

    def _repr_html_(self) -> str:
        """Return the table as HTML for a notebook."""
        title, columns, rows = self._table()
        head = "".join(f"<th>{escape(column)}</th>" for column in columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@dataclass(frozen=True, slots=True, repr=False)
class Estimates(Answers[Estimate]):
    """Estimates of one workload, one for each place or configuration.

    Attributes:
        name: The workload or application.
        estimates: One estimate for each place; with a trained model, for each configuration and place.
        parameters: The values of the application's parameters, one mapping for each estimate; empty without a model.
        notes: Sentences that hold for all estimates.
        left_out: Places without an estimate, each with the reason.
        document: The JSON document that ``leadline estimate --json`` prints.
    """

    name: str
    estimates: tuple[Estimate, ...]
    parameters: tuple[dict[str, Value], ...]
    notes: tuple[str, ...]
    left_out: tuple[str, ...]
    document: dict[str, Any]

    @property
    def best(self) -> Estimate:
        """Return the estimate with the shortest elapsed time, or step where the length of the job is unknown."""
        return min(self.estimates, key=tables.expected_s)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document that ``leadline estimate --json`` prints."""
        return self.document

    def _answers(self) -> Sequence[Estimate]:
        return self.estimates

    def _table(self) -> Table:
        varying, rows = tables.varying_names(self.parameters), []
        for estimate, values in zip(self.estimates, self.parameters or [{}] * len(self.estimates), strict=True):
            device, cost = _device_and_cost(estimate)
            rows.append((
                tables.format_place(estimate.target.system, estimate.target.partition), device,
                *(str(values[name]) for name in varying), tables.format_time(estimate.step_s),
                tables.format_time(estimate.elapsed_s), tables.format_range(estimate.elapsed_s),
                tables.format_size(estimate.gpu_memory_bytes), tables.format_size(estimate.host_memory_bytes), cost,
            ))  # fmt: skip
        columns = ["step", "elapsed", "90 % interval", "GPU memory", "host memory", "cost"]
        return self.name, ["place", "device", *varying, *columns], rows


@dataclass(frozen=True, slots=True, repr=False)
class FitReports(Answers[FitReport]):
    """Memory fit of one workload, one report for each device.

    Attributes:
        name: The workload.
        reports: One report for each distinct device.
    """

    name: str
    reports: tuple[FitReport, ...]

    @property
    def fits(self) -> bool:
        """Tell whether the workload fits on at least one of the devices."""
        return any(report.fits for report in self.reports)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document that ``leadline fit --json`` prints."""
        return fit_document(self.reports)

    def _answers(self) -> Sequence[FitReport]:
        return self.reports

    def _table(self) -> Table:
        rows = []
        for report in self.reports:
            checks = "; ".join(check.summary for check in report.checks)
            batch = "" if report.largest_batch is None else str(report.largest_batch)
            rows.append((report.place, tables.FIT_VERDICTS[report.fits], checks, batch))
        return self.name, ("place", "verdict", "memory", "largest batch"), rows


@dataclass(frozen=True, slots=True, repr=False)
class Recommendations(Answers[Option]):
    """Configurations that satisfy the constraints, best first.

    Attributes:
        name: The workload or application.
        recommendation: The options, the rejected candidates and, if nothing fits, the smallest change that helps.
    """

    name: str
    recommendation: Recommendation

    @property
    def best(self) -> Option | None:
        """Return the first option; None if nothing fits."""
        return self.recommendation.options[0] if self.recommendation.options else None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document that ``leadline recommend --json`` prints."""
        return to_document(self.recommendation, "leadline.recommendation/1")

    def _answers(self) -> Sequence[Option]:
        return self.recommendation.options

    def _table(self) -> Table:
        rows = []
        for option in self.recommendation.options:
            estimate, (device, cost) = option.estimate, _device_and_cost(option.estimate)
            rows.append((
                tables.format_place(option.system, option.partition), device, tables.format_time(estimate.elapsed_s),
                tables.format_range(estimate.elapsed_s), *tables.format_limits(option.resources), cost,
            ))  # fmt: skip
        if not rows:
            change = self.recommendation.smallest_change or "no single change would make it fit"
            return f"{self.name}: nothing fits; {change}", ("place",), ()
        columns = ("place", "device", "elapsed", "90 % interval", "walltime", "memory", "cost")
        return self.name, columns, rows


def _device_and_cost(estimate: Estimate) -> tuple[str, str]:
    cost = f"{estimate.cost.point:.4g} {estimate.currency}" if estimate.cost else "unknown"
    return tables.format_device(estimate.target.device, estimate.target.gpus), cost
