"""Covariance of the log times of two whole training runs, as a sum of simple parts.

Each part is a product of shared names (same workload, same accelerator …), similar sizes, and a slope in one metric.
Its variance is fitted (Rasmussen and Williams 2006, section 4.2.4).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leadline.estimators.ports import Array

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WholeRun:
    """One training run to a target quality, as known before it starts.

    ``form`` is the device's form factor (``SXM``, ``PCIe``). ``when`` counts generations of software: benchmark rounds
    or releases, about half a year apart. ``peak_flops_per_s`` and ``memory_bytes_per_s`` are one device's vendor
    specifications. Unknown values are ``None`` or empty.
    """

    workload: str
    device: str
    devices: int
    nodes: int = 1
    batch: float | None = None
    when: float = 0.0
    form: str = ""
    system: str = ""
    site: str = ""
    host: str = ""
    peak_flops_per_s: float | None = None
    memory_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class CovariancePart:
    """One part of the covariance.

    ``same`` names texts that must be equal, ``near`` sizes that should be close, ``slope`` a metric it grows with.
    ``variance`` is its prior variance.
    """

    name: str
    variance: float
    same: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    slope: str = ""


# Size → the difference of its logarithm at which two runs are no longer alike.
LENGTHS = {"devices": 1.0, "per_node": 0.5, "batch_each": 0.7}

PARTS = (
    CovariancePart("workload", 9.0, ("workload",)),
    CovariancePart("workload, count", 0.3, ("workload",), slope="devices"),
    CovariancePart("workload, device", 0.3, ("workload", "device")),
    CovariancePart("device", 0.3, ("device",)),
    CovariancePart("device, form", 0.05, ("device", "form")),
    CovariancePart("speed", 1.0, slope="speed"),
    CovariancePart("workload, speed", 0.1, ("workload",), slope="speed"),
    CovariancePart("workload, balance", 0.05, ("workload",), slope="balance"),
    CovariancePart("workload, device, form", 0.03, ("workload", "device", "form")),
    CovariancePart("workload, device, count", 0.02, ("workload", "device"), ("devices",)),
    CovariancePart(
        "workload, device, form, sizes", 0.02, ("workload", "device", "form"), ("devices", "per_node", "batch_each")
    ),
    CovariancePart("workload, device, batch", 0.01, ("workload", "device"), ("devices", "batch_each")),
    CovariancePart("workload, recipe", 0.01, ("workload", "batch")),
    CovariancePart("workload, device, recipe", 0.01, ("workload", "device", "count", "batch")),
    CovariancePart("workload, device, form, recipe", 0.01, ("workload", "device", "form", "count", "batch")),
    CovariancePart("workload, system, recipe", 0.005, ("workload", "system", "count", "batch")),
    CovariancePart("workload, device, host, recipe", 0.003, ("workload", "device", "form", "host", "count", "batch")),
    CovariancePart("workload, device, host", 0.003, ("workload", "device", "form", "host")),
    CovariancePart("workload, system", 0.01, ("workload", "system"), ("devices",)),
    CovariancePart("system", 0.005, ("system",)),
)
# Software gets faster, ever more slowly, after a workload or a device first appears: a slope in ln(1 + age).
AGEING = (
    CovariancePart("age of workload", 0.01, slope="workload_age"),
    CovariancePart("age of device", 0.01, slope="device_age"),
    CovariancePart("workload, its age", 0.005, ("workload",), slope="workload_age"),
    CovariancePart("device, its age", 0.005, ("device",), slope="device_age"),
    CovariancePart("workload, device, age", 0.005, ("workload", "device"), slope="both_age"),
)
# Alternatively the speed wanders: the last value is the best forecast (a Wiener process).
WALKING = (CovariancePart("workload, walk", 0.003, ("workload",), slope="walk"),
           CovariancePart("workload, device, walk", 0.003, ("workload", "device"), slope="walk"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class FirstAppearances:
    """When each workload and device was first seen among the learned runs, in generations of software."""

    start: float
    workload: Mapping[str, float]
    device: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EncodedRuns:
    """n runs: codes of their texts (n,) by name, and their figures (n,) by name."""

    codes: Mapping[str, Codes]
    figures: Mapping[str, Array]

    def at(self, chosen: npt.NDArray[np.int64]) -> "EncodedRuns":
        """Return the runs at these positions."""
        return EncodedRuns(
            {name: column[chosen] for name, column in self.codes.items()},
            {name: column[chosen] for name, column in self.figures.items()},
        )


def find_first_appearances(runs: Sequence[WholeRun]) -> FirstAppearances:
    """Return when each workload and device first appears."""
    workload: dict[str, float] = {}
    device: dict[str, float] = {}
    for run in runs:
        workload[run.workload] = min(workload.get(run.workload, math.inf), run.when)
        device[run.device] = min(device.get(run.device, math.inf), run.when)
    return FirstAppearances(min(workload.values()), workload, device)


def encode_runs(runs: Sequence[WholeRun], ages: FirstAppearances, words: dict[str, dict[str, int]]) -> EncodedRuns:
    """Return the runs as codes and figures; ``words`` (name → text → code) grows by texts that are new."""
    batches = _typical_batches(runs)
    rows = [_texts(run) for run in runs]
    codes = {
        name: np.array([words.setdefault(name, {}).setdefault(row[name], len(words[name])) for row in rows], np.int64)
        for name in rows[0]
    }
    devices = np.log([run.devices for run in runs])
    batch = np.log([run.batch or batches.get(run.workload, 1.0) for run in runs])
    when = np.array([run.when for run in runs])
    by_workload = np.log1p(np.maximum(when - [ages.workload.get(run.workload, run.when) for run in runs], 0.0))
    by_device = np.log1p(np.maximum(when - [ages.device.get(run.device, run.when) for run in runs], 0.0))
    speed, balance = np.array([_speed(run) for run in runs]).T
    figures = {
        "devices": devices,
        "per_node": devices - np.log([max(run.nodes, 1) for run in runs]),
        "batch_each": batch - devices,
        "speed": speed,
        "balance": balance,
        "workload_age": by_workload,
        "device_age": by_device,
        "both_age": np.minimum(by_workload, by_device),
        "walk": np.maximum(when - ages.start, 0.0),
    }
    return EncodedRuns(codes, figures)


def covariance(part: CovariancePart, rows: EncodedRuns, columns: EncodedRuns) -> Array:
    """Return the covariance of a part of unit variance between n and m runs (n, m)."""
    shape = (len(rows.figures["devices"]), len(columns.figures["devices"]))
    product = np.ones(shape)
    for name in part.same:
        product *= rows.codes[name][:, None] == columns.codes[name]
    for name in part.near:
        away = rows.figures[name][:, None] - columns.figures[name]
        product *= np.exp(-0.5 * (away / LENGTHS[name]) ** 2)
    return product * _slope(part.slope, rows, columns)


def _slope(name: str, rows: EncodedRuns, columns: EncodedRuns) -> Array | float:
    if not name:
        return 1.0
    a, b = rows.figures[name], columns.figures[name]
    if name == "walk":
        return np.minimum(a[:, None], b)
    middle = 2.0 if name == "devices" else 0.0
    return (a - middle)[:, None] * (b - middle)


def _texts(run: WholeRun) -> dict[str, str]:
    return {
        "workload": run.workload, "device": run.device, "form": run.form, "system": run.system or f"of {run.site}",
        "host": run.host, "count": str(run.devices), "batch": f"{run.batch or 0:g}",
    }  # fmt: skip


def _speed(run: WholeRun) -> tuple[float, float]:
    """Return the log speed of a device over an A100 and its log bandwidth surplus; 0 if unknown."""
    if not (run.peak_flops_per_s and run.memory_bytes_per_s):
        return 0.0, 0.0
    peak, bandwidth = math.log(run.peak_flops_per_s / 312e12), math.log(run.memory_bytes_per_s / 2e12)
    return (peak + bandwidth) / 2, bandwidth - peak


def _typical_batches(runs: Sequence[WholeRun]) -> dict[str, float]:
    by_workload: dict[str, list[float]] = {}
    for run in runs:
        if run.batch:
            by_workload.setdefault(run.workload, []).append(run.batch)
    return {name: float(np.median(batches)) for name, batches in by_workload.items()}
