"""``bench scale``: training steps on many GPUs, on sources and generations that the fit has not seen."""

import gc
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.results import BenchmarkResult, BenchmarkRow, at_most, within
from benchmarks.scale.bridge_rows import CONFIGURATIONS
from benchmarks.scale.collectives import collective_results
from benchmarks.scale.fit import fit_step_model
from benchmarks.scale.hosts import own_host_rows, sweep_host_rows
from benchmarks.scale.own_steps import own_rows
from benchmarks.scale.power import power_rows
from benchmarks.scale.published import published_rows
from benchmarks.scale.rows import PER_NODE, SLOWEST_SWEPT_MFU, SWEEP, ScaleRow, scale_rows
from benchmarks.scale.serving import serving_rows
from benchmarks.scale.serving_memory import memory_rows
from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import estimate
from leadline.core.errors import InvalidInput
from leadline.core.workload import ModelKind, ModelSource, Precision, Workload
from leadline.estimators.parallelism.product_times import PARAMETERS, ProductCurves
from leadline.estimators.parallelism.step_parts import NAMES, step_seconds
from leadline.estimators.parallelism.training_step import NARROW, StepTable
from leadline.estimators.ports import Array
from leadline.training.decoder_steps import DecoderStepModel, shipped_step_model

Mask = npt.NDArray[np.bool_]
Progress = Callable[[int, int], None]

MANY = "16 to 1,024 GPUs, bf16"
LIMITS: Mapping[str, tuple[Callable[[Array], np.floating], float]] = {
    "one node, bf16": (np.mean, 8.0), MANY: (np.median, 12.0), "8 bits or fewer": (np.median, 15.0),
    "experts": (np.median, 20.0),
}  # fmt: skip
"""How the errors of each group are summed up, and their target in percent."""
COUNTED = 8
"""Fewest configurations of a group with a target for its coverage."""


def run(*, quick: bool = False, data: Path | None = None, progress: Progress = lambda *_: None) -> BenchmarkResult:
    """Fit and test on the measured data in the folder ``data``.

    ``quick`` leaves every second source in, and collectives, power limits and inference out.

    Raises:
        InvalidInput: No folder was given, or it lacks a table.
    """
    if data is None:
        raise InvalidInput("bench scale needs measured data: give their folder with --data")
    every = scale_rows(data)
    slow = [row for row in every if _is_slow(row)]
    rows = [row for row in every if not _is_slow(row)]
    sources = [row.source for row in rows]
    left = sorted(set(sources))[:: 2 if quick else 1]
    predictions, adapted = _Predictions(len(rows)), list[BenchmarkRow]()
    for number, source in enumerate(left):
        progress(number, len(left))
        model = predictions.leave_out(rows, np.array([name == source for name in sources]))
        if source == SWEEP:
            adapted = sweep_host_rows(rows, model)
    by_generation = _Predictions(len(rows))
    generations = np.array([row.step.device.architecture or "" for row in rows])
    for generation in np.unique(generations):
        by_generation.leave_out(rows, generations == generation)
    slowed = _Predictions(len(slow))
    model = fit_step_model(rows, shipped_step_model().curves)
    slowed.add(np.arange(len(slow)), model.predict([row.step for row in slow]))
    answers = [
        *_source_rows(rows, predictions, left),
        *_generation_rows(rows, by_generation, generations),
        *_slow_rows(slow, slowed),
        *([] if quick else [*collective_results(data), *power_rows(data), *serving_rows(data), *memory_rows(data)]),
        *published_rows(),
        *own_rows(),
        *([] if quick else own_host_rows()),
        *adapted,
        _layout_row(),
    ]
    return BenchmarkResult("scale", tuple(answers))


def _is_slow(row: ScaleRow) -> bool:
    return row.source == SWEEP and row.mfu < SLOWEST_SWEPT_MFU


class _Predictions:
    """Predictions of n rows with intervals, and those of two baselines; NaN where a row was not left out."""

    def __init__(self, count: int) -> None:
        self.point, self.low, self.high, self.roofline, self.nearest = np.full((5, count), np.nan)

    def leave_out(self, rows: Sequence[ScaleRow], held_out: Mask) -> DecoderStepModel:
        """Predict rows by a model, and by baselines, that were fitted on the others; return the model."""
        known, asked = ([rows[i] for i in np.flatnonzero(mask).tolist()] for mask in (~held_out, held_out))
        model = fit_step_model(known, shipped_step_model().curves)
        self.add(np.flatnonzero(held_out), model.predict([row.step for row in asked]))
        bounds, measured = bound_seconds(known), np.array([row.elapsed_s for row in known])
        self.roofline[held_out] = bound_seconds(asked) * np.median(measured / bounds)
        self.nearest[held_out] = nearest_utilization_seconds(known, asked)
        return model

    def add(self, places: npt.NDArray[np.int64], answer: tuple[Array, Array, Array]) -> None:
        """Keep the points and ends of some rows."""
        self.point[places], self.low[places], self.high[places] = answer


# A roofline: products at the peak, one pass for each fused op, links at their rate, nothing else.
_AT_PEAK = {name: 1.0 if name.startswith("tile") else 1e-9 for name in PARAMETERS} | {"memory": 1.0, "overlap": 30.0}
_PEAK_CURVES = ProductCurves((), np.log([list(_AT_PEAK.values())]))
_BOUNDS = {
    "products": 1.0, "products_narrow": 1.0, "grouped": 1.0,
    "stream": 12.0, "inner": 4.0, "eager": 1.0, "head": 1.0, "flash1": 1.0, "flash2": 1.0, "flash3": 1.0, "link": 1.0,
    "network": 1.0, "optimizer_bytes": 20.0, "written": 4.0, "imbalance": 1.0, "tensor_overlapped": 1.0,
    "data_exposed": 1.0, "data_overlapped": 0.1, "send_overlapped": 1.0, "uneven": 1.0,
}  # fmt: skip


def bound_seconds(rows: Sequence[ScaleRow]) -> Array:
    """Return the bound of each row (n,), as analytical models like Calculon have it."""
    theta = np.log([_BOUNDS.get(name, 1e-9) for name in NAMES])
    return step_seconds(theta, StepTable([row.step for row in rows], _PEAK_CURVES))


def nearest_utilization_seconds(known: Sequence[ScaleRow], asked: Sequence[ScaleRow]) -> Array:
    """Return the seconds (n,) by the FLOPs utilization of the most similar known run."""
    learned, wanted = _features(known), _features(asked)
    scale = np.maximum(learned.std(axis=0), 1e-9)
    distance = ((wanted[:, None, :] - learned[None, :, :]) / scale) ** 2
    mfu = np.array([row.mfu for row in known])[distance.sum(axis=2).argmin(axis=1)]
    return np.array([
        row.flops / (share / 100 * row.step.device.peak_flops_per_s["bfloat16"] * row.step.gpus)
        for row, share in zip(asked, mfu, strict=True)
    ])  # fmt: skip


def _features(rows: Sequence[ScaleRow]) -> Array:
    return np.array([
        [np.log(row.step.work.parameters), np.log(row.step.work.sequence), np.log(row.step.work.tokens),
         np.log(row.step.gpus), np.log(row.step.plan.tensor), np.log(row.step.plan.pipeline),
         np.log(row.step.microbatches), row.step.dtype in NARROW, row.step.device.architecture == "Ampere"]
        for row in rows
    ], float)  # fmt: skip


def _groups(rows: Sequence[ScaleRow]) -> dict[str, Mask]:
    """Return the rows of each group that has a target."""
    gpus = np.array([row.step.gpus for row in rows])
    narrow = np.array([row.step.dtype in NARROW for row in rows])
    experts = np.array([row.step.work.expert_weights > 0 for row in rows])
    one, half = gpus <= PER_NODE, ~narrow & ~experts
    return {"one node, bf16": one & half, MANY: ~one & half, "8 bits or fewer": narrow & ~experts, "experts": experts}


def _percent_errors(rows: Sequence[ScaleRow], predicted: Array) -> Array:
    measured = np.array([row.elapsed_s for row in rows])
    return np.asarray(100 * np.abs(predicted / measured - 1))


def _source_rows(rows: Sequence[ScaleRow], found: _Predictions, left: Sequence[str]) -> list[BenchmarkRow]:
    """Return the errors and the coverage of each group, each source left out whole."""
    sources = np.array([row.source for row in rows])
    errors = _percent_errors(rows, found.point)
    answers = []
    for name, members in _groups(rows).items():
        mask = members & np.isin(sources, left)
        others = {
            "a roofline with one constant": _percent_errors(rows, found.roofline)[mask],
            "the utilization of the nearest run": _percent_errors(rows, found.nearest)[mask],
        }
        if not mask.any():
            continue
        statistic, limit = LIMITS[name]
        word = "MAPE" if statistic is np.mean else "median error"
        best = min(others, key=lambda method: float(statistic(others[method])))
        how = "; ".join(f"{method} {statistic(values):.1f} %" for method, values in others.items())
        answers.append(
            at_most(f"step time, {name}: {word}, source left out", float(statistic(errors[mask])), limit, "%",
                    n=int(mask.sum()), baseline=float(statistic(others[best])), how=how)
        )  # fmt: skip
        answers.append(_coverage(f"step time, {name}", rows, found, mask))
        for source in left:
            part = mask & (sources == source)
            if part.any() and name == MANY:
                answers.append(
                    at_most(f"step time, {name}: median error, {source}", float(np.median(errors[part])), 20.0, "%",
                            n=int(part.sum()))
                )  # fmt: skip
    return answers


def _coverage(name: str, rows: Sequence[ScaleRow], found: _Predictions, mask: Mask) -> BenchmarkRow:
    measured = np.array([row.elapsed_s for row in rows])
    inside = (found.low <= measured) & (measured <= found.high)
    width = float(np.median((found.high / found.low)[mask]))
    share, count = 100 * float(np.mean(inside[mask])), int(mask.sum())
    title, how = f"{name}: 90 % intervals that hold", f"median width {width:.2f}"
    if count < COUNTED:
        return BenchmarkRow(title, share, "%", n=count, how=how)
    return within(title, share, (85.0, 95.0), "%", n=count, how=how)


def _generation_rows(rows: Sequence[ScaleRow], found: _Predictions, generations: Array) -> list[BenchmarkRow]:
    answers = []
    for generation in np.unique(generations).tolist():
        mask = generations == generation
        error = float(np.median(_percent_errors(rows, found.point)[mask]))
        name = f"step time, {generation} from the other generations"
        answers.append(BenchmarkRow(f"{name}: median error", error, "%", n=int(mask.sum())))
        answers.append(_coverage(name, rows, found, mask))
    return answers


def _slow_rows(rows: Sequence[ScaleRow], found: _Predictions) -> list[BenchmarkRow]:
    """Return what the model makes of the sweep's runs that took no part in the fit."""
    if not rows:
        return []
    ratio = float(np.median([row.elapsed_s for row in rows] / found.point))
    pipelines = sum(row.step.plan.pipeline > 1 for row in rows)
    name = f"{SWEEP}'s runs below {SLOWEST_SWEPT_MFU:g} % of the peak: measured ÷ predicted, median"
    return [BenchmarkRow(name, ratio, "ratio", n=len(rows), how=f"{pipelines} have pipelines; no part of the fit")]


def _layout_row() -> BenchmarkRow:
    """Return the time of the search for a layout of a 70B model on 1,024 GPUs."""
    tools = toolbox()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(CONFIGURATIONS["LLAMA3_70B"]), encoding="utf-8")
        workload = Workload(
            ModelSource(ModelKind.HF_CONFIG, str(path)), sequence=8192, precision=Precision.BF16, gpus=1024,
            automatic_layout=True, global_batch=2048,
        )  # fmt: skip
        # A user's process does not hold the rows of this benchmark, which each garbage collection would scan.
        gc.collect()
        gc.freeze()
        began = time.perf_counter()
        answer = estimate(workload, tools, on=["H100 SXM5 80GB"])
        took = time.perf_counter() - began
        gc.unfreeze()
    return at_most("the fastest layout of a 70B model on 1,024 GPUs", took, 2.0, "s",
                   how=answer.estimates[0].basis.reasons[0])  # fmt: skip
