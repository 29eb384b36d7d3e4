"""Vision models' steps as a table: hardware figures, hyperparameters, input, and figures of the model by hand."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from leadline.bench.dnn.vision_data import VisionSteps
from leadline.core.hardware import Device
from leadline.core.runs import Scale
from leadline.core.samples import Sample, Value
from leadline.estimators.learned.op_table import CLASSES

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


def samples(steps: VisionSteps, devices: dict[str, Device], extra: dict[str, Array] | None = None) -> list[Sample]:
    """Return each row as a sample: no name of a model among its features, but what it is made of.

    ``extra`` are further features of shape (m,), such as what a white box says.
    """
    table = steps.table
    per_class = _per_class(steps)
    moved, flops = table.summed(table.bytes * table.count), table.summed(table.flops * table.count)
    launches = table.launches
    found = []
    for row in range(len(steps.step_s)):
        graph, device = steps.graph[row], devices[str(steps.device[row])]
        phase, layout, release = str(steps.setting[row]).split()
        features: dict[str, Value] = {
            "phase": phase,
            "layout": layout,
            "release": release,
            "batch": float(steps.columns["batch_size"][row]),
            "image": float(steps.columns["img_size"][row]),
            "parameters": float(steps.columns["param_count"][row] * 1e6),
            "flops": float(flops[graph]),
            "bytes_moved": float(moved[graph]),
            "launches": float(launches[graph]),
            "peak_flops_per_s": device.peak_flops_per_s["float16"],
            "memory_bytes_per_s": float(device.memory_bytes_per_s or 0.0),
        }
        features |= {f"bytes_{CLASSES[one]}": float(size) for one, size in per_class[graph]}
        features |= {name: float(values[row]) for name, values in (extra or {}).items()}
        found.append(Sample(features, float(steps.step_s[row]), Scale.FULL_SCALE))
    return found


def _per_class(steps: VisionSteps) -> list[list[tuple[int, float]]]:
    """Return the bytes that each class of kernel moves, for each graph."""
    table = steps.table
    cell = table.owner * len(CLASSES) + table.classes
    total = np.bincount(cell, table.bytes * table.count, table.graphs * len(CLASSES)).reshape(table.graphs, -1)
    return [[(int(one), row[one]) for one in np.flatnonzero(row)] for row in total]


def features_of(found: Sequence[Sample]) -> list[dict[str, Value]]:
    """Return the features alone, as they are asked about."""
    return [one.features for one in found]
