"""Steps as a table for the black box: hardware figures, the setting, and figures of the model, but not its name."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput
from leadline.core.hardware import Device
from leadline.core.samples import Value
from leadline.estimators.learned.law_kernels import StepSetting
from leadline.estimators.learned.op_table import CLASSES, OpTable

Array = npt.NDArray[np.float64]

DTYPE = "float16"
"""The precision whose peak stands in the table: the steps that were learned from are in half precision."""
LAUNCH_S = 5e-6
"""Order of what one kernel costs at the least, which makes the ideal step of small kernels a sensible unit."""


def features(table: OpTable, rows: Sequence[tuple[int, Device, StepSetting]]) -> tuple[list[dict[str, Value]], Array]:
    """Return the features of m steps, and their ideal seconds (m,): the unit in which their times are learned.

    A row is the number of a graph in ``table``, the device, and the setting. Sizes stand as seconds on the device where
    that has a meaning, so that what was learned on one GPU says something about another.

    Raises:
        InvalidInput: a device lacks the peak or the bandwidth.
    """
    flops, launches = table.summed(table.flops * table.count), table.launches
    per_class = _per_class(table)
    moved = per_class.sum(axis=1)
    found: list[dict[str, Value]] = []
    ideal_s = np.empty(len(rows))
    for place, (graph, device, setting) in enumerate(rows):
        peak, bandwidth = device.peak_flops_per_s.get(DTYPE), device.memory_bytes_per_s
        if not peak or not bandwidth:
            raise InvalidInput(
                f"the catalog lacks {device.name}'s {DTYPE} peak or its bandwidth, which the black box reads: add them"
            )
        compute_s, memory_s, host_s = flops[graph] / peak, moved[graph] / bandwidth, launches[graph] * LAUNCH_S
        ideal_s[place] = compute_s + memory_s + host_s
        features: dict[str, Value] = {
            "phase": "training" if setting.training else "inference",
            "layout": "nhwc" if setting.channels_last else "nchw",
            "release": ".".join(str(one) for one in setting.release),
            "peak_flops_per_s": peak,
            "memory_bytes_per_s": bandwidth,
            "flops": float(flops[graph]),
            "bytes_moved": float(moved[graph]),
            "launches": float(launches[graph]),
            "compute_share": float(compute_s / ideal_s[place]),
            "memory_share": float(memory_s / ideal_s[place]),
        }
        present = np.flatnonzero(per_class[graph])
        features |= {f"share_{CLASSES[one]}": float(per_class[graph, one] / moved[graph]) for one in present}
        found.append(features)
    return found, ideal_s


def _per_class(table: OpTable) -> Array:
    """Return the bytes that each class of kernel moves in each graph: shape (g, classes)."""
    cell = table.owner * len(CLASSES) + table.classes
    moved = np.bincount(cell, table.bytes * table.count, table.graphs * len(CLASSES)).astype(float)
    return moved.reshape(table.graphs, -1)
