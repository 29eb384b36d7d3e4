"""Answers of the Python API: typed nouns of the core that show themselves as tables."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from leadline.core.documents import to_document
from leadline.core.estimate import Estimate
from leadline.core.fit import FitReport
from leadline.core.recommendation import Option, Recommendation
from leadline.core.runs import Value
from leadline.core.units import format_bytes, format_clock
from leadline.interfaces.cells import format_device, format_place, format_range, format_size, format_time
from leadline.interfaces.documents import fit_document
from leadline.interfaces.python.tables import TableView

T = TypeVar("T")


class Answers(TableView, Generic[T]):
    """A sequence of answers, one for each place."""

    __slots__ = ()

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
        return min(self.estimates, key=_time_s)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document that ``leadline estimate --json`` prints."""
        return self.document

    def _answers(self) -> Sequence[Estimate]:
        return self.estimates

    def _table(self) -> tuple[str, Sequence[str], Sequence[Sequence[str]]]:
        columns = ["place", "device", "step", "elapsed", "90 % interval", "GPU memory", "host memory", "cost"]
        rows = [
            [
                format_place(estimate.target.system, estimate.target.partition),
                format_device(estimate.target.device, estimate.target.gpus),
                format_time(estimate.step_s),
                format_time(estimate.elapsed_s),
                format_range(estimate.elapsed_s),
                format_size(estimate.gpu_memory_bytes),
                format_size(estimate.host_memory_bytes),
                f"{estimate.cost.point:.4g} {estimate.currency}" if estimate.cost else "unknown",
            ]
            for estimate in self.estimates
        ]
        varying = [name for name in (self.parameters[0] if self.parameters else ()) if self._varies(name)]
        for row, values in zip(rows, self.parameters, strict=bool(self.parameters)):
            row[2:2] = [str(values[name]) for name in varying]
        columns[2:2] = varying
        return self.name, columns, rows

    def _varies(self, name: str) -> bool:
        return len({values[name] for values in self.parameters}) > 1


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

    def _table(self) -> tuple[str, Sequence[str], Sequence[Sequence[str]]]:
        verdicts = {True: "fits", False: "does not fit", None: "unknown"}
        rows = [
            [
                report.place,
                verdicts[report.fits],
                "; ".join(check.summary for check in report.checks),
                "" if report.largest_batch is None else str(report.largest_batch),
            ]
            for report in self.reports
        ]
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

    def _table(self) -> tuple[str, Sequence[str], Sequence[Sequence[str]]]:
        rows = []
        for option in self.recommendation.options:
            estimate, request = option.estimate, option.resources
            rows.append(
                [
                    format_place(option.system, option.partition),
                    format_device(estimate.target.device, estimate.target.gpus),
                    format_time(estimate.elapsed_s),
                    format_range(estimate.elapsed_s),
                    format_clock(request.walltime_s) if request.walltime_s else "",
                    format_bytes(request.memory_bytes_per_node) if request.memory_bytes_per_node else "",
                    f"{estimate.cost.point:.4g} {estimate.currency}" if estimate.cost else "unknown",
                ]
            )
        if not rows:
            change = self.recommendation.smallest_change or "no single change would make it fit"
            return f"{self.name}: nothing fits; {change}", ("place",), ()
        columns = ("place", "device", "elapsed", "90 % interval", "walltime", "memory", "cost")
        return self.name, columns, rows


def _time_s(estimate: Estimate) -> float:
    interval = estimate.elapsed_s or estimate.step_s
    return interval.point if interval else float("inf")
