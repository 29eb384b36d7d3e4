"""``bench detectors``: the GPU memory of segmenters and detectors in training, published and predicted.

The tables of mmsegmentation 0.11, mmdetection 2.11 and detectron2 have the memory of some five hundred models.
According to the packages' pages (``docs/model_zoo.md`` of the first two, ``MODEL_ZOO.md`` and ``utils/events.py`` of
the third) it is the largest ``torch.cuda.max_memory_allocated()`` of 4 or 8 V100s over a training run, without
``cudnn.benchmark``. The loggers divide it by 2²⁰, and the tables once more by 1024. Training is distributed, in
float32, with momentum. The software is PyTorch 1.3 to 1.5 with CUDA 10.1 and cuDNN 7.6. ``batches.py`` has the batch
sizes, ``configurations.py`` the model of each row, ``trace.py`` the tracing, ``older_torch.py`` the differences
between releases of PyTorch.

The prediction is the trace of one step, with cuDNN's workspaces and the buckets of DistributedDataParallel; nothing is
fitted. The bound is learned for each package from the other families: the factor that 5 % of their rows exceed. Rows of
the same network on another data set or schedule are separate rows, as in the tables.

Left out and counted:
    - rows without a number, or in half precision
    - networks on points and videos, which use sparse ops
    - rows that match no configuration or several
    - models that cannot be traced (FreeAnchor selects anchors by their values)

The largest errors:
    - rows whose table and index disagree or were interchanged (RegNetX, EMANet)
    - LVIS, whose images have more objects than COCO's
    - crops of 640 with NAS-FPN and FPG
    - runs of one image a GPU (HTC)
    - detectron2's group norm, which may have been a later release's

Errors on these rows showed which differences between PyTorch releases matter, and pointed to Winograd's transforms and
to the objects of the largest image; no factor was fitted to them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.detectors.baselines import BOOSTING, WEIGHTS, baseline_peaks
from benchmarks.detectors.graphs import V100, DetectorGraph, PackedDetectors, packed_graphs
from benchmarks.detectors.published import PublishedPeak, published_peaks
from benchmarks.dnn.splits import Array
from benchmarks.memory.bound import bound_factors
from benchmarks.results import BenchmarkResult, BenchmarkRow, at_most
from leadline.core.errors import InvalidInput
from leadline.core.units import GIB
from leadline.core.workload import ModelKind, ModelSource, Optimizer, Precision, Workload
from leadline.estimators.memory.device import peak_memory
from leadline.estimators.memory.workspaces import add_scratch
from leadline.estimators.parallelism.divided_memory import divide_memory

MEDIAN, EXCEEDED = 10.0, 6.0
"""Targets in percent: median error of the point, and the share of rows above the bound."""
GPUS = {"mmseg": 4, "mmdet": 8, "detectron2": 8}
NAMES = {"mmseg": "mmsegmentation", "mmdet": "mmdetection", "detectron2": "detectron2"}
QUICK_EVERY = 4
Marks = npt.NDArray[np.bool_]
FEWEST = 19
"""The least number of rows with a quantile that 5 % exceed."""
NOTABLE = 0.05
"""A prediction counts as too low if it is lower by more than this share."""


@dataclass(frozen=True, slots=True)
class PeakPrediction:
    """One row and its prediction in bytes: ``point``, and ``tensors`` without workspaces and buckets."""

    row: PublishedPeak
    model: str
    graph: DetectorGraph
    point: float
    tensors: float


def run(*, quick: bool = False, data: Path | None = None) -> BenchmarkResult:
    """Predict every row, or one of four if ``quick``.

    Raises:
        InvalidInput: No folder was given, it lacks the table, or no row of the table was traced.
    """
    if data is None:
        raise InvalidInput("bench detectors needs measured data: give their folder with --data")
    packed = packed_graphs()
    rows, left_out = published_peaks(data)
    untraced = [row.key for row in rows if row.key not in packed.rows]
    left_out.update(packed.failed.get(key, "not in the table that was traced") for key in untraced)
    traced = [row for row in rows if row.key in packed.rows][:: QUICK_EVERY if quick else 1]
    if not traced:
        raise InvalidInput(f"{data} has none of the traced models: fetch the table again")
    predictions = list(map(peak_predictor(packed), traced))
    return BenchmarkResult("detectors", tuple(_rows(predictions, left_out)), details=tuple(_details(predictions)))


def peak_predictor(packed: PackedDetectors) -> Callable[[PublishedPeak], PeakPrediction]:
    """Return the function that predicts a row; rows of one graph are predicted once."""

    @cache
    def peaks(number: int, package: str) -> tuple[float, float]:
        graph = packed.graph(number)
        workload = Workload(
            ModelSource(ModelKind.FUNCTION, ""), precision=Precision.FP32, optimizer=Optimizer.MOMENTUM,
            gpus=GPUS[package],
        )  # fmt: skip
        whole = divide_memory(peak_memory(add_scratch(graph, V100)), workload, graph)
        return float(whole.allocated_bytes), float(peak_memory(graph).allocated_bytes)

    def predict(row: PublishedPeak) -> PeakPrediction:
        model, number = packed.rows[row.key]
        return PeakPrediction(row, model, packed.graphs[number], *peaks(number, row.package))

    return predict


def peak_bounds(predictions: Sequence[PeakPrediction]) -> Array:
    """Return the bound that 5 % exceed for each row: the point, times the factor of other families.

    The families are those of the same package, or of all packages where it has too few.

    Raises:
        InvalidInput: There are too few rows for such a factor.
    """
    return np.array([row.point * _factor(predictions, row.row.package, row.row.family) for row in predictions])


def _factor(predictions: Sequence[PeakPrediction], package: str, family: str) -> float:
    elsewhere = [row for row in predictions if row.row.family != family]
    same_package = [row for row in elsewhere if row.row.package == package]
    kept = same_package if len(same_package) >= FEWEST else elsewhere
    if len(kept) < FEWEST:
        raise InvalidInput(f"{len(kept)} rows of other families than {family} are too few: a bound needs {FEWEST}")
    return bound_factors([row.row.memory_bytes / row.point for row in kept], [row.row.family for row in kept])[1]


def _rows(predictions: list[PeakPrediction], left_out: Counter[str]) -> list[BenchmarkRow]:
    """Return the errors of all rows and of each package, those of other methods, and the rows left out."""
    memory, point, tensors = (
        np.array(values)
        for values in zip(*((peak.row.memory_bytes, peak.point, peak.tensors) for peak in predictions), strict=True)
    )
    above = peak_bounds(predictions)
    plain = baseline_peaks([peak.row for peak in predictions], [peak.graph for peak in predictions])
    n = len(predictions)
    models = len({peak.graph for peak in predictions})
    rows = [
        at_most("all: median error", _median(point, memory), MEDIAN, "%", n=n,
                baseline=_median(plain[BOOSTING], memory),
                how=f"{models} different steps; baseline: plain boosting, trained on all other families"),
        at_most("all: above the bound", _share(memory > above), EXCEEDED, "%", n=n,
                how="the bound that 5 % of the other families' rows exceed"),
        BenchmarkRow("all: MAPE", _mape(point, memory), "%", n=n, baseline=_mape(plain[BOOSTING], memory)),
        BenchmarkRow("all: 90th percentile of the error", float(np.percentile(_errors(point, memory), 90)), "%", n=n),
        BenchmarkRow(f"all: under-estimated by more than {NOTABLE:.0%}", _under(point, memory), "%", n=n,
                 baseline=_under(plain[WEIGHTS], memory), how="baseline: weights × constant"),
        BenchmarkRow("all: the bound over the point", 100 * float(np.median(above / point)) - 100, "%", n=n),
    ]  # fmt: skip
    for package, name in NAMES.items():
        mask = np.array([peak.row.package == package for peak in predictions])
        if mask.any():
            rows += [
                at_most(f"{name}: median error", _median(point[mask], memory[mask]), MEDIAN, "%", n=int(mask.sum()),
                        baseline=_median(plain[BOOSTING][mask], memory[mask])),
                BenchmarkRow(f"{name}: above the bound", _share(memory[mask] > above[mask]), "%", n=int(mask.sum()),
                         how="few families, whose rows have correlated errors"),
            ]  # fmt: skip
    rows.append(
        BenchmarkRow("without workspaces and buckets: median error", _median(tensors, memory), "%", n=n,
                 how="memory of tensors alone")
    )  # fmt: skip
    rows += [BenchmarkRow(f"{name}: median error", _median(values, memory), "%", n=n) for name, values in plain.items()]
    how = "; ".join(f"{count} × {reason}" for reason, count in left_out.most_common())
    return [*rows, BenchmarkRow("rows left out", float(left_out.total()), "", n=n + left_out.total(), how=how)]


def _details(predictions: list[PeakPrediction]) -> list[dict[str, object]]:
    return [
        {
            "model": peak.model, "family": peak.row.family, "package": peak.row.package, "images": peak.graph.images,
            "height": peak.graph.height, "width": peak.graph.width, "parameters": peak.graph.parameters,
            "measured_gib": peak.row.memory_bytes / GIB, "predicted_gib": peak.point / GIB,
            "bound_gib": float(bound) / GIB, "tensors_gib": peak.tensors / GIB,
        }
        for peak, bound in zip(predictions, peak_bounds(predictions), strict=True)
    ]  # fmt: skip


def _errors(predicted: Array, memory: Array) -> Array:
    errors: Array = 100 * np.abs(predicted - memory) / memory
    return errors


def _median(predicted: Array, memory: Array) -> float:
    return float(np.median(_errors(predicted, memory)))


def _mape(predicted: Array, memory: Array) -> float:
    return float(np.mean(_errors(predicted, memory)))


def _share(marks: Marks) -> float:
    return 100 * float(np.mean(marks))


def _under(predicted: Array, memory: Array) -> float:
    return _share(predicted < (1 - NOTABLE) * memory)
