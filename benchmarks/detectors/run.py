"""``leadline bench detectors``: the GPU memory of segmenters and detectors in training, told and measured.

The tables of mmsegmentation 0.11, mmdetection 2.11 and detectron2 tell it for some five hundred models. By the
packages' pages (``docs/model_zoo.md`` of the first two, ``MODEL_ZOO.md`` and ``utils/events.py`` of the third) it is
the most that ``torch.cuda.max_memory_allocated()`` said on any of 4 or 8 V100s over a training, without
``cudnn.benchmark``; the loggers divide it by 2²⁰, and the tables once more by 1024. Training is distributed, in
float32, by stochastic gradient descent with momentum. The software is PyTorch 1.3 to 1.5 with CUDA 10.1 and cuDNN
7.6. How large a batch is: ``batches.py``; which model a row is: ``configurations.py``; how it is traced:
``trace.py``; what differs between releases of PyTorch: ``older_torch.py``.

What is told is the trace of one step, with cuDNN's workspaces and the buckets of DistributedDataParallel; nothing is
fitted. What more may be needed is learned by package from the other families: the factor that 5 % of their rows
exceed. Rows of the same network on another data set or schedule are rows of their own, as in the tables.

Left out, and counted: rows without a figure, networks on points and videos (sparse ops), rows that no configuration or
several could be, half precision, and models that cannot be traced (FreeAnchor selects anchors by their values).

What is worst off: rows whose table and index disagree or were interchanged (RegNetX, EMANet), LVIS, whose images have
more objects than COCO's fullest, crops of 640 with NAS-FPN and FPG, runs of one image a GPU (HTC), and detectron2's
group norm, which may have been a later release's. Which differences between releases to look for in PyTorch's
sources, Winograd's transforms and the objects of the fullest image were found from errors on these rows; none of them
has a factor that was fitted.
"""

import platform
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
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
from leadline.estimators.parallelism.division import divide_memory

MEDIAN, BEYOND = 10.0, 6.0
"""Targets in percent: median error of the point, and the share of rows above the bound."""
GPUS = {"mmseg": 4, "mmdet": 8, "detectron2": 8}
NAMES = {"mmseg": "mmsegmentation", "mmdet": "mmdetection", "detectron2": "detectron2"}
QUICK_EVERY = 4
Marks = npt.NDArray[np.bool_]
FEWEST = 19
"""Rows without which nothing is known of what 5 % exceed."""
NOTABLE = 0.05
"""An under-estimate is one by more than this share."""


@dataclass(frozen=True, slots=True)
class PeakPrediction:
    """One row beside its prediction in bytes: ``point``, and without workspaces and buckets (``tensors``)."""

    row: PublishedPeak
    model: str
    graph: DetectorGraph
    point: float
    tensors: float


def run(*, quick: bool = False, data: Path | None = None) -> BenchmarkResult:
    """Predict every row, or one of four if ``quick``.

    Raises:
        InvalidInput: no folder was given, it lacks the table, or none of the table's rows is known.
    """
    if data is None:
        raise InvalidInput("bench detectors needs measured data: give their folder with --data")
    packed = packed_graphs()
    rows, others = published_peaks(data)
    unknown = [row.key for row in rows if row.key not in packed.rows]
    others.update(packed.failed.get(key, "not in the table that was traced") for key in unknown)
    known = [row for row in rows if row.key in packed.rows][:: QUICK_EVERY if quick else 1]
    if not known:
        raise InvalidInput(f"{data} tells of none of the models that were traced: fetch the table again")
    told = list(map(peak_predictor(packed), known))
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return BenchmarkResult(
        "detectors", tuple(_rows(told, others)), date, {"system": platform.platform()}, tuple(_details(told))
    )


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

    def told(row: PublishedPeak) -> PeakPrediction:
        model, number = packed.rows[row.key]
        return PeakPrediction(row, model, packed.graphs[number], *peaks(number, row.package))

    return told


def peak_bounds(told: Sequence[PeakPrediction]) -> Array:
    """Return for each row what 5 % exceed: the point, times the factor of other families.

    They are those of the same package, or of all where it has too few.

    Raises:
        InvalidInput: there are too few rows for such a factor.
    """
    found = np.zeros(len(told))
    for place, one in enumerate(told):
        found[place] = one.point * _factor(told, one.row.package, one.row.family)
    return found


def _factor(told: Sequence[PeakPrediction], package: str, family: str) -> float:
    others = [one for one in told if one.row.family != family]
    alike = [one for one in others if one.row.package == package]
    kept = alike if len(alike) >= FEWEST else others
    if len(kept) < FEWEST:
        raise InvalidInput(f"{len(kept)} rows of other families than {family} are too few: a bound needs {FEWEST}")
    return bound_factors([one.row.memory_bytes / one.point for one in kept], [one.row.family for one in kept])[1]


def _rows(told: list[PeakPrediction], others: Counter[str]) -> list[BenchmarkRow]:
    """Return the errors of all rows and of either package, those of other methods, and what was left out."""
    memory, point, tensors = (
        np.array(values)
        for values in zip(*((one.row.memory_bytes, one.point, one.tensors) for one in told), strict=True)
    )
    above = peak_bounds(told)
    plain = baseline_peaks([one.row for one in told], [one.graph for one in told])
    n = len(told)
    models = len({one.graph for one in told})
    rows = [
        at_most("all: median error", _median(point, memory), MEDIAN, "%", n=n,
                baseline=_median(plain[BOOSTING], memory),
                how=f"{models} different steps; beside it plain boosting on the table, told of all other families"),
        at_most("all: beyond the bound", _share(memory > above), BEYOND, "%", n=n,
                how="the bound: what 5 % of the other families' rows exceed"),
        BenchmarkRow("all: MAPE", _mape(point, memory), "%", n=n, baseline=_mape(plain[BOOSTING], memory)),
        BenchmarkRow("all: 90th percentile of the error", float(np.percentile(_errors(point, memory), 90)), "%", n=n),
        BenchmarkRow(f"all: under-estimated by more than {NOTABLE:.0%}", _under(point, memory), "%", n=n,
                 baseline=_under(plain[WEIGHTS], memory), how="beside it weights × constant"),
        BenchmarkRow("all: the bound over the point", 100 * float(np.median(above / point)) - 100, "%", n=n),
    ]  # fmt: skip
    for package, name in NAMES.items():
        own = np.array([one.row.package == package for one in told])
        if own.any():
            rows += [
                at_most(f"{name}: median error", _median(point[own], memory[own]), MEDIAN, "%", n=int(own.sum()),
                        baseline=_median(plain[BOOSTING][own], memory[own])),
                BenchmarkRow(f"{name}: beyond the bound", _share(memory[own] > above[own]), "%", n=int(own.sum()),
                         how="of few families, which go wrong together"),
            ]  # fmt: skip
    rows.append(
        BenchmarkRow("without workspaces and buckets: median error", _median(tensors, memory), "%", n=n,
                 how="what tensors alone hold")
    )  # fmt: skip
    rows += [BenchmarkRow(f"{name}: median error", _median(values, memory), "%", n=n) for name, values in plain.items()]
    how = "; ".join(f"{count} × {why}" for why, count in others.most_common())
    return [*rows, BenchmarkRow("rows left out", float(others.total()), "", n=n + others.total(), how=how)]


def _details(told: list[PeakPrediction]) -> list[dict[str, object]]:
    return [
        {
            "model": one.model, "family": one.row.family, "package": one.row.package, "images": one.graph.images,
            "height": one.graph.height, "width": one.graph.width, "parameters": one.graph.parameters,
            "measured_gib": one.row.memory_bytes / GIB, "predicted_gib": one.point / GIB,
            "bound_gib": float(bound) / GIB, "tensors_gib": one.tensors / GIB,
        }
        for one, bound in zip(told, peak_bounds(told), strict=True)
    ]  # fmt: skip


def _errors(said_bytes: Array, memory: Array) -> Array:
    found: Array = 100 * np.abs(said_bytes - memory) / memory
    return found


def _median(said_bytes: Array, memory: Array) -> float:
    return float(np.median(_errors(said_bytes, memory)))


def _mape(said_bytes: Array, memory: Array) -> float:
    return float(np.mean(_errors(said_bytes, memory)))


def _share(marks: Marks) -> float:
    return 100 * float(np.mean(marks))


def _under(said_bytes: Array, memory: Array) -> float:
    return _share(said_bytes < (1 - NOTABLE) * memory)
