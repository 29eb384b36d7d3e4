"""Measured steps of vision models as batches of graphs, on their devices."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.vision_data import VisionSteps
from benchmarks.dnn.vision_graphs import vision_graphs
from benchmarks.dnn.vision_lab import DEVICES, read_setting
from leadline.catalog.read import TomlCatalog
from leadline.estimators.ports import Single
from leadline.estimators.step_time.op_table import DTYPES, KERNEL_CLASSES, SIZE_COLUMNS
from leadline.estimators.step_time.op_utilization import SHARED_COLUMNS, OpBasis
from leadline.estimators.step_time.step_kernels import (
    OWN_SEEN,
    GraphBatch,
    node_columns,
    setting_columns,
)

Whole = npt.NDArray[np.int64]

NODE_KINDS = len(KERNEL_CLASSES) * 2
"""Kernels that have weights of their own: a class in a layout."""
NODE_WIDTH = SHARED_COLUMNS + OWN_SEEN + SIZE_COLUMNS + len(DTYPES) + 6
"""Columns of ``GraphBatch.node``."""
SETTING_WIDTH = 10
"""Columns of ``GraphBatch.setting``."""


class GraphSteps:
    """The measured steps, each with its graph in the network's form."""

    def __init__(self, steps: VisionSteps) -> None:
        self.steps = steps
        table, catalog = steps.table, TomlCatalog(None)
        self.devices = {str(name): catalog.device(DEVICES[name]) for name in np.unique(self.steps.device)}
        bases = {name: OpBasis.from_table(table, device) for name, device in self.devices.items()}
        self.names: npt.NDArray[np.str_] = np.char.add(np.char.add(self.steps.device, " "), self.steps.setting)
        self._node = {name: node_columns(basis, self.devices[name]) for name, basis in bases.items()}
        self._roofline_us = {name: (basis.roofline_s * 1e6).astype(np.float32) for name, basis in bases.items()}
        self._kinds = {"nchw": table.classes, "nhwc": table.classes + len(KERNEL_CLASSES)}
        self._launches = table.count * table.kernels
        self._edges, self._first_edge = _edges_of(self.steps)
        self._settings = {str(name): self._columns(str(name)) for name in np.unique(self.names)}

    def batch(self, rows: Whole) -> GraphBatch:
        """Return the graphs of rows, in their order."""
        table, steps = self.steps.table, self.steps
        graphs = steps.graph[rows]
        begins, sizes = table.first[graphs], np.diff(table.first)[graphs]
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        ops = _ranges(begins, sizes)
        edge_sizes = np.diff(self._first_edge)[graphs]
        edges = _ranges(self._first_edge[graphs], edge_sizes)
        shift = np.repeat(starts, edge_sizes)
        spans = list(zip(rows, begins, begins + sizes, strict=True))
        return GraphBatch(
            np.concatenate([self._kinds[str(steps.columns["layout"][row])][low:high] for row, low, high in spans]),
            np.concatenate([self._node[str(steps.device[row])][low:high] for row, low, high in spans]),
            np.concatenate([self._roofline_us[str(steps.device[row])][low:high] for row, low, high in spans]),
            table.count[ops].astype(np.float32), self._launches[ops].astype(np.float32),
            np.repeat(np.arange(len(rows)), sizes), self._edges[0, edges] + shift, self._edges[1, edges] + shift,
            np.stack([self._settings[str(self.names[row])] for row in rows]),
        )  # fmt: skip

    def batches(self, rows: Whole, size: int) -> Iterator[tuple[Whole, GraphBatch]]:
        """Yield the rows and their graphs, ``size`` at a time, in the order given."""
        for start in range(0, len(rows), size):
            chosen = rows[start : start + size]
            yield chosen, self.batch(chosen)

    def _columns(self, name: str) -> Single:
        device = self.devices[name.split(maxsplit=1)[0]]
        return np.array(setting_columns(device, read_setting(device, name)), np.float32)


def _edges_of(steps: VisionSteps) -> tuple[Whole, Whole]:
    """Return the edges of each graph (2, e), as positions within it, and the first edge of each graph."""
    traced = vision_graphs().packed.graphs
    source: list[int] = []
    target: list[int] = []
    first = [0]
    for number in steps.traced:
        for position, reads in enumerate(traced[number].sources):
            source += reads
            target += [position] * len(reads)
        first.append(len(source))
    return np.array([source, target], np.int64), np.array(first, np.int64)


def _ranges(begins: Whole, sizes: Whole) -> Whole:
    """Return the positions of ranges, one after another."""
    if not sizes.sum():
        return np.zeros(0, np.int64)
    ends = np.cumsum(sizes)
    positions: Whole = np.arange(ends[-1]) + np.repeat(begins - (ends - sizes), sizes)
    return positions
