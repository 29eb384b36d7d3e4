"""The choice of an estimator by its errors on steps of one group: made on half of them, asked about the rest."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.dnn.fit_kernels import fitted_on_all, fitted_op_models
from benchmarks.dnn.measured_steps import OP_MODEL, SWEPT, MeasuredSteps, measured_groups
from benchmarks.dnn.splits import LEVEL, Array, SplitResult
from benchmarks.dnn.vision_lab import VisionLab
from leadline.catalog.read import TomlCatalog
from leadline.core.hardware import Device
from leadline.estimators.step_time.selection import AccuracyRecord, StepGroup, rank_estimators
from leadline.estimators.step_time.step_kernels import BlackBoxKernels

TABLE = "selection"
FROM_STEPS = (OP_MODEL, BlackBoxKernels.name)
"""Those that learned from whole steps: they may have seen others of the same device."""
FEW = 20
"""Fewer steps than this are joined by those of the other phase, as they could not tell estimators apart."""
HALVES = 2


def splits(data: Path, *, quick: bool = False) -> list[SplitResult]:
    """Return one split for each group of which several estimators were asked."""
    lab = VisionLab(data)
    groups = measured_groups(data, fitted_on_all(data, share=20 if quick else 1), fitted_op_models(lab), lab)
    return [_asked(one, groups) for one in groups if len(one.said) > 1 and len(one.measured) >= HALVES]


def records(groups: Sequence[MeasuredSteps]) -> tuple[AccuracyRecord, ...]:
    """Return what was found of every estimator on every group, and what follows for the law where nothing was."""
    found = [record for one in groups for record in _records(one, groups, np.ones(len(one.measured), bool))]
    once = {(one.estimator, one.group, one.known): one for one in found}
    return (*once.values(), *_elsewhere(once))


def _elsewhere(once: Mapping[tuple[str, StepGroup, bool], AccuracyRecord]) -> list[AccuracyRecord]:
    """Return the records of the law on new devices for a phase that was measured on one device only.

    What a new device adds to the error is taken from the other phase; the two are independent.
    """
    found = []
    for (name, group, known), own in once.items():
        other = replace(group, phase="inference" if group.phase == "training" else "training")
        there, here = once.get((name, other, False)), once.get((name, other, True))
        if known and (name, group, False) not in once and there and here:
            error, wide = (
                math.sqrt(getattr(own, what) ** 2 + max(getattr(there, what) ** 2 - getattr(here, what) ** 2, 0.0))
                for what in ("error", "within")
            )
            source = f"{own.source}; what a new device adds was found in {other.phase}"
            found.append(replace(own, known=False, error=error, within=wide, source=source))
    return found


def _asked(one: MeasuredSteps, groups: Sequence[MeasuredSteps]) -> SplitResult:
    """Choose by the models of one half what answers for the other, with the interval that half asks for."""
    names, place = np.unique(one.configuration, return_inverse=True)
    half = np.random.default_rng(0).permutation(len(names))[place] % HALVES
    said, low, high = (np.empty(len(one.measured)) for _ in range(3))
    chosen = []
    for number in range(HALVES):
        own, rest = half == number, half != number
        knowing = FROM_STEPS if one.known else ()
        best = rank_estimators(_records(one, groups, rest), one.group, tuple(one.said), knowing)[0]
        chosen.append(best.estimator)
        said[own] = one.said[best.estimator][own]
        low[own], high[own] = said[own] * np.exp(-best.within), said[own] * np.exp(best.within)
    return SplitResult(
        TABLE, one.name, one.measured, {"chosen": said, **one.said}, low, high, np.full(len(said), ""),
        how=f"chosen by the other half of the models: {', then '.join(dict.fromkeys(chosen))}; {one.source}",
    )  # fmt: skip


def _records(one: MeasuredSteps, groups: Sequence[MeasuredSteps], rows: np.ndarray) -> list[AccuracyRecord]:
    """Return what was found on ``rows`` of a group; with the other phase where they are few."""
    parts = [(one, rows)]
    if rows.sum() < FEW:
        parts += [
            (other, np.ones(len(other.measured), bool))
            for other in groups
            if other is not one and _but_phase(other) == _but_phase(one)
        ]
    found = []
    for name in one.said:
        logs = [np.log(part.measured / part.said[name])[own] for part, own in parts if name in part.said]
        devices = [part.device[own] for part, own in parts if name in part.said]
        log, device = np.concatenate(logs), np.concatenate(devices)
        if np.isnan(log).any():  # it refuses some, so that its errors are not those of the group
            continue
        weight = _each_device_alike(device)
        error, wide = float(weight @ np.abs(np.expm1(-log))), _quantile(np.abs(log), weight)
        names = tuple(np.unique(device).tolist())
        found.append(
            AccuracyRecord(
                name,
                one.group,
                one.known and name in FROM_STEPS,
                error,
                wide,
                steps=len(log),
                devices=names,
                vendors=_of_all(names, lambda device: device.vendor),
                architectures=_of_all(names, lambda device: device.architecture),
                source=one.source,
                swept=one.swept and name == SWEPT,
            )
        )
    return found


def _of_all(names: Sequence[str], figure: Callable[[Device], str | None]) -> tuple[str, ...]:
    """Return what the catalog says of the devices, each once."""
    found = (figure(TomlCatalog().device(name)) for name in names)
    return tuple(sorted({one for one in found if one}))


def _but_phase(one: MeasuredSteps) -> tuple[str, str, bool, bool]:
    return one.group.domain, one.group.precision, one.known, one.swept


def _each_device_alike(device: np.ndarray) -> Array:
    """Return weights that sum to 1, of which every device has as much."""
    _, place, count = np.unique(device, return_inverse=True, return_counts=True)
    found: Array = 1 / (count[place] * len(count))
    return found


def _quantile(values: Array, weight: Array) -> float:
    """Return what the conformal share of the weight stays below: (n + 1) ÷ n of the level, at most all of it."""
    order = np.argsort(values)
    share = min(LEVEL * (1 + 1 / len(values)), 1.0)
    place = np.searchsorted(np.cumsum(weight[order]), share - 1e-12)
    return float(values[order][min(int(place), len(values) - 1)])
