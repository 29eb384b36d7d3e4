"""Step times by a graph neural network over op graphs: its inputs and its output.

The network is an ONNX file that the caller's session runs, so this module needs no files or torch. An op takes ``count
× roofline × (LEAST_MULTIPLE + exp(f))`` as in ``op_utilization``. Messages between producers and consumers give f. A
step is the sum of its ops, or of its launches where the host is slower.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log2

import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.graph import Op
from leadline.core.hardware import Device
from leadline.estimators.ports import Array, IntArray
from leadline.estimators.step_time.missing_figures import ASSUMED_L2_BYTES
from leadline.estimators.step_time.op_table import DTYPES, KERNEL_CLASSES, OpTable
from leadline.estimators.step_time.op_utilization import OpBasis, roofline_terms_s
from leadline.estimators.step_time.op_utilization_kernels import StepSetting

Float32Array = npt.NDArray[np.float32]

# Leading class columns that the shipped network was trained with.
OWN_SEEN = 31
# Names of the network's inputs, in order; its one output is `step_us`.
NETWORK_INPUTS = ("kind", "node", "roofline_us", "count", "launches", "owner", "source", "target", "setting")

# Run the network on its inputs by name and return the step of each graph in µs, of shape (g,).
NetworkSession = Callable[[Mapping[str, npt.NDArray[np.generic]]], npt.NDArray[np.generic]]


class GraphBatch(Frozen):
    """n ops and e edges of g graphs as the network reads them.

    ``kind`` (n,), ``node`` (n, COLUMNS), ``roofline_us``, ``count`` and ``launches`` (n,), ``owner`` (n,) the graph of
    each op, ``source`` and ``target`` (e,) positions of ops, ``setting`` (g, SETTING).
    """

    kind: IntArray
    node: Float32Array
    roofline_us: Float32Array
    count: Float32Array
    launches: Float32Array
    owner: IntArray
    source: IntArray
    target: IntArray
    setting: Float32Array

    @classmethod
    def from_basis(cls, basis: OpBasis, edges: IntArray, device: Device, setting: StepSetting) -> "GraphBatch":
        """Return all graphs of ``basis``, which is that of ``device``, in one setting; ``edges`` as of their ops.

        Raises:
            InvalidInput: the device lacks a figure that the network reads.
        """
        table = basis.table
        figures = np.array(setting_columns(device, setting), np.float32)
        return cls(
            node_kinds(table, channels_last=setting.channels_last), node_columns(basis, device),
            (basis.roofline_s * 1e6).astype(np.float32), table.count.astype(np.float32),
            (table.count * table.kernels).astype(np.float32), table.owner, edges[0], edges[1],
            np.tile(figures, (table.graphs, 1)),
        )  # fmt: skip

    def inputs(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the arrays by the names of the network's inputs."""
        return {name: getattr(self, name) for name in NETWORK_INPUTS}


class GraphNetwork(Frozen):
    """The network, run by ``session``."""

    session: NetworkSession

    def step_s(self, batch: GraphBatch) -> Array:
        """Return the seconds of a step of each graph, of shape (g,)."""
        return np.asarray(self.session(batch.inputs()), np.float64) * 1e-6

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


def node_columns(basis: OpBasis, device: Device) -> Float32Array:
    """Return the network's inputs for each op on ``device``, shape (n, columns), not yet scaled."""
    table = basis.table
    busy_s, traffic_s = roofline_terms_s(table, device)
    logs = [
        np.log2(basis.roofline_s * 1e6),
        np.log2(busy_s * 1e6 + 1e-3),
        np.log2(traffic_s * 1e6 + 1e-3),
        np.clip(np.log2(table.bytes / (device.l2_bytes or ASSUMED_L2_BYTES)), -8, 8),
        np.log2(table.kernels),
        table.matrix.astype(float),
    ]
    dtypes = table.dtypes[:, None] == np.arange(len(DTYPES))
    columns = [basis.shared, basis.by_class[:, :OWN_SEEN], table.sizes, dtypes, np.stack(logs, 1)]
    return np.concatenate(columns, 1, dtype=np.float32)


def node_kinds(table: OpTable, *, channels_last: bool) -> IntArray:
    """Return the class of each op in that layout, of shape (n,): channels-first ones come first."""
    return table.classes + len(KERNEL_CLASSES) * channels_last


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
