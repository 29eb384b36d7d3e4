"""Selection of an estimator by its errors on a group of steps: chosen on one half, tested on the other."""

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
"""Estimators trained on whole steps, which may include other steps of the same device."""
FEW = 20
"""A group with fewer steps is joined with its other phase, as it could not distinguish estimators."""
HALVES = 2


def splits(data: Path, *, quick: bool = False) -> list[SplitResult]:
    """Return one split for each group with several estimators."""
    lab = VisionLab(data)
    groups = measured_groups(data, fitted_on_all(data, share=20 if quick else 1), fitted_op_models(lab), lab)
    return [_split(group, groups) for group in groups if len(group.predicted) > 1 and len(group.measured) >= HALVES]


def records(groups: Sequence[MeasuredSteps]) -> tuple[AccuracyRecord, ...]:
    """Return every estimator's record on every group, and derived ones of the op model on new devices."""
    measured = [record for group in groups for record in _records(group, groups, np.ones(len(group.measured), bool))]
    unique = {(record.estimator, record.group, record.known): record for record in measured}
    return (*unique.values(), *_on_new_devices(unique))


def _on_new_devices(records: Mapping[tuple[str, StepGroup, bool], AccuracyRecord]) -> list[AccuracyRecord]:
    """Return records on new devices for a phase that was measured on one device only.

    The additional error of a new device is that of the other phase; the two errors are independent.
    """
    derived = []
    for (name, group, known), record in records.items():
        phase = replace(group, phase="inference" if group.phase == "training" else "training")
        new, same = records.get((name, phase, False)), records.get((name, phase, True))
        if known and (name, group, False) not in records and new and same:
            error, wide = (
                math.sqrt(getattr(record, key) ** 2 + max(getattr(new, key) ** 2 - getattr(same, key) ** 2, 0.0))
                for key in ("error", "within")
            )
            source = f"{record.source}; additional error of a new device from {phase.phase}"
            derived.append(replace(record, known=False, error=error, within=wide, source=source))
    return derived


def _split(group: MeasuredSteps, groups: Sequence[MeasuredSteps]) -> SplitResult:
    """Choose an estimator and its interval on each half of the models, and test them on the other half."""
    names, place = np.unique(group.configuration, return_inverse=True)
    half = np.random.default_rng(0).permutation(len(names))[place] % HALVES
    predicted, low, high = (np.empty(len(group.measured)) for _ in range(3))
    chosen = []
    for number in range(HALVES):
        test, learn = half == number, half != number
        knowing = FROM_STEPS if group.known else ()
        best = rank_estimators(_records(group, groups, learn), group.group, tuple(group.predicted), knowing)[0]
        chosen.append(best.estimator)
        predicted[test] = group.predicted[best.estimator][test]
        low[test], high[test] = predicted[test] * np.exp(-best.within), predicted[test] * np.exp(best.within)
    return SplitResult(
        TABLE, group.name, group.measured, {"chosen": predicted, **group.predicted}, low, high,
        np.full(len(predicted), ""),
        how=f"chosen by the other half of the models: {', then '.join(dict.fromkeys(chosen))}; {group.source}",
    )  # fmt: skip


def _records(group: MeasuredSteps, groups: Sequence[MeasuredSteps], rows: np.ndarray) -> list[AccuracyRecord]:
    """Return the records on ``rows`` of a group, joined with the other phase where they are few."""
    parts = [(group, rows)]
    if rows.sum() < FEW:
        parts += [
            (candidate, np.ones(len(candidate.measured), bool))
            for candidate in groups
            if candidate is not group and _but_phase(candidate) == _but_phase(group)
        ]
    records_of_group = []
    for name in group.predicted:
        with_name = [(part, mask) for part, mask in parts if name in part.predicted]
        logs = [np.log(part.measured / part.predicted[name])[mask] for part, mask in with_name]
        devices = [part.device[mask] for part, mask in with_name]
        log, device = np.concatenate(logs), np.concatenate(devices)
        if np.isnan(log).any():  # it refuses some, so that its errors are not those of the group
            continue
        weight = _each_device_alike(device)
        error, wide = float(weight @ np.abs(np.expm1(-log))), _quantile(np.abs(log), weight)
        names = tuple(np.unique(device).tolist())
        records_of_group.append(
            AccuracyRecord(
                name,
                group.group,
                group.known and name in FROM_STEPS,
                error,
                wide,
                steps=len(log),
                devices=names,
                vendors=_of_all(names, lambda device: device.vendor),
                architectures=_of_all(names, lambda device: device.architecture),
                source=group.source,
                swept=group.swept and name == SWEPT,
            )
        )
    return records_of_group


def _of_all(names: Sequence[str], attribute: Callable[[Device], str | None]) -> tuple[str, ...]:
    """Return the distinct values of an attribute of the devices."""
    values = (attribute(TomlCatalog().device(name)) for name in names)
    return tuple(sorted({value for value in values if value}))


def _but_phase(steps: MeasuredSteps) -> tuple[str, str, bool, bool]:
    return steps.group.domain, steps.group.precision, steps.known, steps.swept


def _each_device_alike(device: np.ndarray) -> Array:
    """Return weights that sum to 1, with the same total for every device."""
    _, place, count = np.unique(device, return_inverse=True, return_counts=True)
    weights: Array = 1 / (count[place] * len(count))
    return weights


def _quantile(values: Array, weight: Array) -> float:
    """Return the conformal quantile by weight, at (n + 1) ÷ n of the level, at most 1."""
    order = np.argsort(values)
    share = min(LEVEL * (1 + 1 / len(values)), 1.0)
    place = np.searchsorted(np.cumsum(weight[order]), share - 1e-12)
    return float(values[order][min(int(place), len(values) - 1)])
