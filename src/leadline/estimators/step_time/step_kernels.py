"""Whole-step estimators as a ``KernelModel``: the graph neural network and the black box.

The black box reads a table of hardware figures, the setting, and figures of the model except its name.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Tier
from leadline.core.graph import Op, OpGraph
from leadline.core.hardware import Device
from leadline.core.runs import Value
from leadline.estimators.ports import Array, FittedEstimator
from leadline.estimators.recent_cache import RecentCache
from leadline.estimators.step_time.device_features import require_gpu
from leadline.estimators.step_time.network import GraphNetwork
from leadline.estimators.step_time.op_table import KERNEL_CLASSES, OpTable
from leadline.estimators.step_time.op_utilization_kernels import StepSetting
from leadline.estimators.step_time.roofline import HOST_SPREAD, UNMEASURED_SPREAD, RooflineKernels

# The precision whose peak stands in the table: the steps that were learned from are in half precision.
DTYPE = "float16"
# Order of magnitude of the least kernel time, which makes the ideal step of small kernels a sensible unit.
LAUNCH_S = 5e-6

Fitted = TypeVar("Fitted")


def step_features(
    table: OpTable, rows: Sequence[tuple[int, Device, StepSetting]]
) -> tuple[list[dict[str, Value]], Array]:
    """Return the features of m steps, and their ideal seconds (m,), the unit of the target.

    A row is a graph's number in ``table``, the device, and the setting. Sizes are seconds on the device where possible,
    so that training data of one GPU applies to another.

    Raises:
        InvalidInput: a device lacks the peak or the bandwidth.
    """
    flops, launches = table.summed(table.flops * table.count), table.launches
    cells = table.owner * len(KERNEL_CLASSES) + table.classes
    per_class = np.bincount(cells, table.bytes * table.count, table.graphs * len(KERNEL_CLASSES)).astype(float)
    per_class = per_class.reshape(table.graphs, -1)  # the bytes that each class of kernel moves in each graph
    moved = per_class.sum(axis=1)
    rows_of_features: list[dict[str, Value]] = []
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
            "release": ".".join(str(number) for number in setting.release),
            "peak_flops_per_s": peak,
            "memory_bytes_per_s": bandwidth,
            "flops": float(flops[graph]),
            "bytes_moved": float(moved[graph]),
            "launches": float(launches[graph]),
            "compute_share": float(compute_s / ideal_s[place]),
            "memory_share": float(memory_s / ideal_s[place]),
        }
        present = np.flatnonzero(per_class[graph])
        features |= {
            f"share_{KERNEL_CLASSES[number]}": float(per_class[graph, number] / moved[graph]) for number in present
        }
        rows_of_features.append(features)
    return rows_of_features, ideal_s


class _StepKernels(ABC, Generic[Fitted]):
    """A step by a whole-step estimator in the ``setting`` nearest to the graph's.

    An op takes its share of the step by vendor specifications.

    Raises:
        InvalidInput: the device is no GPU, or lacks a figure that the estimator reads.
    """

    tier = Tier.LEARNED
    host_spread = HOST_SPREAD
    subject: str

    def __init__(
        self, fitted: Fitted, device: Device, setting: StepSetting, *, spread: float = UNMEASURED_SPREAD,
        reasons: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        require_gpu(device, self.subject)
        self.reasons = reasons
        self._fitted, self._device, self._setting = fitted, device, setting
        self._spread, self._specs = spread, RooflineKernels(device)
        self._step_s = RecentCache(self._predict_step_s)

    def spread_of(self, graph: OpGraph) -> float:  # noqa: ARG002 - part of the protocol
        """Return the spread on unseen model families."""
        return self._spread

    def ops_s(self, ops: Sequence[Op]) -> list[float]:
        """Return the seconds of one call of each op."""
        alone_s = self._specs.ops_s(ops)
        whole_s = sum(seconds * op.count for seconds, op in zip(alone_s, ops, strict=True))
        factor = self._step_s(ops) / whole_s
        return [factor * seconds for seconds in alone_s]

    def launch_s(self, op: Op) -> float:
        """Return the host seconds of one call by vendor specifications."""
        return self._specs.launch_s(op)

    def step_s(self, graph: OpGraph) -> float:
        """Return the seconds of the whole graph."""
        return self._step_s(graph.ops)

    @abstractmethod
    def _predict_step_s(self, ops: Sequence[Op]) -> float:
        """Return the seconds of all ops together."""


class NetworkKernels(_StepKernels[GraphNetwork]):
    """Steps by the graph neural network."""

    name, subject = "graph network", "the network"

    def _predict_step_s(self, ops: Sequence[Op]) -> float:
        return float(self._fitted.predict([ops], self._device, self._setting)[0])


class BlackBoxKernels(_StepKernels[FittedEstimator]):
    """Steps by boosting on their table rows."""

    name, subject = "black box", "the black box"

    def _predict_step_s(self, ops: Sequence[Op]) -> float:
        rows, ideal_s = step_features(OpTable.from_graphs([ops]), [(0, self._device, self._setting)])
        return float(self._fitted.predict(rows).point[0] * ideal_s[0])
