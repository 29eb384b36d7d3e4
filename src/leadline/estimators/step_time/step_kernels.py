"""Whole-step estimators as a ``KernelModel``: the graph neural network and the black box.

The network is an ONNX file that the caller's session runs, so this module needs no files or torch. An op takes ``count
× roofline × (LEAST_MULTIPLE + exp(f))`` as in ``op_utilization``. Messages between producers and consumers give f. A
step is the sum of its ops, or of its launches where the host is slower.

The black box reads a table of hardware figures, the setting, and figures of the model except its name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log2
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import structs

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Tier
from leadline.core.frozen import Frozen
from leadline.core.graph import Op, OpGraph
from leadline.core.hardware import Device
from leadline.core.runs import Value
from leadline.estimators.ports import Array, FittedEstimator, IntArray, Single
from leadline.estimators.recent_cache import RecentCache
from leadline.estimators.step_time.device_features import require_gpu
from leadline.estimators.step_time.op_table import DTYPES, KERNEL_CLASSES, OpTable
from leadline.estimators.step_time.op_utilization import OpBasis, roofline_terms_s
from leadline.estimators.step_time.op_utilization_kernels import StepSetting
from leadline.estimators.step_time.roofline import UNMEASURED_SPREAD, RooflineKernels, l2_bytes

# Leading class columns that the shipped network was trained with.
OWN_SEEN = 31

# Run the network on its inputs by name and return the step of each graph in µs, of shape (g,).
NetworkSession = Callable[[Mapping[str, npt.NDArray[np.generic]]], npt.NDArray[np.generic]]


class GraphBatch(Frozen):
    """n ops and e edges of g graphs as the network reads them.

    ``kind`` (n,) is the class of each op, plus the number of classes where channels come last. ``node`` (n, COLUMNS),
    ``roofline_us``, ``count`` and ``launches`` (n,), ``owner`` (n,) the graph of each op, ``source`` and ``target``
    (e,) positions of ops, ``setting`` (g, SETTING).
    """

    kind: IntArray
    node: Single
    roofline_us: Single
    count: Single
    launches: Single
    owner: IntArray
    source: IntArray
    target: IntArray
    setting: Single

    @classmethod
    def from_basis(cls, basis: OpBasis, edges: IntArray, device: Device, setting: StepSetting) -> "GraphBatch":
        """Return all graphs of ``basis``, which is that of ``device``, in one setting; ``edges`` as of their ops.

        Raises:
            InvalidInput: the device lacks a figure that the network reads.
        """
        table = basis.table
        figures = np.array(setting_columns(device, setting), np.float32)
        return cls(
            table.classes + len(KERNEL_CLASSES) * setting.channels_last, node_columns(basis, device),
            (basis.roofline_s * 1e6).astype(np.float32), table.count.astype(np.float32),
            (table.count * table.kernels).astype(np.float32), table.owner, edges[0], edges[1],
            np.tile(figures, (table.graphs, 1)),
        )  # fmt: skip


# Names of the network's inputs, in order; its one output is `step_us`.
NETWORK_INPUTS = GraphBatch.__struct_fields__


class GraphNetwork(Frozen):
    """The network, run by ``session``."""

    session: NetworkSession

    def step_s(self, batch: GraphBatch) -> Array:
        """Return the seconds of a step of each graph, of shape (g,)."""
        return np.asarray(self.session(structs.asdict(batch)), np.float64) * 1e-6

    def predict(self, graphs: Iterable[Sequence[Op]], device: Device, setting: StepSetting) -> Array:
        """Return the seconds of a step of each graph on ``device``, of shape (g,).

        Raises:
            InvalidInput: a graph has no op that moves data, or the device lacks a figure that the network reads.
        """
        table, edges = connect_graphs(graphs)
        if empty := np.flatnonzero(np.diff(table.first) == 0).tolist():
            raise InvalidInput(f"graph {empty[0]} has no op that moves data, so it has no time: trace a model with ops")
        return self.step_s(GraphBatch.from_basis(OpBasis.from_table(table, device), edges, device, setting))


def connect_graphs(graphs: Iterable[Sequence[Op]]) -> tuple[OpTable, IntArray]:
    """Return the ops that move data, duplicates merged with counts, and their edges past views.

    Edges (2, e) lead from producers to consumers, which are positions in the table.
    """
    ops: list[Op] = []
    counted: list[dict[int, float]] = []
    pairs: set[tuple[int, int]] = set()
    for graph in graphs:
        numbers: dict[tuple[object, ...], int] = {}
        counts: dict[int, float] = {}
        behind: list[frozenset[int]] = []
        for op in graph:
            if not op.bytes_read + op.bytes_written:
                behind.append(frozenset())
                continue
            # Two ops of the same key are the same to the network.
            key = (op.name, op.kind, op.stage, op.dtype, op.flops, op.bytes_read, op.bytes_written, op.kernels,
                   tuple(sorted(op.dims.items())), op.inputs, op.outputs)  # fmt: skip
            number = numbers.setdefault(key, len(ops))
            if number == len(ops):
                ops.append(op)
            counts[number] = counts.get(number, 0.0) + op.count
            behind.append(frozenset({number}))
        for position, op in enumerate(graph):
            sources = frozenset[int]().union(*(behind[producer] for producer in op.sources))
            pairs |= {(producer, number) for number in behind[position] for producer in sources if producer != number}
            behind[position] = behind[position] or sources
        counted.append(counts)
    return OpTable.from_counts(ops, counted), np.array(sorted(pairs), np.int64).reshape(-1, 2).T.copy()


def node_columns(basis: OpBasis, device: Device) -> Single:
    """Return the network's inputs for each op on ``device``, shape (n, columns), not yet scaled."""
    table = basis.table
    busy_s, traffic_s = roofline_terms_s(table, device)
    logs = [
        np.log2(basis.roofline_s * 1e6),
        np.log2(busy_s * 1e6 + 1e-3),
        np.log2(traffic_s * 1e6 + 1e-3),
        np.clip(np.log2(table.bytes / l2_bytes(device)), -8, 8),
        np.log2(table.kernels),
        table.matrix.astype(float),
    ]
    dtypes = table.dtypes[:, None] == np.arange(len(DTYPES))
    columns = [basis.shared, basis.by_class[:, :OWN_SEEN], table.sizes, dtypes, np.stack(logs, 1)]
    return np.concatenate(columns, 1, dtype=np.float32)


def setting_columns(device: Device, setting: StepSetting) -> list[float]:
    """Return phase, layout, release and the logarithms of the device's figures.

    Raises:
        InvalidInput: the device lacks one of them.
    """
    peaks = device.peak_flops_per_s
    figures = {
        "float32 peak": (peaks.get("float32"), 35e12),
        "float16 peak": (peaks.get("float16"), 100e12),
        "memory bandwidth": (device.memory_bytes_per_s, 1e12),
        "L2 size": (device.l2_bytes, 16e6),
        "number of compute units": (device.compute_units, 100),
        "boost clock": (device.boost_hz, 2e9),
    }
    if absent := [name for name, (value, _) in figures.items() if not value]:
        raise InvalidInput(f"{device.name} has no {absent[0]} in the catalog, which the network reads: add it there")
    logs = [log2(value / usual) for value, usual in figures.values() if value]
    version = float("".join(str(part) for part in setting.release)) / 100 - 2  # release 2.40 is 240 to the network
    return [float(setting.training), float(setting.channels_last), version, version * abs(version), *logs]


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


class _StepKernels(RooflineKernels, ABC, Generic[Fitted]):
    """A step by a whole-step estimator in the ``setting`` nearest to the graph's.

    An op takes its share of the step by vendor specifications, which also give its launch.

    Raises:
        InvalidInput: the device is no GPU, or lacks a figure that the estimator reads.
    """

    tier = Tier.LEARNED
    subject: str

    def __init__(
        self, fitted: Fitted, device: Device, setting: StepSetting, *, spread: float = UNMEASURED_SPREAD,
        reasons: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        require_gpu(device, self.subject)
        super().__init__(device, spread=spread, reasons=reasons)
        self._fitted, self._setting = fitted, setting
        self._step_s = RecentCache(self._predict_step_s)

    def ops_s(self, ops: Sequence[Op]) -> list[float]:
        """Return the seconds of one call of each op."""
        alone_s = super().ops_s(ops)
        whole_s = sum(seconds * op.count for seconds, op in zip(alone_s, ops, strict=True))
        factor = self._step_s(ops) / whole_s
        return [factor * seconds for seconds in alone_s]

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
        return float(self._fitted.predict([ops], self.device, self._setting)[0])


class BlackBoxKernels(_StepKernels[FittedEstimator]):
    """Steps by boosting on their table rows."""

    name, subject = "black box", "the black box"

    def _predict_step_s(self, ops: Sequence[Op]) -> float:
        rows, ideal_s = step_features(OpTable.from_graphs([ops]), [(0, self.device, self._setting)])
        return float(self._fitted.predict(rows).point[0] * ideal_s[0])
