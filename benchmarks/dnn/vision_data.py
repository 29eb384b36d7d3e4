"""Measured steps of vision models on GPUs, each with its op graph."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.vision_graphs import VisionGraphs, vision_graphs
from benchmarks.tables import Columns, read_table, select_rows
from leadline.core.graph import Op
from leadline.estimators.step_time.op_table import OpTable

Texts = npt.NDArray[np.str_]
Whole = npt.NDArray[np.int64]

SAME = 0.005
"""Largest deviation in the number of weights; a graph with more is of another version, and left out."""
FUSED_SINCE = 200
"""Releases of PyTorch (1.13 is 113) before this were measured with explicit attention."""
EXACT_MATH_SINCE = 250
"""Since this release attention without a fused kernel is computed in float32; before, like explicit attention."""

REWRITTEN = "tresnet"
"""Models whose norms timm ran by InplaceABN before ``FUSED_SINCE``; later graphs do not have these kernels (timm 0.4.12
and 0.6.13 import it, 0.9.16 does not)."""


@dataclass(frozen=True, slots=True)
class VisionSteps:
    """m measured steps with the op table of their g graphs.

    Attributes:
        traced: The number in ``vision_graphs`` of each graph of ``table``, with ops in the same order; (g,).
        graph: The position of each step's graph in ``table``; (m,).
        setting: Phase, layout and release of each step; (m,).
    """

    table: OpTable
    traced: Whole
    graph: Whole
    step_s: npt.NDArray[np.float64]
    model: Texts
    family: Texts
    device: Texts
    setting: Texts
    columns: Columns

    def select(self, chosen: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> "VisionSteps":
        """Return the rows ``chosen`` (a mask or positions), over the same table."""
        return VisionSteps(
            self.table, self.traced, self.graph[chosen], self.step_s[chosen], self.model[chosen], self.family[chosen],
            self.device[chosen], self.setting[chosen], select_rows(self.columns, chosen),
        )  # fmt: skip


@lru_cache(maxsize=1)
def vision_steps(data: Path) -> VisionSteps:
    """Return the eager steps on GPUs of models with a traced graph."""
    columns = read_table(data, "timm_steps")
    on_gpu = np.array([name.startswith("rtx") for name in columns["hardware"]])
    columns = select_rows(columns, on_gpu & ~columns["dynamo"].astype(bool) & np.isfinite(columns["batch_size"]))
    graphs = vision_graphs()
    places: dict[tuple[int, int], int] = {}
    kept, graph = [], []
    for row in range(len(columns["model"])):
        number = graph_of(columns, row, graphs)
        if number is None:
            continue
        key = (number, int(columns["batch_size"][row]))
        graph.append(places.setdefault(key, len(places)))
        kept.append(row)
    columns = select_rows(columns, np.array(kept, np.int64))
    setting = [
        f"{mode} {layout} {release}"
        for mode, layout, release in zip(columns["mode"], columns["layout"], columns["torch"], strict=True)
    ]
    family = np.array([family_of(str(model)) for model in columns["model"]])
    return VisionSteps(
        _table(graphs, list(places)), np.array([number for number, _ in places], np.int64),
        np.array(graph, np.int64), columns["step_time"] / 1e3, columns["model"], family,
        columns["hardware"], np.array(setting), columns,
    )  # fmt: skip


def family_of(model: str) -> str:
    """Return the first letters of a model's name: ``resnet101d`` is a ``resnet``."""
    match = re.match(r"[a-z]+", model)
    return match[0] if match else model


def graph_of(columns: Columns, row: int, graphs: VisionGraphs) -> int | None:
    """Return the number of the graph of a row; None without one of that version."""
    release = int(columns["torch"][row])
    model, image = str(columns["model"][row]), int(columns["img_size"][row])
    phase = "training" if columns["mode"][row] == "train" else "inference"
    explicit = release < FUSED_SINCE
    if explicit and model.startswith(REWRITTEN):
        return None
    graph = graphs.find(model, image, phase, explicit=explicit)
    if graph is None:
        return None
    if not explicit and release < EXACT_MATH_SINCE and graphs.falls_back(graph):
        graph = graphs.find(model, image, phase, explicit=True) or graph
    if abs(graph.parameters / 1e6 / columns["param_count"][row] - 1) > SAME:
        return None
    return graphs.number(graph)


def _table(graphs: VisionGraphs, places: list[tuple[int, int]]) -> OpTable:
    """Return the table of graphs at batches; each op at a batch is made once."""
    packed = graphs.packed
    numbers: dict[tuple[int, int], int] = {}
    ops: list[Op] = []
    counted: list[dict[int, float]] = []
    for number, batch in places:
        counts: dict[int, float] = {}
        graph = packed.graphs[number]
        for op, count in zip(graph.ops, graph.counts, strict=True):
            place = numbers.setdefault((op, batch), len(ops))
            if place == len(ops):
                ops.append(packed.ops[op].at(batch, 1, ()))
            counts[place] = counts.get(place, 0.0) + count
        counted.append(counts)
    return OpTable.from_counts(ops, counted)
